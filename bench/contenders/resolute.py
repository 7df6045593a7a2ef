"""Ours, as a local run comes: run folder, JSON lines, live view, periodic and best checkpoints."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.data
from torch import Tensor

from bench.contenders import Marks
from bench.work import Work, metric_names
from determined import pytorch
from determined.pytorch import batches


class Trial(pytorch.PyTorchTrial):
    """One model and one optimizer."""

    def __init__(self, context: pytorch.PyTorchTrialContext, work: Work, pace: Marks) -> None:
        super().__init__(context)
        context.experimental.disable_dataset_reproducibility_checks()
        model = work.model()
        self.optimizer = context.wrap_optimizer(work.optimizer(model))
        self.model = context.wrap_model(model)
        self._work = work
        self._pace = pace
        self._chunk = work.case.chunk
        self._loss_of = work.loss
        self._reports_loss = work.case.reports_loss

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if batch_idx % self._chunk == 0:
            self._pace.mark()
        inputs, labels = batch
        loss = self._loss_of(self.model(inputs), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss} if self._reports_loss else {}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        inputs, labels = batch
        return {"validation_loss": self._loss_of(self.model(inputs), labels)}

    def build_training_data_loader(self) -> Any:
        if not self._work.case.loads:
            return self._work.training_data()
        self._work.order = Order(len(self._work.dataset()), self.context.get_trial_seed())
        return pytorch.DataLoader(self._work.dataset(), batch_size=self._work.case.batch_size, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(self._work.validation_set(), batch_size=self._work.case.batch_size)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {f"callback{number}": Callback() for number in range(self._work.case.callbacks)}


class ManyMetrics(Trial):
    """Returns the case's number of metrics."""

    def __init__(self, context: pytorch.PyTorchTrialContext, work: Work, pace: Marks) -> None:
        super().__init__(context, work, pace)
        self._names = metric_names(work.case)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if batch_idx % self._chunk == 0:
            self._pace.mark()
        inputs, labels = batch
        loss = self._loss_of(self.model(inputs), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return dict.fromkeys(self._names, loss)


class ManyModels(pytorch.PyTorchTrial):
    """Trains the case's number of models on each batch, each with an optimizer."""

    def __init__(self, context: pytorch.PyTorchTrialContext, work: Work, pace: Marks) -> None:
        super().__init__(context)
        context.experimental.disable_dataset_reproducibility_checks()
        self._pairs = [
            (context.wrap_model(model), context.wrap_optimizer(work.optimizer(model))) for model in work.models()
        ]
        self._work = work
        self._pace = pace
        self._chunk = work.case.chunk
        self._loss_of = work.loss

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if batch_idx % self._chunk == 0:
            self._pace.mark()
        inputs, labels = batch
        for model, optimizer in self._pairs:
            loss = self._loss_of(model(inputs), labels)
            self.context.backward(loss)
            self.context.step_optimizer(optimizer)
        return {}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        inputs, labels = batch
        return {"validation_loss": self._loss_of(self._pairs[0][0](inputs), labels)}

    def build_training_data_loader(self) -> Any:
        return self._work.training_data()

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(self._work.validation_set(), batch_size=self._work.case.batch_size)


class Callback(pytorch.PyTorchCallback):
    """Listens to every stretch of training and to every epoch."""

    def __init__(self) -> None:
        self.heard = 0

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        self.heard += 1

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.heard += 1


class Order(torch.utils.data.Sampler[int]):
    """The order in which our shuffling loader gives its samples, for the bare loop to follow."""

    def __init__(self, samples: int, seed: int) -> None:
        numbers = torch.utils.data.TensorDataset(torch.arange(samples))
        self._samples = samples
        self._source = batches.training_batches(
            pytorch.DataLoader(numbers, batch_size=samples, shuffle=True), seed=seed
        )

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[int]:
        (epoch,) = next(self._source)
        order: Tensor = epoch
        return iter(order.tolist())


def train(work: Work, pace: Marks) -> None:
    case = work.case
    kind: Any = ManyModels if case.models > 1 else ManyMetrics if case.metrics else Trial
    with pytorch.init(name=f"bench-{case.name}".replace(" ", "-")) as context:
        trial = kind(context, work, pace)
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(work.batches),
            reporting_period=pytorch.Batch(case.chunk),
            validation_period=pytorch.Batch(case.chunk) if case.validates else None,
            # Once in a stretch, about every second: more often than anyone would want.
            checkpoint_period=pytorch.Batch(case.stretch * 5 // 6 * case.chunk),
        )
        run = context.core_context.run if context.core_context is not None else None
    if run is not None and work.rank == 0 and case.reports_loss:
        work.reported_losses = _reported(run.metrics)


def _reported(path: pathlib.Path) -> list[float]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["metrics"]["loss"] for row in rows if row["group"] == "training"]
