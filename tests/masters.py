"""Masters that tests start: each in a folder of its own, and gone afterwards with all it started."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator

import psutil

_PATIENCE_SECONDS = 20.0


@contextlib.contextmanager
def stopped_afterwards(folder: pathlib.Path) -> Iterator[None]:
    """Whatever master serves from this folder when the block ends is ended, and every process that works in it."""
    try:
        yield
    finally:
        end(folder)


def pid_of(folder: pathlib.Path) -> int:
    """The process of the master that says it serves from this folder."""
    return int(json.loads((folder / "master.json").read_bytes())["pid"])


def end(folder: pathlib.Path) -> None:
    """End the master of a folder, its starters and its node processes; they are known by the folder they name."""
    if not folder.exists():
        return
    left = processes_of(folder)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=_PATIENCE_SECONDS)


def processes_of(folder: pathlib.Path) -> list[psutil.Process]:
    """Every living process that was started for this folder, by its command line or its environment."""
    name = str(folder)
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == psutil.Process().pid:
                continue
            if any(name in word for word in process.cmdline()) or _is_told_of(process, name):
                found.append(process)
    return found


def _is_told_of(process: psutil.Process, name: str) -> bool:
    environment = process.environ()
    return any(name in environment.get(variable, "") for variable in ("DET_MASTER_DIR", "DET_NODE_SPEC"))
