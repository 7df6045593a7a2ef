"""The hyperparameters of a config: constants, ranges to search, and maps of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Union

import pydantic

from determined.config import problems
from determined.config.section import AtLeastOne, BrokenRule, Number, Section, Whole, is_number

_COUNT = "Number of points a grid search tries along this range; needed by the grid searcher only."


class Const(Section):
    """The same value in every trial. A bare value or list is short for it."""

    keeps_null: ClassVar[frozenset[str]] = frozenset({"val"})

    type: Literal["const"] = pydantic.Field("const", description="`const`.")
    val: Any = pydantic.Field(description="The value.")

    @classmethod
    def prepare(cls, written: Any) -> Any:
        if isinstance(written, (Mapping, Const)):
            return written
        return {"type": "const", "val": written}

    @property
    def first(self) -> Any:
        return self.val

    @pydantic.model_serializer(mode="plain")
    def _as_written(self) -> Any:
        # A map needs its wrapping, or it would be read back as nested hyperparameters.
        return {"type": "const", "val": self.val} if isinstance(self.val, Mapping) else self.val


class Int(Section):
    """A whole number between two bounds, both included."""

    type: Literal["int"] = pydantic.Field("int", description="`int`.")
    minval: Whole = pydantic.Field(description="Smallest value.")
    maxval: Whole = pydantic.Field(description="Largest value.")
    count: AtLeastOne | None = pydantic.Field(None, description=_COUNT)

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        return _order(written)

    @property
    def first(self) -> int:
        return self.minval


class Double(Section):
    """A number between two bounds."""

    type: Literal["double"] = pydantic.Field("double", description="`double`.")
    minval: Number = pydantic.Field(description="Smallest value.")
    maxval: Number = pydantic.Field(description="Largest value.")
    count: AtLeastOne | None = pydantic.Field(None, description=_COUNT)

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        return _order(written)

    @property
    def first(self) -> float:
        return self.minval


class Log(Section):
    """``base`` to the power of a number between two bounds: evenly spread over orders of magnitude."""

    type: Literal["log"] = pydantic.Field("log", description="`log`.")
    base: Annotated[Number, pydantic.Field(gt=0)] = pydantic.Field(10.0, description="The base; more than 0.")
    minval: Number = pydantic.Field(description="Smallest exponent: -4 with base 10 is 0.0001.")
    maxval: Number = pydantic.Field(description="Largest exponent.")
    count: AtLeastOne | None = pydantic.Field(None, description=_COUNT)

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        yield from _order(written)
        base = written.get("base", 10.0)
        for bound in ("minval", "maxval"):
            if is_number(base) and base > 0 and is_number(written.get(bound)) and not _is_finite(base, written[bound]):
                says = f"is an exponent: {base} to the power of {written[bound]} is no usable number"
                yield BrokenRule((bound,), says)

    @property
    def first(self) -> float:
        return float(self.base**self.minval)


class Categorical(Section):
    """One of the listed values. A range among them, or a map that holds ranges, is searched when it is chosen."""

    type: Literal["categorical"] = pydantic.Field("categorical", description="`categorical`.")
    vals: Annotated[list[Choice], pydantic.Strict(), pydantic.Field(min_length=1)] = pydantic.Field(
        description="The values to choose from, of any kind; at least one. Those that are ranges, or maps with ranges"
        " in them, are hyperparameters that exist only where they were chosen."
    )

    @property
    def first(self) -> Any:
        chosen = self.vals[0]
        if isinstance(chosen, Hyperparameters):
            return _first_values(chosen, (), [])
        return chosen.first if isinstance(chosen, RANGES) else chosen


Range = Union[Int, Double, Log, Categorical]
RANGES: tuple[type[Range], ...] = (Int, Double, Log, Categorical)
_KINDS = {kind.model_fields["type"].default: kind for kind in (Const, *RANGES)}


def _kind(written: Any) -> str | None:
    if isinstance(written, Hyperparameters):
        return "#nested"
    if isinstance(written, (Const, Int, Double, Log, Categorical)):
        return f"#{written.type}"
    if not isinstance(written, Mapping):
        return "#const"
    if "type" not in written:
        return "#nested"
    return f"#{written['type']}" if isinstance(written["type"], str) and written["type"] in _KINDS else None


class Hyperparameters(pydantic.RootModel[dict[str, "Hyperparameter"]], frozen=True):
    """Hyperparameters by name; a map without ``type`` nests more of them."""

    def items(self) -> Iterable[tuple[str, Hyperparameter]]:
        return self.root.items()

    def __getitem__(self, name: str) -> Hyperparameter:
        return self.root[name]

    def __contains__(self, name: object) -> bool:
        return name in self.root

    def __len__(self) -> int:
        return len(self.root)

    def ranges(self) -> Iterator[tuple[tuple[str, ...], Range]]:
        """Every range with its path, nested ones too, in the order they were written."""
        for name, hyperparameter in self.items():
            if isinstance(hyperparameter, Hyperparameters):
                for path, found in hyperparameter.ranges():
                    yield (name, *path), found
            elif isinstance(hyperparameter, RANGES):
                yield (name,), hyperparameter


Hyperparameter = Annotated[
    Union[
        Annotated[Const, pydantic.Tag("#const")],
        Annotated[Int, pydantic.Tag("#int")],
        Annotated[Double, pydantic.Tag("#double")],
        Annotated[Log, pydantic.Tag("#log")],
        Annotated[Categorical, pydantic.Tag("#categorical")],
        Annotated[Hyperparameters, pydantic.Tag("#nested")],
    ],
    pydantic.Discriminator(
        _kind,
        custom_error_type="unknown_choice",
        custom_error_message="unknown type",
        custom_error_context={"field": "type", "choices": list(_KINDS)},
    ),
]


def holds_ranges(value: Any) -> bool:
    """Whether one of a categorical's values is searched itself: a range as it would be written, or a map with one."""
    if isinstance(value, (Hyperparameters, *RANGES)):
        return True
    if not isinstance(value, Mapping):
        return False
    kind = value.get("type")
    if isinstance(kind, str) and kind in _KINDS and ({"minval", "maxval"} <= value.keys() or "vals" in value):
        return True
    return any(holds_ranges(inner) for inner in value.values())


