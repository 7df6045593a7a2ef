"""From what somebody typed to the thing they meant: ids, names, unique starts of names, and guesses."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from determined import errors

if TYPE_CHECKING:
    from determined.client.master import Master
    from determined.wire.views import ExperimentView

Thing = TypeVar("Thing")

_MOST_IDS = 10_000
LATEST = "latest"


def one(what: str, wanted: str, things: Sequence[Thing], names: Callable[[Thing], Sequence[object]]) -> Thing:
    """The one of ``things`` that goes by ``wanted``: exactly, else as the start of a name that no other has."""
    for thing in things:
        if wanted in map(str, names(thing)):
            return thing
    starting = [thing for thing in things if any(str(name).startswith(wanted) for name in names(thing)[1:])]
    if len(starting) == 1:
        return starting[0]
    if starting:
        found = ", ".join(str(names(thing)[1]) for thing in starting[:5])
        raise errors.NotFound(f"{wanted!r} fits {len(starting)} {what}s ({found}); write more of the name")
    known = [str(name) for thing in things for name in names(thing)[1:]]
    close = difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else f"'det {what} list' shows all"
    raise errors.NotFound(f"there is no {what} {wanted!r}; {hint}")


def by_id_and_name(thing: Any) -> Sequence[object]:
    """The names of most things."""
    return (thing.id, thing.name)


def ids(written: Sequence[str]) -> list[int]:
    """Several ids: ``3``, ``3,5``, ``3-7``; each once, in the order they were written."""
    found: dict[int, None] = {}
    for part in (part for text in written for part in text.split(",") if part):
        match = re.fullmatch(r"(\d{1,15})(?:-(\d{1,15}))?", part)
        if match is None:
            raise typer.BadParameter(f"{part!r} is no id; ids are numbers, for example 3 or 3,5 or 3-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first >= _MOST_IDS:
            raise typer.BadParameter(f"{part} is {last - first + 1:,} ids; at most {_MOST_IDS:,} at once")
        found.update(dict.fromkeys(range(first, last + 1)))
    return list(found)


def experiments(master: Master, written: Sequence[str]) -> list[int]:
    """The ids of several experiments, by ids as in ``ids``, by name, or ``latest``."""
    found: dict[int, None] = {}
    for text in written:
        found.update(dict.fromkeys(ids([text]) if text[:1].isdigit() else [experiment(master, text).id]))
    return list(found)


def experiment(master: Master, wanted: str) -> ExperimentView:
    """An experiment by its id, ``latest``, its name, or the start of a name that no other has."""
    if wanted.isdecimal():
        return master.experiment(int(wanted))
    if wanted == LATEST:
        newest = master.experiments(limit=1).items
        if not newest:
            raise errors.NotFound("there is no experiment yet; 'det experiment create' makes one")
        return newest[0]
    found = master.experiments(name=wanted, limit=200).items
    exact = [each for each in found if each.name == wanted]
    if len(exact) > 1:
        shown = ", ".join(str(each.id) for each in exact[:8])
        raise errors.NotFound(f"{len(exact)} experiments are called {wanted!r} ({shown}); give the id of one")
    return one("experiment", wanted, found or master.experiments(limit=200).items, by_id_and_name)
