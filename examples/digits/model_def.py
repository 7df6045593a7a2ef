"""Digits with the oldest API: the class says what the model and the optimizer are, and the platform does the rest.

`python -m determined.pytorch model_def:DigitsTrial --config const.yaml`
"""

import digits
import torch
from torch import nn

import determined as det
from determined.pytorch import DataLoader, LRScheduler, PyTorchTrial, reset_parameters


def error_rate(scores: torch.Tensor, labels: torch.Tensor) -> float:
    return float((scores.argmax(1) != labels).float().mean())


class DigitsTrial(PyTorchTrial):
    def __init__(self, context: det.TrialContext) -> None:
        self.context = context

    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(digits.load()[0], batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(digits.load()[1], batch_size=self.context.get_per_slot_batch_size())

    def build_model(self) -> nn.Module:
        filters = self.context.get_hparam("filters")
        model = nn.Sequential(
            nn.Conv2d(1, filters, kernel_size=3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(filters * 9, 10),
            nn.LogSoftmax(dim=1),
        )
        reset_parameters(model)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.context.get_hparam("learning_rate"), momentum=0.9)

    def create_lr_scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
        return LRScheduler(decay, LRScheduler.StepMode.STEP_EVERY_EPOCH)

    def train_batch(self, batch, model: nn.Module, epoch_idx: int, batch_idx: int) -> dict:
        images, labels = batch
        scores = model(images)
        return {"loss": nn.functional.nll_loss(scores, labels), "train_error": error_rate(scores, labels)}

    def evaluate_batch(self, batch, model: nn.Module) -> dict:
        images, labels = batch
        return {"validation_error": error_rate(model(images), labels)}
