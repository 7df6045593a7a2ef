"""Outcome: how an allocation ended, by name; and Ending, the note a node process leaves about it."""

from __future__ import annotations

import enum
import json
import os
import pathlib

import pydantic


class Outcome(str, enum.Enum):
    """How an allocation ended. Nobody needs to read meaning into exit codes."""

    COMPLETED = "completed"
    STOPPED = "stopped"  # as ordered: paused, preempted, interrupted
    INVALID_HP = "invalid_hp"
    FAILED = "failed"  # by its own fault
    OUT_OF_MEMORY = "out_of_memory"
    LOST = "lost"  # through no fault of its own: a machine or its peers on one went away


class Ending(pydantic.BaseModel, frozen=True, extra="forbid"):
    """What a node process saw of the end of its ranks; ``culprit`` is the rank that failed first.

    ``detail`` is what the user's own code said of it: its traceback, or the last lines it printed. ``lines`` is how
    many lines each spool has, ``policies`` the names of the log policies whose patterns were found.
    """

    outcome: Outcome
    exit_code: int
    reason: str = ""
    culprit: int | None = None
    restarts: int = 0
    detail: str = ""
    lines: dict[str, int] = {}
    policies: list[str] = []

    def write(self, path: pathlib.Path) -> None:
        """Write the note whole or not at all."""
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_text(self.model_dump_json())
        unfinished.replace(path)

    @staticmethod
    def read(path: pathlib.Path) -> Ending:
        return Ending.model_validate(json.loads(path.read_text()))
