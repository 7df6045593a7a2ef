"""The folder of an allocation on one machine: what a pool and the node process it starts leave there for each other."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pathlib


@dataclasses.dataclass(frozen=True)
class AllocationFolder:
    """Names, and the lock by which anybody can tell whether the node process lives.

    The pool makes the lock and hands it over, so that there is no moment between the two; it ends with the node
    process and with its sweepers, so that whoever gets it knows that nothing of the allocation is left.
    """

    path: pathlib.Path

    @property
    def spec(self) -> pathlib.Path:
        """The NodeSpec."""
        return self.path / "spec.json"

    @property
    def started(self) -> pathlib.Path:
        """Exists once a node process was, or was about to be, started: it is never started again."""
        return self.path / "started"

    @property
    def pid(self) -> pathlib.Path:
        """The node process's number, written by itself."""
        return self.path / "pid"

    @property
    def outcome(self) -> pathlib.Path:
        """The Ending; there once no rank is left."""
        return self.path / "outcome.json"

    @property
    def stop(self) -> pathlib.Path:
        """How long the processes may take to stop, for the node process to read when it gets SIGTERM."""
        return self.path / "stop.json"

    @property
    def code(self) -> pathlib.Path:
        """The copy of the submitted code."""
        return self.path / "code"

    @property
    def chief_spool(self) -> pathlib.Path:
        return self.path / "chief.spool"

    @property
    def node_spool(self) -> pathlib.Path:
        return self.path / "node.spool"

    @property
    def output(self) -> pathlib.Path:
        """What the node process itself prints; for people, when it would not start."""
        return self.path / "node.out"

    @property
    def scratch(self) -> pathlib.Path:
        return self.path / "scratch"

    def take_lock(self) -> int | None:
        """The lock, to be handed over or closed; None while a node process, or its sweeper, lives."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def is_locked(self) -> bool:
        """Whether a node process, or its sweeper, lives."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def read_pid(self) -> int | None:
        """The node process's number; None before it has begun. Only good while the lock is held."""
        try:
            return int(self.pid.read_text())
        except (OSError, ValueError):
            return None

    def write_stop(self, grace_seconds: float) -> None:
        """Say how long the ranks may take; a signal must follow."""
        unfinished = self.path / ".stop.json"
        unfinished.write_text(json.dumps({"grace_seconds": grace_seconds}))
        unfinished.replace(self.stop)

    def read_stop(self) -> float | None:
        """How long the ranks may take to stop, if anybody said."""
        try:
            return float(json.loads(self.stop.read_bytes())["grace_seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
