"""Gradients: the backward pass and the optimizer step, with accumulation, scaling and clipping in the right order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from determined import errors
from determined.pytorch import parallel
from determined.pytorch.precision import Precision
from determined.pytorch.progress import Progress

Pending = list[list["torch.Tensor | None"]]


class Gradients:
    """Owns what happens between a loss and new parameters."""

    def __init__(self, progress: Progress, precision: Precision, aggregation_frequency: int, average: bool) -> None:
        if not isinstance(aggregation_frequency, int) or aggregation_frequency < 1:
            raise errors.InvalidExperimentException(
                f"aggregation_frequency must be a whole number of at least 1, not {aggregation_frequency!r}"
            )
        self.aggregation_frequency = aggregation_frequency
        self.average = average
        self.stepped = False  # whether an optimizer stepped in this batch (asked for by scaler updates)
        self._progress = progress
        self._precision = precision
        self._sync_settled = True

    def communicates(self, batch_idx: int) -> bool:
        """Whether the optimizer may step on this batch."""
        return (batch_idx + 1) % self.aggregation_frequency == 0

    def begin_batch(self, batch_idx: int, models: Iterable[nn.Module]) -> None:
        """Needed only when gradients accumulate: exchange them on the last batch of each window."""
        parallel.set_gradient_sync(models, self.communicates(batch_idx))

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None,
        retain_graph: bool,
        create_graph: bool,
    ) -> None:
        if self._precision.scales:
            assert self._precision.scaler is not None
            loss = self._precision.scaler.scale(loss)
        loss.backward(gradient, retain_graph or None, create_graph)  # type: ignore[no-untyped-call]

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: Callable[[Any], Any] | None,
        auto_zero_grads: bool,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        """Average, unscale, clip, step, zero: in this order, on the batches where the optimizer may step."""
        frequency = self.aggregation_frequency
        if frequency > 1:
            if not auto_zero_grads:
                raise errors.InvalidExperimentException(
                    "step_optimizer(auto_zero_grads=False) cannot be used with aggregation_frequency > 1: zeroing "
                    "between batches would throw the accumulated gradients away; leave auto_zero_grads on"
                )
            if not self.communicates(self._progress.batch_idx):
                return
            if self.average:
                for parameter in _parameters(optimizer):
                    if parameter.grad is not None:
                        parameter.grad.div_(frequency)
        automatic = self._precision.scaler if self._precision.scales else None
        if automatic is not None and scaler is None:
            scaler = automatic
        if clip_grads is not None:
            if automatic is not None:
                automatic.unscale_(optimizer)
            clip_grads(_parameters(optimizer))
        if scaler is not None:
            scaler.step(optimizer)
        else:
            optimizer.step()
        self.stepped = True
        if auto_zero_grads:
            optimizer.zero_grad()


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def pending(optimizers: Iterable[torch.optim.Optimizer]) -> Pending:
    """Gradients that a later batch will still use, per optimizer, for a checkpoint taken in mid-window."""
    return [[p.grad for p in _parameters(optimizer)] for optimizer in optimizers]


def restore_pending(
    optimizers: Iterable[torch.optim.Optimizer], saved: Iterable[Iterable[torch.Tensor | None]]
) -> None:
    for optimizer, gradients in zip(optimizers, saved):
        for parameter, gradient in zip(_parameters(optimizer), gradients):
            if gradient is None:
                parameter.grad = None
            else:
                parameter.grad = gradient.to(device=parameter.device, dtype=parameter.dtype).clone()
