"""Lengths and periods as a config writes them: ``{epochs: 3}``, or a bare number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Union

import pydantic

from determined.config import units
from determined.config.section import AtLeastOne, BrokenRule, NotNegative, Section

UNITS: dict[str, type[units.TrainUnit]] = {"batches": units.Batch, "records": units.Record, "epochs": units.Epoch}


class Length(Section):
    """So many batches, records or epochs: exactly one of them."""

    batches: NotNegative | None = pydantic.Field(None, description="Number of batches.")
    records: NotNegative | None = pydantic.Field(
        None, description="Number of records; divided by the hyperparameter global_batch_size it gives batches."
    )
    epochs: NotNegative | None = pydantic.Field(None, description="Number of passes over the training data.")

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        if len(written) != 1:
            yield BrokenRule((), "needs exactly one of batches, records or epochs, for example {epochs: 3}")

    @property
    def unit(self) -> str:
        """``batches``, ``records`` or ``epochs``."""
        return next(name for name in UNITS if getattr(self, name) is not None)

    @property
    def value(self) -> int:
        """How many of them."""
        return int(getattr(self, self.unit))

    def as_unit(self) -> units.TrainUnit:
        """The same as a unit of the training API."""
        return UNITS[self.unit](self.value)

    def as_period(self) -> units.TrainUnit | None:
        """The same as a period of the training API; 0 means never, which is None."""
        return self.as_unit() if self.value else None

    @pydantic.model_serializer(mode="plain")
    def _as_written(self) -> dict[str, int]:
        return {self.unit: self.value}


def _kind(written: Any) -> str:
    return "#bare" if isinstance(written, (int, float)) and not isinstance(written, bool) else "#length"


LengthOrBare = Annotated[
    Union[Annotated[Length, pydantic.Tag("#length")], Annotated[AtLeastOne, pydantic.Tag("#bare")]],
    pydantic.Discriminator(_kind),
]


def as_unit(length: Union[Length, int, None], unit: type[units.TrainUnit] = units.Batch) -> units.TrainUnit | None:
    """A configured length as a unit of the training API; a bare number counts in ``unit``."""
    if length is None:
        return None
    return length.as_unit() if isinstance(length, Length) else unit(length)
