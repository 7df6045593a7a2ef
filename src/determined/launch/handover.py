"""Handing a script over to another project's launcher: what horovod.py and deepspeed.py have in common."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
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
    words: Callable[[Job], list[str]]
    environment: Mapping[str, str] = {}

    @property
    def usage(self) -> str:
        """What --help prints."""
        return (
            f"usage: python -m determined.launch.{self.package} [OPTIONS --] SCRIPT [ARGUMENTS...]\n\n"
            f"Starts the script with {self.name}'s own launcher, {self.program}, one rank per GPU, else one, and marks "
            f"each line by its rank. OPTIONS are those of {self.program}.\n"
        )


def run(launcher: Launcher, arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Become the other launcher; returns only when that cannot be: 2 for a usage error, 1 when it is not installed."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(launcher.usage, end="")
        return 0
    try:
        job = understand(launcher, arguments, environ)
        program = find(launcher)
    except UsageError as error:
        print(f"error: {error}\n{launcher.usage.splitlines()[0]}", file=sys.stderr)
        return 2
    except errors.DeterminedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    os.execve(program, [program, *launcher.words(job)], {**environ, **launcher.environment})


def understand(launcher: Launcher, arguments: Sequence[str], environ: Mapping[str, str]) -> Job:
    """Read a command line; raises UsageError with one clear sentence."""
    options, tail = _split(launcher, list(arguments))
    wanted = torch_distributed.understand(["--", *tail])
    if wanted.trial is not None:
        raise UsageError(
            f"a PyTorchTrial is not spread by {launcher.name} but by torch itself: start it with "
            f"`python -m determined.launch.torch_distributed --trial {wanted.trial}`"
        )
    slots = torch_distributed.make_spec(wanted, environ).slots
    marked = [sys.executable, "-m", "determined.launch.wrap_rank", launcher.rank_variables, *wanted.command]
    return Job(options, slots, marked)


def find(launcher: Launcher) -> str:
    """The program's path; raises DeterminedError naming what to install."""
    if importlib.util.find_spec(launcher.package) is None:
        raise errors.DeterminedError(
            f"{launcher.name} is not installed; install it with: {launcher.install} (or start the script with "
            "`python -m determined.launch.torch_distributed`, which needs nothing more)"
        )
    beside = pathlib.Path(sys.executable).with_name(launcher.program)
    program = str(beside) if beside.is_file() else shutil.which(launcher.program)
    if program is None:
        raise errors.DeterminedError(
            f"{launcher.name} is installed without its program {launcher.program}; install it again with: "
            f"{launcher.install}"
        )
    return program


def _split(launcher: Launcher, words: list[str]) -> tuple[list[str], list[str]]:
    """The other launcher's options, and what is left: the script and its arguments."""
    if not words or not words[0].startswith("-") or words[0].startswith("--trial") or words[0] == "-m":
        return [], words
    if "--" not in words:
        raise UsageError(f"{words[0]} is an option for {launcher.program}: write -- between its options and the script")
    end = words.index("--")
    return words[:end], words[end + 1 :]
