"""The base of every part of a config: frozen, unknown keys refused, and every broken rule reported at once."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

import pydantic
from pydantic_core import InitErrorDetails, PydanticCustomError
from typing_extensions import Self

Path = tuple[Any, ...]


class BrokenRule(NamedTuple):
    """A rule between fields that what was written breaks: where, and how the sentence about it goes on."""

    path: Path
    says: str


class Section(pydantic.BaseModel, frozen=True, extra="forbid"):
    """One map of a config.

    A key whose value is null counts as absent. A subclass states rules between its fields in ``broken_rules``, over
    what was written: so that they are checked, and reported, even where single fields are wrong too.
    """

    keeps_null: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def prepare(cls, written: Any) -> Any:
        """What was written in a shorter form, as the map it stands for."""
        return written

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        """The rules between fields that ``written`` breaks; any of its values may be wrong in other ways too."""
        return ()

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _find_every_mistake(cls, written: Any, validate: pydantic.ModelWrapValidatorHandler[Self]) -> Self:
        written = cls.prepare(written)
        if not isinstance(written, Mapping):
            return validate(written)
        present = {key: value for key, value in written.items() if value is not None or key in cls.keeps_null}
        known = {key: value for key, value in present.items() if key in cls.model_fields}
        mistakes = [
            mistake("unknown_key", "is not a field", (key,), None, suggestion=closest(str(key), cls.model_fields))
            for key in written
            if key not in cls.model_fields
        ]
        mistakes += [mistake("rule", broken.says, broken.path, None) for broken in cls.broken_rules(present)]
        try:
            section = validate(known)
        except pydantic.ValidationError as error:
            if not mistakes:
                raise
            for found in error.errors(include_url=False):
                context = {**found.get("ctx", {})}
                context.pop("says", None)
                mistakes.append(mistake(found["type"], found["msg"], found["loc"], found["input"], **context))
        if mistakes:
            raise pydantic.ValidationError.from_exception_data(cls.__name__, mistakes)
        return section


def mistake(kind: str, says: str, path: Path, value: Any, **context: Any) -> InitErrorDetails:
    """One entry of a ``ValidationError``."""
    # The text is passed as a value, so that braces in it are not taken for a template's.
    context = {**context, "says": says}
    error = PydanticCustomError(kind, "{says}", context)
    return InitErrorDetails(type=error, loc=path, input=value)


def closest(word: str, words: Iterable[str]) -> str | None:
    """The one of ``words`` that ``word`` was probably meant to be."""
    folded = {candidate.lower().replace("-", "_"): candidate for candidate in words}
    word = word.lower().replace("-", "_")
    matches = difflib.get_close_matches(word, folded, n=1, cutoff=0.65)
    # slots_per_trial for slots, and the other way round.
    matches = matches or [name for name in folded if name.startswith(f"{word}_") or word.startswith(f"{name}_")]
    return folded[matches[0]] if matches else None


def is_number(value: Any) -> bool:
    """Whether a written value is a finite number (true and false are not)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _as_whole(value: Any) -> Any:
    # 1e3 is a float to YAML; people mean 1000.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Whole = Annotated[int, pydantic.Strict(), pydantic.BeforeValidator(_as_whole)]
NotNegative = Annotated[Whole, pydantic.Field(ge=0)]
AtLeastOne = Annotated[Whole, pydantic.Field(ge=1)]
Number = Annotated[float, pydantic.Strict(), pydantic.Field(allow_inf_nan=False)]
Flag = Annotated[bool, pydantic.Strict()]
Text = Annotated[str, pydantic.Strict()]
Name = Annotated[str, pydantic.Strict(), pydantic.Field(min_length=1)]
Texts = Annotated[tuple[Text, ...], pydantic.Strict(), pydantic.BeforeValidator(_as_tuple)]
FreeMap = dict[str, Any]
