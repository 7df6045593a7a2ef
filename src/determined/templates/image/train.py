"""Tell shapes apart: a small convnet on generated images. Replace `make_images` and the model by yours.

python train.py                         here, with the values of const.yaml
det experiment create const.yaml .      one trial on a cluster, or on this machine's own master
det experiment create adaptive.yaml .   a search
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from determined import pytorch

SHAPES = ("disc", "square", "cross", "stripes")
SIZE = 16


def make_images(count: int, seed: int) -> TensorDataset:
    """Noisy images, SIZE x SIZE pixels, of a shape each; the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(SHAPES), (count,), generator=generator)
    centers = torch.randint(5, SIZE - 5, (count, 2), generator=generator)
    radii = torch.randint(2, 5, (count,), generator=generator)
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    down = (rows - centers[:, 0, None, None]).abs()
    across = (columns - centers[:, 1, None, None]).abs()
    radius = radii[:, None, None]
    inside = (down <= radius) & (across <= radius)
    drawn = torch.stack(
        [
            down**2 + across**2 <= radius**2,
            inside,
            inside & ((down == 0) | (across == 0)),
            inside & (rows % 2 == 0),
        ],
        dim=1,
    )
    pixels = drawn[torch.arange(count), labels].float() + 0.4 * torch.randn(count, SIZE, SIZE, generator=generator)
    return TensorDataset(pixels.unsqueeze(1), labels)


class ShapesTrial(pytorch.PyTorchTrial):
    """What is trained, on what, and what one batch is: the rest is the platform's."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        filters, hidden = context.get_hparam("filters"), context.get_hparam("hidden")
        model = nn.Sequential(
            nn.Conv2d(1, filters, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(filters, 2 * filters, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * filters * (SIZE // 4) ** 2, hidden),
            nn.ReLU(),
            nn.Dropout(context.get_hparam("dropout")),
            nn.Linear(hidden, len(SHAPES)),
        )
        self.model = context.wrap_model(model)
        self.optimizer = context.wrap_optimizer(
            torch.optim.Adam(self.model.parameters(), lr=context.get_hparam("learning_rate"))
        )

    def build_training_data_loader(self) -> pytorch.DataLoader:
        batch_size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(make_images(4000, seed=1), batch_size=batch_size, shuffle=True, drop_last=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(make_images(1000, seed=2), batch_size=self.context.get_per_slot_batch_size())

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> dict[str, torch.Tensor]:
        images, labels = batch
        scores = self.model(images)
        return {
            "validation_loss": nn.functional.cross_entropy(scores, labels),
            "accuracy": (scores.argmax(1) == labels).float().mean(),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--resume", nargs="?", const="latest", help="go on from the latest checkpoint, or this one")
    options = parser.parse_args()
    with pytorch.init() as context:
        trainer = pytorch.Trainer(ShapesTrial(context), context)
        trainer.fit(
            max_length=pytorch.Epoch(options.epochs),
            validation_period=pytorch.Epoch(1),
            checkpoint_period=pytorch.Epoch(2),
            reporting_period=pytorch.Batch(20),
            latest_checkpoint=options.resume,
        )


if __name__ == "__main__":
    main()
