"""What each batch returned, kept cheaply until a boundary, and its average there."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from determined import errors

logger = logging.getLogger("determined.pytorch")

Row = dict[str, Any]


def keep(result: Any) -> Row:
    """A batch's metrics, free of graphs and of memory that later batches may overwrite."""
    if type(result) is not dict:
        if isinstance(result, Tensor):
            result = {"loss": result}
        elif not isinstance(result, Mapping):
            raise errors.InvalidExperimentException(
                f"train_batch must return a tensor (the loss) or a dict of metrics, not {type(result).__name__}"
                + ("; is a return statement missing?" if result is None else "")
            )
    row = {}
    for name, value in result.items():
        if type(value) is float:
            row[name] = value
        elif isinstance(value, Tensor):
            row[name] = _keep_tensor(value)
        elif isinstance(value, np.ndarray):
            row[name] = value.copy()
        else:
            row[name] = value
    return row


def _keep_tensor(value: Tensor) -> Any:
    # On a CPU a number is cheaper than a tensor; on a GPU reading it would wait for the device.
    if value.is_cpu and value.numel() == 1:
        return value.item()
    # What a graph produced is fresh; anything else might be a buffer that the next batch changes in place.
    return value.detach() if value.requires_grad else value.clone()


def to_host(rows: Sequence[Row]) -> list[Row]:
    """The rows with every tensor as a numpy array."""
    return [
        {name: value.float().cpu().numpy() if isinstance(value, Tensor) else value for name, value in row.items()}
        for row in rows
    ]


class Averages:
    """Averages rows of metrics, telling once about each metric that cannot be averaged."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def of(self, rows: Sequence[Row]) -> dict[str, tuple[Any, int]]:
        """Each metric's mean over the rows that have it, with their number; None where there is no mean."""
        if not rows:
            return {}
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: self._mean(name, [row[name] for row in rows if name in row]) for name in names}

    def over_ranks(self, by_rank: Sequence[Mapping[str, tuple[Any, int]]]) -> dict[str, Any]:
        """One value for each metric, ranks weighted by their number of batches."""
        names = dict.fromkeys(name for averages in by_rank for name in averages)
        merged: dict[str, Any] = {}
        for name in names:
            parts = [averages[name] for averages in by_rank if name in averages]
            if any(mean is None for mean, _ in parts):
                merged[name] = None
            elif len(parts) == 1:
                merged[name] = parts[0][0]
            else:
                weights = [count for _, count in parts]
                mean = np.average(np.asarray([m for m, _ in parts]), axis=0, weights=weights)
                merged[name] = float(mean) if np.ndim(mean) == 0 else mean.tolist()
        return merged

    def _mean(self, name: str, values: list[Any]) -> tuple[Any, int]:
        try:
            return math.fsum(values) / len(values), len(values)  # exactly rounded, and quicker than an array
        except (TypeError, ValueError, OverflowError):
            pass  # not plain numbers, or infinities of both signs
        try:
            if isinstance(values[0], Tensor):
                mean = torch.stack([torch.as_tensor(v) for v in values]).double().mean(dim=0).cpu().numpy()
            else:
                mean = np.mean(np.asarray(values, dtype=np.float64), axis=0)
        except (TypeError, ValueError, RuntimeError):
            if name not in self._told:
                self._told.add(name)
                logger.warning(
                    "metric %r cannot be averaged (train_batch returned %s); it is reported as None. "
                    "Return numbers or arrays of one shape, or use context.wrap_reducer",
                    name,
                    type(values[0]).__name__,
                )
            return None, len(values)
        return (float(mean) if np.ndim(mean) == 0 else mean.tolist()), len(values)
