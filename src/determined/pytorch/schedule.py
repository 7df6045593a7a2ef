"""Schedule: at which batches something is due, computed ahead so that the loop looks only there."""

from __future__ import annotations

import dataclasses
import functools

from determined import errors
from determined.config import units

_NEVER = 1 << 62


@dataclasses.dataclass(frozen=True)
class Boundary:
    """A batch count at which training pauses, and what is due there."""

    at: int
    train_ends: bool = False
    validate: bool = False
    checkpoint: bool = False
    report: bool = False


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When to report, validate, checkpoint and end.

    Counts are batches trained since the trial began. Epoch units fire only on the last batch of an epoch, and never
    when the loader has no length.
    """

    max_length: units.TrainUnit
    validation_period: units.TrainUnit | None
    checkpoint_period: units.TrainUnit | None
    reporting_period: units.TrainUnit | None
    epoch_len: int | None
    target: units.TrainUnit | None = None  # where to leave for now; how far training has come still counts to its end

    def is_over(self, batches_done: int) -> bool:
        return batches_done >= self.stop

    @functools.cached_property
    def stop(self) -> int:
        """The batch count at which this run of the trial ends: the target if there is one, else the end."""
        return self.end if self.target is None else min(self._in_batches(self.target, "target"), self.end)

    @functools.cached_property
    def end(self) -> int:
        """The batch count at which training ends."""
        return self._in_batches(self.max_length, "max_length")

    def boundary(self, batches_done: int) -> Boundary | None:
        """What is due after exactly this many batches, or None."""
        due = Boundary(
            at=batches_done,
            train_ends=batches_done == self.stop,
            validate=self._fires(self.validation_period, batches_done),
            checkpoint=self._fires(self.checkpoint_period, batches_done),
            report=self._fires(self.reporting_period, batches_done),
        )
        return due if due.train_ends or due.validate or due.checkpoint or due.report else None

    def next(self, batches_done: int) -> Boundary:
        """The first boundary after this many batches."""
        at = min(
            self.stop,
            self._next(self.validation_period, batches_done),
            self._next(self.checkpoint_period, batches_done),
            self._next(self.reporting_period, batches_done),
        )
        found = self.boundary(at)
        assert found is not None
        return found

    def progress(self, batches_done: int) -> float:
        return min(batches_done / self.end, 1.0) if self.end else 1.0

    def _in_batches(self, unit: units.TrainUnit, name: str) -> int:
        length = unit.value
        assert isinstance(length, int)
        if isinstance(unit, units.Epoch):
            if self.epoch_len is None:
                raise errors.InvalidExperimentException(
                    f"{name} is in epochs, but the training data loader has no length; give {name} in Batch"
                )
            return length * self.epoch_len
        return length

    def _fires(self, unit: units.TrainUnit | None, batches_done: int) -> bool:
        if unit is None or batches_done == 0:
            return False
        if isinstance(unit, units.Epoch):
            if not self.epoch_len or batches_done % self.epoch_len:
                return False
            return unit.should_stop(batches_done // self.epoch_len)
        return unit.should_stop(batches_done)

    def _next(self, unit: units.TrainUnit | None, batches_done: int) -> int:
        """The first count after this one where the unit fires, capped at the end of training."""
        if unit is None:
            return _NEVER
        stride = 1
        if isinstance(unit, units.Epoch):
            if not self.epoch_len:
                return _NEVER
            stride = self.epoch_len
        if isinstance(unit.value, int):
            stride *= max(unit.value, 1)
            return (batches_done // stride + 1) * stride
        if isinstance(unit.value, (list, tuple, set, frozenset)):
            later = [v * stride for v in unit.value if isinstance(v, int) and v * stride > batches_done]
            return min(later, default=_NEVER)
        # Any other container can only be asked; the end of training bounds the search.
        at = (batches_done // stride + 1) * stride
        while at < self.stop:
            if unit.should_stop(at // stride):
                return at
            at += stride
        return _NEVER
