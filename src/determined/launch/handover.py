"""Handing a script over to another project's launcher: what horovod.py and deepspeed.py have in common."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from determined import errors
from determined.launch import torch_distributed
from determined.launch.torch_distributed import UsageError


class Job(NamedTuple):
    """A command line for another launcher, understood: its own options, how many ranks, and what each runs."""

    options: list[str]
    slots: int
    command: list[str]


class Launcher(NamedTuple):
    """Another project's launcher: its package, its program, and how to say a job to it."""

    name: str
    package: str
    program: str
    install: str
    rank_variables: str
    environment: Mapping[str, str] = {}

    @property
    def usage(self) -> str:
        """What --help prints."""
        return (
            f"usage: python -m determined.launch.{self.package} [OPTIONS OF {self.program} --] SCRIPT [ARGUMENTS...]\n\n"
            f"Starts the script with {self.name}'s own launcher, one rank per GPU, else one; lines are marked by rank.\n"
        )

    def read(self, arguments: Sequence[str]) -> Job:
        """Understand a command line; raises UsageError with one clear sentence."""
        words = list(arguments)
        options, tail = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else ([], words)
        if not options and tail and tail[0].startswith("-") and not tail[0].startswith("--trial"):
            raise UsageError(f"{tail[0]} is an option of {self.program}: write -- between its options and the script")
        wanted = torch_distributed.understand(["--", *tail])
        if wanted.trial is not None:
            raise UsageError(
                f"a PyTorchTrial is not spread by {self.name} but by torch itself: start it with "
                f"`python -m determined.launch.torch_distributed --trial {wanted.trial}`"
            )
        slots = torch_distributed.make_spec(wanted, os.environ).slots
        marked = [sys.executable, "-m", "determined.launch.wrap_rank", self.rank_variables, *wanted.command]
        return Job(options, slots, marked)

    def find(self) -> str:
        """The program's path; raises DeterminedError naming what to install."""
        if importlib.util.find_spec(self.package) is None:
            raise errors.DeterminedError(
                f"{self.name} is not installed; install it with: {self.install} (or start the script with "
                "`python -m determined.launch.torch_distributed`, which needs nothing more)"
            )
        beside = pathlib.Path(sys.executable).with_name(self.program)
        program = str(beside) if beside.is_file() else shutil.which(self.program)
        if program is None:
            raise errors.DeterminedError(
                f"{self.name} is installed without its launcher {self.program}; install it again with: {self.install}"
            )
        return program


def run(launcher: Launcher, arguments: Sequence[str], words: "Words") -> int:
    """Become the other launcher; returns only when that cannot be: 2 for a usage error, 1 when it is not installed."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(launcher.usage, end="")
        return 0
    try:
        job = launcher.read(arguments)
        program = launcher.find()
    except UsageError as error:
        print(f"error: {error}\n{launcher.usage.splitlines()[0]}", file=sys.stderr)
        return 2
    except errors.DeterminedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    os.execve(program, [program, *words(job)], {**os.environ, **launcher.environment})
