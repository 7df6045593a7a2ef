"""From the entrypoint of a config to a command: a class to train, a line for the shell, or a list of words."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

_TRIAL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_PYTHONS = ("python", "python3")
# Whatever the shell would do something about. A word with none of these is the same word without a shell.
_SHELL_SYNTAX = re.compile(r"[^\w\s@%+=:,./'\"-]|\\", re.ASCII)


class Command(NamedTuple):
    """What a node process starts, and whether that is a line for a shell, whose children do the work."""

    words: list[str]
    is_shell: bool = False


def understand(entrypoint: Sequence[str], python: str) -> Command:
    """The command for an entrypoint; ``python`` as its first word means the interpreter given here."""
    words = list(entrypoint)
    if len(words) == 1 and _TRIAL.fullmatch(words[0]):
        return Command([python, "-m", "determined.pytorch", words[0]])
    if len(words) == 3 and os.path.basename(words[0]) in ("sh", "bash") and words[1] == "-c":
        simple = _without_shell(words[2])
        if simple is None:
            return Command(words, is_shell=True)
        words = simple
    if words[0] in _PYTHONS:
        words[0] = python
    return Command(words)


def _without_shell(line: str) -> list[str] | None:
    """A plain `python …` line as words; None for anything a shell is needed for."""
    if _SHELL_SYNTAX.search(line) or "\n" in line.strip():
        return None
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    return words if words and words[0] in _PYTHONS and len(words) > 1 else None
