"""What every measurement is told, and what each gives back."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from bench.contenders import ALL, Contender
from bench.processes import RESULTS
from bench.results import Row, Table


@dataclasses.dataclass(frozen=True)
class Options:
    """``chunks`` is at most how many to time of each case, 0 for as many as the case says."""

    is_quick: bool = False
    rounds: int = 3
    chunks: int = 0
    contenders: Sequence[Contender] = tuple(ALL.values())
    cases: Sequence[str] = ()
    is_hour: bool = False  # watch a master's memory for an hour, not for a minute
    results: pathlib.Path = RESULTS  # JSON files, and run folders while they are measured

    def with_contenders(self, chosen: Sequence[Contender]) -> Options:
        return dataclasses.replace(self, contenders=chosen)

    def say(self, text: str) -> None:
        """One line of progress."""
        print(text, file=sys.stderr, flush=True)


@dataclasses.dataclass
class Finding:
    """Lines of the Speed table, other tables, and every single time for the JSON file."""

    rows: list[Row]
    tables: list[Table]
    details: Any
