"""Validation: every batch evaluated, the metrics reduced over batches and ranks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from determined import core, errors
from determined.core.beats import COUNT_BITS
from determined.pytorch import batches, metrics
from determined.pytorch.callbacks import Hooks
from determined.pytorch.context import PyTorchTrialContext
from determined.pytorch.reducers import Reducer, reduce_over_batches, reduce_over_ranks
from determined.pytorch.trial import PyTorchTrial, overrides

Move = Callable[[Any], Any]


class Validation:
    """Evaluates a trial on its validation data, whenever asked."""

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        hooks: Hooks,
        loader: Any,
        *,
        seed: int,
        move: Move | None,
        beats: memoryview,
        max_batches: int | None = None,
    ) -> None:
        self._trial = trial
        self._context = context
        self._hooks = hooks
        self._loader = loader
        self._seed = seed
        self._move = move
        self._beats = beats
        self._max_batches = max_batches
        self._by_batch = overrides(trial, "evaluate_batch")
        self._takes_batch_idx = self._by_batch and "batch_idx" in inspect.signature(trial.evaluate_batch).parameters

        self.last: dict[str, Any] = {}  # metrics of the last validation

    def run(self) -> dict[str, Any]:
        """The validation metrics; complete on the chief, and on every rank if a callback wants them."""
        context, hooks = self._context, self._hooks
        context.reset_reducers()
        for model in context.models:
            model.eval()
        with torch.no_grad():
            for hook in hooks.validation_start:
                hook()
            reduced = self._evaluate_batches() if self._by_batch else self._evaluate_dataset()
            reduced.update(context.reduce_metrics(for_training=False))
            if hooks.validation_end:
                if context.distributed.size > 1:
                    reduced = context.distributed.broadcast(reduced)
                for hook in hooks.validation_end:
                    hook(reduced)
        self.last = reduced
        return reduced

    def _evaluate_batches(self) -> dict[str, Any]:
        distributed = self._context.distributed
        for hook in self._hooks.validation_epoch_start:
            hook()
        rows = self._rows(distributed)
        names = list(rows[0]) if rows else []
        for hook in self._hooks.validation_epoch_end:
            hook(metrics.to_host(rows))
        reducers = self._reducers(names)
        host = metrics.to_host(rows)
        local = {name: reduce_over_batches(reducers[name], [row[name] for row in host]) for name in names}
        if distributed.size == 1:
            return {name: _plain(value) for name, value in local.items()}
        gathered = distributed.gather((local, len(rows)))
        if gathered is None:
            return {}
        counts = [count for _, count in gathered]
        full: dict[str, Any] = next((values for values, count in gathered if count), {})
        reducers = reducers or self._reducers(list(full))
        return {
            name: _plain(reduce_over_ranks(reducers[name], [values.get(name) for values, _ in gathered], counts))
            for name in full
        }

    def _rows(self, distributed: core.DistributedContext) -> list[metrics.Row]:
        source = batches.validation_batches(self._loader, seed=self._seed, rank=distributed.rank, size=distributed.size)
        evaluate: Callable[..., Any] = self._trial.evaluate_batch
        move, takes_batch_idx, limit = self._move, self._takes_batch_idx, self._max_batches
        rows: list[metrics.Row] = []
        try:
            for batch_idx, batch in enumerate(source):
                if move is not None:
                    batch = move(batch)
                result = evaluate(batch=batch, batch_idx=batch_idx) if takes_batch_idx else evaluate(batch=batch)
                rows.append(self._checked(result, rows))
                self._beat()
                if limit is not None and len(rows) >= limit:
                    break
        finally:
            source.close()
        total = len(rows) if distributed.size == 1 else sum(distributed.allgather(len(rows)))
        if total == 0:
            raise RuntimeError("the validation data loader gave no batch; check the dataset's length and drop_last")
        return rows

    def _beat(self) -> None:
        """Show that something goes on, without counting a training batch."""
        beat = self._beats[0]
        if beat:  # 0 stands for a rank that is not watched
            self._beats[0] = (beat + (1 << COUNT_BITS)) & ((1 << 64) - 1)

    def _checked(self, result: Any, rows: list[metrics.Row]) -> metrics.Row:
        if not isinstance(result, Mapping):
            raise errors.InvalidExperimentException(
                f"evaluate_batch must return a dict of metrics, not {type(result).__name__}"
            )
        if rows and result.keys() != rows[0].keys():
            raise ValueError(
                f"evaluate_batch must return the same metrics for every batch; the first had {sorted(rows[0])}, "
                f"batch {len(rows)} has {sorted(result)}"
            )
        row = metrics.keep(dict(result))
        for name, value in row.items():
            if value is None or isinstance(value, (str, bytes)):
                raise errors.InvalidExperimentException(
                    f"validation metric {name!r} must be a number, but evaluate_batch returned {type(value).__name__}"
                )
        return row

    def _reducers(self, names: list[str]) -> dict[str, Reducer]:
        chosen = self._trial.evaluation_reducer()
        if isinstance(chosen, Reducer):
            return dict.fromkeys(names, chosen)
        if not isinstance(chosen, Mapping):
            raise errors.InvalidExperimentException(
                f"evaluation_reducer() must return a det.pytorch.Reducer or a dict of them, not {chosen!r}"
            )
        if names and set(chosen) != set(names):
            raise errors.InvalidExperimentException(
                f"evaluation_reducer() names {sorted(chosen)}, but evaluate_batch returned {sorted(names)}; "
                "they must be the same"
            )
        return dict(chosen)

    def _evaluate_dataset(self) -> dict[str, Any]:
        if self._context.distributed.rank != 0:
            return {}
        loader = self._loader
        whole = loader.get_data_loader() if hasattr(loader, "get_data_loader") else loader
        result = self._trial.evaluate_full_dataset(data_loader=whole)
        if not isinstance(result, dict):
            raise errors.InvalidExperimentException(
                f"evaluate_full_dataset must return a dict of metrics, not {type(result).__name__}"
            )
        kept = metrics.keep(result)
        return {name: _plain(value) for name, value in metrics.to_host([kept])[0].items()}


def _plain(value: Any) -> Any:
    """Python numbers for numpy's, lists for arrays; anything else as it is."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.item() if value.ndim == 0 else value.tolist()
    return value
