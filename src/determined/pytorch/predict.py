"""Batch inference: every batch through a trial's model, shared out over the ranks, results in the dataset's order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from determined import errors
from determined.pytorch import batches, data
from determined.pytorch.context import PyTorchTrialContext


def predict(trial: Any, context: PyTorchTrialContext, loader: Any, *, distributed: Any, seed: int) -> Any:
    """All predictions joined on the chief; None on the other ranks."""
    step = _step(trial, context)
    device = _device_of(context)
    source = batches.validation_batches(loader, seed=seed, rank=distributed.rank, size=distributed.size)
    for model in context.models:
        model.eval()
    found: list[Any] = []
    warned: set[type] = set()
    try:
        with torch.no_grad():
            for i, batch in enumerate(source):
                # Batch i of this rank is batch i * size + rank of the dataset.
                moved = data.to_device(batch, device, warned)
                found.append(_to_host(step(moved, i * distributed.size + distributed.rank)))
    finally:
        source.close()
    by_rank = distributed.gather(found) if distributed.size > 1 else [found]
    if by_rank is None:
        return None
    longest = max((len(results) for results in by_rank), default=0)
    ordered = [results[i] for i in range(longest) for results in by_rank if i < len(results)]
    return _join(ordered)


def _step(trial: Any, context: PyTorchTrialContext) -> Callable[[Any, int], Any]:
    predict_batch = getattr(trial, "predict_batch", None)
    if callable(predict_batch):
        if "batch_idx" in inspect.signature(predict_batch).parameters:
            return lambda batch, batch_idx: predict_batch(batch, batch_idx=batch_idx)
        return lambda batch, batch_idx: predict_batch(batch)
    if len(context.models) != 1:
        raise errors.InvalidExperimentException(
            f"{type(trial).__name__} wrapped {len(context.models)} models, so predict() cannot tell which one to use; "
            "define predict_batch(self, batch)"
        )
    model = context.models[0]
    return lambda batch, batch_idx: model(_inputs(batch, trial))


def _inputs(batch: Any, trial: Any) -> Any:
    if isinstance(batch, (list, tuple)):
        return batch[0]
    if isinstance(batch, Mapping):
        raise errors.InvalidExperimentException(
            f"batches are dicts ({', '.join(map(str, batch))}), so predict() cannot tell the model's input; define "
            f"predict_batch(self, batch) in {type(trial).__name__}"
        )
    return batch


def _device_of(context: PyTorchTrialContext) -> torch.device:
    for model in context.models:
        for parameter in model.parameters():
            return parameter.device
    return context.device


def _to_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, Mapping):
        return {name: _to_host(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_host(item) for item in value]
    return value


def _join(results: Sequence[Any]) -> Any:
    if not results:
        return []
    first = results[0]
    if isinstance(first, Tensor):
        return torch.cat([r if r.ndim else r[None] for r in results])
    if isinstance(first, dict):
        return {name: _join([result[name] for result in results]) for name in first}
    if isinstance(first, list) and first and isinstance(first[0], (Tensor, dict)):
        return [_join([result[i] for result in results]) for i in range(len(first))]
    if isinstance(first, list):
        return [item for result in results for item in result]
    return list(results)