def _kind_of_choice(written: Any) -> str | None:
    return (_kind(written) or "#literal") if holds_ranges(written) else "#literal"


Choice = Annotated[
    Union[
        Annotated[Any, pydantic.Tag("#literal")],
        Annotated[Int, pydantic.Tag("#int")],
        Annotated[Double, pydantic.Tag("#double")],
        Annotated[Log, pydantic.Tag("#log")],
        Annotated[Categorical, pydantic.Tag("#categorical")],
        Annotated[Hyperparameters, pydantic.Tag("#nested")],
    ],
    pydantic.Discriminator(_kind_of_choice),
]
Categorical.model_rebuild()
Hyperparameters.model_rebuild()


def first_values(hyperparameters: Union[Hyperparameters, Mapping[str, Any]]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """One set of values for a run without a search: constants, and of each range its first value.

    Returns the values and one notice for each range, naming the value chosen. Raises
    ``InvalidConfigurationException`` if ``hyperparameters`` was not checked yet and is wrong.
    """
    if not isinstance(hyperparameters, Hyperparameters):
        hyperparameters = checked(hyperparameters)
    notices: list[str] = []
    values = _first_values(hyperparameters, (), notices)
    return values, tuple(notices)


def checked(written: Mapping[str, Any]) -> Hyperparameters:
    """The hyperparameters as written, checked; raises ``InvalidConfigurationException`` listing every mistake."""
    try:
        return Hyperparameters.model_validate(written)
    except pydantic.ValidationError as error:
        raise problems.as_exception(problems.explain(error, written, ("hyperparameters",)), "hyperparameters") from None


def forgotten_types(written: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Paths of maps that look like a range whose ``type`` was forgotten, with a notice for each."""
    if not isinstance(written, Mapping) or "type" in written:
        return
    if {"minval", "maxval"} <= written.keys() or ("vals" in written and len(written) == 1):
        yield path, f"{'.'.join(path)} has no type, so it is a map of constants and nothing is searched"
    for name, value in written.items():
        yield from forgotten_types(value, (*path, str(name)))


def _first_values(hyperparameters: Hyperparameters, path: tuple[str, ...], notices: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, hyperparameter in hyperparameters.items():
        if isinstance(hyperparameter, Hyperparameters):
            values[name] = _first_values(hyperparameter, (*path, name), notices)
            continue
        values[name] = hyperparameter.first
        if not isinstance(hyperparameter, Const):
            full_name = ".".join((*path, name))
            notices.append(
                f"{full_name} = {hyperparameter.first!r}: the first value of its range"
                f" ({hyperparameter.type}), because nothing is searched here"
            )
    return values


def _order(written: Mapping[str, Any]) -> Iterator[BrokenRule]:
    low, high = written.get("minval"), written.get("maxval")
    if is_number(low) and is_number(high) and not low < high:  # type: ignore[operator]
        yield BrokenRule(("minval",), f"must be less than maxval, but {low} is not less than {high}")


def _is_finite(base: float, exponent: float) -> bool:
    try:
        return math.isfinite(base**exponent) and base**exponent > 0
    except OverflowError:
        return False
