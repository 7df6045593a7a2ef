"""Showing logs: of one task or several, as they are or as they come."""

from __future__ import annotations

import datetime
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from determined import errors
from determined.cli import render

if TYPE_CHECKING:
    from determined.client.master import Master
    from determined.wire.views import LogLine

DETACHED = 130
_PAGE = 1000
_PAUSE_SECONDS = 1.0
_AGO = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Wanted(NamedTuple):
    """Which lines: what the options of a `logs` verb say."""

    head: int | None = None
    tail: int | None = None
    rank: Sequence[int] | None = None
    level: str | None = None
    search: str | None = None
    regex: str | None = None
    since: str | None = None
    until: str | None = None
    stdtype: Sequence[str] | None = None

    def filters(self) -> dict[str, Any]:
        """The part of it that the master goes by."""
        chosen = {
            "rank": self.rank or None,
            "level": self.level.upper() if self.level else None,
            "search": self.search,
            "regex": self.regex,
            "since": moment(self.since) if self.since else None,
            "until": moment(self.until) if self.until else None,
            "stdtype": self.stdtype or None,
        }
        return {name: value for name, value in chosen.items() if value is not None}


def show(
    master: Master,
    task_id: str,
    wanted: Wanted,
    form: render.Format = render.Format.TABLE,
    prefix: str = "",
    write: Callable[[str], None] | None = None,
) -> None:
    """Print the lines there are."""
    for line in read(master, task_id, wanted):
        show_line(line, form, prefix, write)


def follow(
    master: Master,
    task_id: str,
    wanted: Wanted,
    form: render.Format = render.Format.TABLE,
    write: Callable[[str], None] | None = None,
) -> None:
    """Print the lines there are and those to come, until the task ends. A master that goes away is waited for."""
    filters = wanted.filters()
    # `head` says where to end, which following does not.
    start: dict[str, Any] = {"tail": wanted.tail} if wanted.tail else {}
    is_away = False
    while True:
        try:
            for line in master.follow_task_logs(task_id, **start, **filters):
                start, is_away = {"after": line.id}, False
                show_line(line, form, "", write)
            return
        except errors.MasterUnreachable as error:
            if not is_away:
                print(f"det: {render.plain(error)}; waiting for it", file=sys.stderr, flush=True)
            is_away = True
            time.sleep(_PAUSE_SECONDS)


def read(master: Master, task_id: str, wanted: Wanted) -> Iterator[LogLine]:
    """The lines there are, fetched page by page."""
    filters = wanted.filters()
    if wanted.tail:
        yield from master.task_logs(task_id, tail=wanted.tail, **filters)
        return
    left, after = wanted.head, None
    while left is None or left > 0:
        limit = _PAGE if left is None else min(left, _PAGE)
        page = master.task_logs(task_id, after=after, limit=limit, **filters)
        yield from page
        if len(page) < limit:
            return
        after, left = page[-1].id, None if left is None else left - len(page)


def detached(what: str, how_to_return: str, how_to_stop: str) -> typer.Exit:
    """What Ctrl-C means while something is only looked at."""
    print(f"\n{what} keeps running. Come back: {how_to_return}. Stop it: {how_to_stop}.", file=sys.stderr)
    return typer.Exit(DETACHED)


def moment(text: str) -> float:
    """Seconds since 1970, of "10m" (so long ago) or of a date and time (of this machine's zone, unless it says one)."""
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if ago is not None:
        return time.time() - float(ago[1]) * _AGO[ago[2]]
    try:
        return datetime.datetime.fromisoformat(text.strip().replace("Z", "+00:00")).timestamp()
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time; write 10m, 2h, 3d, or 2026-11-19T08:30") from None


def as_row(line: LogLine) -> Mapping[str, Any]:
    return line.model_dump()


def text_of(line: LogLine, prefix: str = "") -> str:
    """A line as people read it: when, which rank if there are several, what."""
    clock = datetime.datetime.fromtimestamp(line.time).strftime("%H:%M:%S")
    rank = f" [rank={line.rank}]" if line.rank else ""
    level = f" {line.level}:" if line.level and line.level.upper() not in ("INFO", "DEBUG") else ""
    return f"{prefix}{clock}{rank}{level} {render.log_line(line.text)}"


def show_line(line: LogLine, form: render.Format, prefix: str = "", write: Callable[[str], None] | None = None) -> None:
    """Print a line as it is wanted."""
    if form in (render.Format.JSON, render.Format.JSONL):
        render.document(as_row(line), render.Format.JSONL)
    elif write is not None:
        write(text_of(line, prefix))
    else:
        print(text_of(line, prefix), flush=True)
