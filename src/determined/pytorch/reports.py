"""Reports: what the loop tells about its training and validation, averaged over ranks, to callbacks and the outside."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from determined import core
from determined.pytorch import metrics
from determined.pytorch.callbacks import Hooks
from determined.pytorch.context import PyTorchTrialContext
from determined.pytorch.progress import Progress
from determined.pytorch.schedule import Schedule

logger = logging.getLogger("determined.pytorch")


class Reports:
    """Speaks for the loop; only the chief speaks to the outside."""

    def __init__(self, core_context: core.Context, context: PyTorchTrialContext, hooks: Hooks) -> None:
        self._core = core_context
        self._context = context
        self._hooks = hooks
        self._averages = metrics.Averages()
        self._told_nan = False

    @property
    def _is_chief(self) -> bool:
        return self._context.distributed.rank == 0

    def training(self, rows: Sequence[metrics.Row], progress: Progress) -> None:
        """Report the averages of the batches since the last boundary."""
        context, distributed = self._context, self._context.distributed
        local = self._averages.of(rows)
        by_rank = distributed.gather(local) if distributed.size > 1 else [local]
        averaged = self._averages.over_ranks(by_rank) if by_rank is not None else {}
        averaged.update(context.reduce_metrics(for_training=True))
        if self._is_chief:
            averaged.setdefault("batches", progress.batches_done)
            averaged.setdefault("epochs", progress.epochs_done)
        if self._hooks.training_workload_end:
            if distributed.size > 1:
                averaged = distributed.broadcast(averaged)
            host_rows = metrics.to_host(rows)
            for hook in self._hooks.training_workload_end:
                hook(averaged, host_rows)
        if self._is_chief:
            self._warn_of_nan(averaged, progress)
            self._core.train.report_training_metrics(progress.batches_done, averaged)

    def validation(self, found: dict[str, Any], progress: Progress) -> None:
        if self._is_chief:
            found.setdefault("batches", progress.batches_done)
            found.setdefault("epochs", progress.epochs_done)
            self._core.train.report_validation_metrics(progress.batches_done, found)

    def progress(self, progress: Progress, schedule: Schedule) -> None:
        if self._is_chief:
            self._core.train.report_progress(schedule.progress(progress.batches_done))

    def status(self, text: str) -> None:
        if self._is_chief:
            self._core.train.set_status(text)

    def _warn_of_nan(self, averaged: dict[str, Any], progress: Progress) -> None:
        loss = averaged.get("loss")
        if self._told_nan or not isinstance(loss, float) or not math.isnan(loss):
            return
        self._told_nan = True
        logger.warning(
            "the loss became NaN at or before batch %d; it is reported as it is and training goes on. "
            "Add det.pytorch.StopOnNaN(context) to build_callbacks() to stop when that happens",
            progress.batches_done,
        )
