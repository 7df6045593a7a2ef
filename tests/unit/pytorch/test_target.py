"""The best checkpoint is the one with the best metric, whichever way that metric is good."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from determined import pytorch
from determined.pytorch.target import Target


@pytest.mark.parametrize(
    ("metric", "smaller_is_better"),
    [("accuracy", False), ("val_acc", False), ("F1", False), ("error", True), ("rmse", True), ("accession_gap", True)],
)
def test_without_configuration_the_name_of_the_metric_says_what_is_better(metric: str, smaller_is_better: bool) -> None:
    target = Target.of(None)
    assert target.name({metric: 0.5, "batches": 3}) == metric
    assert target.smaller_is_better is smaller_is_better


def test_the_configuration_has_the_last_word() -> None:
    target = Target.of({"searcher": {"metric": None, "smaller_is_better": True}})
    assert target.name({"accuracy": 0.5}) == "accuracy"
    assert target.smaller_is_better


def test_a_choice_that_cannot_be_made_is_told_once_and_only_to_those_who_need_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = Target.of(None)
    assert target.name({"f1": 1.0, "recall": 1.0}) is None
    assert caplog.messages == []
    assert target.is_better({"f1": 1.0, "recall": 1.0}, None)
    assert target.is_better({"f1": 0.5, "recall": 0.5}, None)
    assert len(caplog.messages) == 1 and "(f1, recall)" in caplog.messages[0]


class Counting(pytorch.PyTorchTrial):
    """Has the accuracy that the test gives it for each validation."""

    def __init__(self, context: pytorch.PyTorchTrialContext, accuracies: list[float]) -> None:
        self.context = context
        self.accuracies = iter(accuracies)
        self.model = context.wrap_model(nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(torch.ones(8, 1), batch_size=1)  # type: ignore[arg-type]

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(torch.ones(1, 1), batch_size=1)  # type: ignore[arg-type]

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = self.model(batch).sum()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Any) -> Any:
        return {"accuracy": next(self.accuracies)}


def test_the_checkpoint_with_the_highest_accuracy_is_kept_and_found_again() -> None:
    with pytorch.init() as context:
        trial = Counting(context, [0.7, 0.9, 0.8, 0.6])
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(4), validation_period=pytorch.Batch(1))
        checkpoints = context.core_context.checkpoint if context.core_context else None
        assert checkpoints is not None
        assert [entry.steps_completed for entry in checkpoints.list()] == [2, 4]
        assert checkpoints.best_validation() == 0.9
    with pytorch.init() as context:
        assert context.core_context is not None
        assert context.core_context.locate().steps_completed == 2
