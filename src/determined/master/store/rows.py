"""From a row of a result to its record."""

from __future__ import annotations

import dataclasses
import enum
import functools
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import sqlalchemy as sa
from typing_extensions import Unpack

from determined.master import records

R = TypeVar("R")


def one(kind: type[R], result: sa.CursorResult[Unpack[tuple[Any, ...]]]) -> R | None:
    """The record of the only row, or None if there is no row."""
    row = result.one_or_none()
    read: Callable[[Any], R] = _reader(kind)  # type: ignore[arg-type]
    return None if row is None else read(row)


def several(kind: type[R], result: sa.CursorResult[Unpack[tuple[Any, ...]]]) -> list[R]:
    """The records of all rows, in their order."""
    read: Callable[[Any], R] = _reader(kind)  # type: ignore[arg-type]
    return [*map(read, result)]


def values(record: Any) -> dict[str, Any]:
    """A record as the values of its row."""
    return {
        field.name: value.value if isinstance(value := getattr(record, field.name), enum.Enum) else value
        for field in dataclasses.fields(record)
    }


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of columns, enums as they are stored."""
    return {name: value.value if isinstance(value, enum.Enum) else value for name, value in values.items()}


@functools.cache
def _reader(kind: type[Any]) -> Callable[[Any], Any]:
    """What makes a record of a row that has its columns in the record's order, or more of them."""
    hints = typing.get_type_hints(kind, vars(records))
    enums = [(name, found) for name, hint in hints.items() if (found := _enum_in(hint)) is not None]

    def read(row: Any) -> Any:
        mapping = dict(row._mapping)
        for name, kind_of_value in enums:
            if mapping[name] is not None:
                mapping[name] = kind_of_value(mapping[name])
        return kind(**{name: mapping[name] for name in hints})

    return read


def _enum_in(hint: Any) -> type[enum.Enum] | None:
    for candidate in (hint, *typing.get_args(hint)):
        if isinstance(candidate, type) and issubclass(candidate, enum.Enum):
            return candidate
    return None
