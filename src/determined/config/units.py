"""How long to train and how often to do things: in batches, epochs or records."""

from __future__ import annotations

from collections.abc import Container
from typing import Union

from determined import errors


class TrainUnit:
    """A length or a period of training.

    ``value`` is a number (a length, or a period: fires whenever the count is a multiple of it, never at 0) or any
    container of numbers (a schedule: fires when the count is in it). A period below 1 fires every time.
    """

    name = "unit"

    def __init__(self, value: Union[int, Container[int]]) -> None:
        if isinstance(value, bool) or not (isinstance(value, int) or hasattr(value, "__contains__")):
            raise TypeError(f"{type(self).__name__} takes an int or a container of ints, not {type(value).__name__}")
        self.value = value

    def should_stop(self, step: int) -> bool:
        """Whether this period or schedule fires at ``step`` (1-based count of what is done)."""
        if not isinstance(self.value, int):
            return step in self.value
        if self.value < 1:
            return True
        return step > 0 and step % self.value == 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, TrainUnit) and self.value == other.value

    def __hash__(self) -> int:
        return hash((type(self).__name__, repr(self.value)))


class Batch(TrainUnit):
    """So many batches (optimiser batches per rank, counted from the start of the trial)."""

    name = "batches"


class Epoch(TrainUnit):
    """So many passes over the training data."""

    name = "epochs"


class Record(TrainUnit):
    """So many records; they become batches once the global batch size is known."""

    name = "records"

    def to_batches(self, global_batch_size: int) -> Batch:
        """The same length in batches: rounded down, at least 1."""
        if not isinstance(self.value, int):
            raise errors.InvalidExperimentException("Records takes a number, not a schedule; use Batches for schedules")
        return Batch(max(self.value // global_batch_size, 1))


Batches = Batch
Epochs = Epoch
Records = Record
