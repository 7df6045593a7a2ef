"""A table that stays at the end of the terminal while something goes on; without a terminal, a line for each change."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from determined.cli import render

MOST_ROWS = 12
_REDRAWS_A_SECOND = 4


class Entry(NamedTuple):
    """A row of the table. ``news`` is what is said of it where there is no terminal, when that has changed."""

    key: str
    cells: Mapping[str, Any]
    news: str = ""


class Board:
    """What people watch, on stderr: stdout is for results."""

    def __init__(self, columns: Sequence[str], *, is_live: bool | None = None) -> None:
        self._columns = columns
        self._live: Any = None
        self._said: dict[str, str] = {}
        if is_terminal() if is_live is None else is_live:
            # Rich costs as much to import as everything else here together.
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, highlight=False, markup=False, emoji=False)
            self._live = Live(console=console, refresh_per_second=_REDRAWS_A_SECOND, transient=True)
            self._live.start()

    def show(self, title: str, entries: Sequence[Entry], news: str | None = None) -> None:
        """This is how things are now. ``news`` is what is said of the whole where there is no terminal."""
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(self._page(title, entries), no_wrap=True, overflow="ellipsis"))
            return
        for key, text in (("", title if news is None else news), *((entry.key, entry.news) for entry in entries)):
            if text and self._said.get(key) != text:
                self._said[key] = text
                print(render.plain(text), file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """A line, or several, that stay."""
        clean = render.lines(text)
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text(clean))
        else:
            print(clean, file=sys.stderr, flush=True)

    def print(self, text: str) -> None:
        """A line of a result, on stdout; above the table where both are on one terminal."""
        if self._live is not None and sys.stdout.isatty():
            self.say(text)
        else:
            print(text, flush=True)

    def close(self) -> None:
        """Take the table away; what was said stays."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _page(self, title: str, entries: Sequence[Entry]) -> str:
        width = self._live.console.width
        lines = [render.plain(title)]
        if entries:
            shown = [entry.cells for entry in entries[:MOST_ROWS]]
            lines.append(render.table(shown, self._columns, width=width))
        if len(entries) > MOST_ROWS:
            lines.append(f"+ {len(entries) - MOST_ROWS} more")
        return "\n".join(lines)


def is_terminal() -> bool:
    """Whether somebody watches stderr on something that can move its cursor."""
    if os.environ.get("TERM") == "dumb" or os.environ.get("CI"):
        return False
    return sys.stderr.isatty()
