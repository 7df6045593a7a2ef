"""LRScheduler: a learning-rate scheduler and the rule by which the trainer steps it."""

from __future__ import annotations

import enum
from typing import Any

import torch


class LRScheduler:
    """Wraps a torch scheduler with the rule that says when to step it."""

    class StepMode(enum.Enum):
        """When the trainer calls ``step()``; only on batches where the optimizer may step."""

        STEP_EVERY_EPOCH = 1
        STEP_EVERY_BATCH = 2
        MANUAL_STEP = 3
        STEP_EVERY_OPTIMIZER_STEP = 4

    def __init__(
        self,
        scheduler: torch.optim.lr_scheduler.LRScheduler,
        step_mode: LRScheduler.StepMode,
        frequency: int = 1,
    ) -> None:
        if scheduler is None:
            raise TypeError("LRScheduler needs a torch learning-rate scheduler, not None")
        if not isinstance(step_mode, LRScheduler.StepMode):
            raise TypeError(
                f"step_mode must be a det.pytorch.LRScheduler.StepMode, such as LRScheduler.StepMode.STEP_EVERY_EPOCH, "
                f"not {step_mode!r}"
            )
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) and (
            step_mode is not LRScheduler.StepMode.MANUAL_STEP
        ):
            raise ValueError(
                "ReduceLROnPlateau needs a metric, so it can only be used with StepMode.MANUAL_STEP; "
                "call its step(metric) in a callback's on_validation_end"
            )
        if frequency < 1:
            raise ValueError(f"frequency must be at least 1, not {frequency}")
        self.scheduler = scheduler
        self.step_mode = step_mode
        self.frequency = frequency

    @property
    def _step_mode(self) -> LRScheduler.StepMode:
        return self.step_mode

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the scheduler, which is your job with MANUAL_STEP only."""
        self.scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[Any]:
        """The learning rate of each parameter group."""
        return list(self.scheduler.get_last_lr())

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's state, as it goes into checkpoints."""
        return dict(self.scheduler.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""
        self.scheduler.load_state_dict(state_dict)

    def steps_due(self, batch_idx: int, aggregation_frequency: int, epoch_len: int | None) -> int:
        """How often to step after this batch, on which the optimizer could step."""
        mode = self.step_mode
        if mode is LRScheduler.StepMode.STEP_EVERY_BATCH:
            first = batch_idx - aggregation_frequency + 1
            return (batch_idx + 1) // self.frequency - first // self.frequency
        if mode is LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP:
            return int((batch_idx + 1) % self.frequency == 0)
        if mode is LRScheduler.StepMode.STEP_EVERY_EPOCH and epoch_len:
            epoch = batch_idx // epoch_len
            next_epoch = (batch_idx + aggregation_frequency) // epoch_len
            return next_epoch // self.frequency - epoch // self.frequency
        return 0
