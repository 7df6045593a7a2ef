"""Owning a process tree: children that die with us, orphans that come to us, and nobody left behind."""

from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Sequence

import psutil

from determined.worker import sweeper
from determined.worker.sweepers import OwnSweeper, SharedSweeper, Sweeper

_LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True) if _LINUX else None

# Two, so that a kill of one at the very moment the node process is killed still leaves one.
SWEEPERS = 2


def become_subreaper() -> None:
    """From now on orphans among our descendants become our children, where we can find and end them."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def dying_with_parent() -> Callable[[], None]:
    """What a child runs before its program, so that it is killed when the thread that started it ends."""
    parent = os.getpid()
    return lambda: dying_with(parent)


def dying_with(parent: int) -> None:
    """From now on be killed when the parent ends; end now if it has already."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # Too late: the parent was gone before we asked.


def name_process(name: str) -> None:
    """What lists of processes call this one."""
    if _libc is not None:
        _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def open_end(pid: int) -> int | None:
    """A descriptor that becomes readable when a process ends; None where the system has none."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except OSError:
        return None


def signal_process(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def kill_group(pid: int) -> None:
    """Kill a process and its process group, which it leads."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def state_of(pid: int) -> str:
    """The state letter of a process: R running, S sleeping, D in the kernel, T stopped; empty if it is gone."""
    try:
        status = psutil.Process(pid).status()
    except psutil.Error:
        return ""
    return {
        psutil.STATUS_RUNNING: "R",
        psutil.STATUS_SLEEPING: "S",
        psutil.STATUS_DISK_SLEEP: "D",
        psutil.STATUS_STOPPED: "T",
        psutil.STATUS_TRACING_STOP: "T",
        psutil.STATUS_ZOMBIE: "",
        psutil.STATUS_DEAD: "",
    }.get(status, "S")


def children_of(pid: int) -> list[int]:
    """The living children of a process."""
    return [child for child in _children_of(pid) if state_of(child)]


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, so that sending it does not end the process."""
    try:
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    masks = [line.split()[1] for line in text.splitlines() if line.startswith("SigCgt:")]
    return bool(masks) and bool(int(masks[0], 16) >> (number - 1) & 1)


class Household:
    """Everything that one node process started, and what starts from that: it can be ended as a whole.

    Must live in the thread that starts the ranks, since they die with that thread.
    """

    def __init__(
        self, marker: str, folder: pathlib.Path, lock: int | None = None, services: Sequence[str] = ()
    ) -> None:
        self.marker = marker
        self._folder = folder
        # Held by the sweepers too: while it is, there may be something left to sweep.
        self._kept = [] if lock is None else [lock]
        self._services = list(services)
        self._sessions: set[int] = set()
        self._sweepers: list[Sweeper] = []
        self._is_swept = False
        self._not_ours = set(_descendants())
        become_subreaper()

    def watch(self, sessions: set[int]) -> None:
        """These processes lead the sessions to end if we go."""
        self._sessions = sessions
        self.tend()
        for each in self._sweepers:
            each.watch(sessions)

    def tend(self) -> None:
        """See that there are sweepers: start them, and replace those that were killed."""
        self._is_swept = False
        for each in [each for each in self._sweepers if not each.is_alive]:
            self._sweepers.remove(each)
            each.close()
        while len(self._sweepers) < SWEEPERS:
            self._sweepers.append(self._another_sweeper())
            self._sweepers[-1].watch(self._sessions)

    def reap(self, known: set[int]) -> None:
        """Collect dead orphans, which are our children now; not those whose owner waits for them."""
        known = known | self._spared
        for pid in _children():
            if pid not in known and state_of(pid) == "":
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass

    def sweep(self, patience_seconds: float) -> list[int]:
        """Kill everything that is left, the sweepers apart. Returns what would not die."""
        if self._is_swept:
            return []  # Nothing was started since.
        deadline = time.monotonic() + patience_seconds
        while True:
            left = sweeper.sweep(self.marker, self._sessions, max(deadline - time.monotonic(), 0.0))
            # What shed both session and environment is found as a descendant: orphans are our children.
            strays = [pid for pid in _descendants() if pid not in self._spared and state_of(pid)]
            if not strays or time.monotonic() > deadline:
                self._is_swept = not strays and not left
                return sorted({*left, *strays})
            for pid in strays:
                signal_process(pid, signal.SIGKILL)
            time.sleep(0.005)

    def dissolve(self) -> None:
        """Send the sweepers home: nothing is left to sweep."""
        for each in self._sweepers:
            each.dismiss()
        for each in self._sweepers:
            each.close()
        self._sweepers.clear()

    @property
    def _spared(self) -> set[int]:
        return self._not_ours | {each.pid for each in self._sweepers if each.pid is not None}

    def _another_sweeper(self) -> Sweeper:
        while self._services:
            # One that does not answer is not asked again, and each once: two sweepers must not end at one blow.
            try:
                return SharedSweeper(self._services.pop(), self.marker, self._folder, self._kept)
            except OSError:
                continue
        return OwnSweeper(self.marker, self._folder, self._kept)


def _children() -> list[int]:
    return _children_of(os.getpid())


def _descendants() -> list[int]:
    found = _children()
    for pid in found:
        found.extend(_children_of(pid))
    return found


def _children_of(pid: int) -> list[int]:
    """Those of all threads of a process, from the system's own list where it has one."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
        return found
    except OSError:
        pass
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []
