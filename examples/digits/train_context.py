"""Digits with one context object: `context.build_trial`, `context.train`, `context.predict`."""

import digits
import torch
from torch import nn

import determined as det
from determined import pytorch


class LinearDigits(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        # This is the trial's own context; the one made by init() below is the trainer's.
        self.context = context
        self.model = context.wrap_model(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=context.hparams["learning_rate"], momentum=0.9)
        )

    def train_batch(self, batch: pytorch.TorchData, epoch_idx: int, batch_idx: int) -> dict:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: pytorch.TorchData) -> dict:
        images, labels = batch
        return {"accuracy": (self.model(images).argmax(1) == labels).float().mean()}


if __name__ == "__main__":
    context = pytorch.init()
    batch_size = context.distributed.shard_batch_size(context.training.hparams["global_batch_size"])
    train_set, test_set = digits.load()
    trial = context.build_trial(LinearDigits)
    metrics = context.train(
        trial,
        pytorch.DataLoader(train_set, batch_size, shuffle=True),
        pytorch.DataLoader(test_set, batch_size),
        max_length=det.Epochs(15),
        min_validation_period=det.Epochs(5),
        min_checkpoint_period=det.Epochs(5),
    )
    scores = context.predict(trial, pytorch.DataLoader(test_set, batch_size))
    if context.distributed.rank == 0:
        right = (scores.argmax(1) == test_set.tensors[1]).float().mean()
        print(f"accuracy {right:.3f}")
