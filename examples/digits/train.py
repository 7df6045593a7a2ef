"""Digits with the Trainer API: `python train.py` on a laptop, or on two processes with
`python -m determined.launch.torch_distributed --nproc 2 train.py`."""

import argparse

import digits
import torch
from torch import nn

import determined as det
from determined import pytorch


class DigitsTrial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.train_set, self.test_set = digits.load()
        hidden = context.get_hparam("hidden")
        self.model = context.wrap_model(
            nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(16 * 4 * 4, hidden),
                nn.ReLU(),
                nn.Dropout(0.2),
                nn.Linear(hidden, 10),
            )
        )
        self.optimizer = context.wrap_optimizer(
            torch.optim.Adam(self.model.parameters(), lr=context.get_hparam("learning_rate"))
        )
        schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=4, gamma=0.5)
        self.schedule = context.wrap_lr_scheduler(schedule, pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH)

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(
            self.train_set, batch_size=self.context.get_per_slot_batch_size(), shuffle=True, drop_last=True
        )

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.test_set, batch_size=self.context.get_per_slot_batch_size())

    def train_batch(self, batch: pytorch.TorchData, epoch_idx: int, batch_idx: int) -> dict:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: pytorch.TorchData) -> dict:
        images, labels = batch
        scores = self.model(images)
        return {
            "validation_loss": nn.functional.cross_entropy(scores, labels),
            "accuracy": (scores.argmax(1) == labels).float().mean(),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--resume", nargs="?", const="latest", help="latest, a checkpoint's uuid, or a path")
    options = parser.parse_args()
    info = det.get_cluster_info()
    hparams = info.trial.hparams if info else {"global_batch_size": 50, "hidden": 64, "learning_rate": 0.004}
    with pytorch.init(hparams=hparams) as context:
        trainer = pytorch.Trainer(DigitsTrial(context), context)
        metrics = trainer.fit(
            max_length=pytorch.Epoch(options.epochs),
            validation_period=pytorch.Epoch(1),
            checkpoint_period=pytorch.Epoch(2),
            reporting_period=pytorch.Batch(10),
            latest_checkpoint=options.resume,
        )
        if context.distributed.rank == 0 and metrics:
            print(f"accuracy {metrics['accuracy']:.3f}")


if __name__ == "__main__":
    main()
