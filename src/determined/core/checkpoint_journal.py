"""The journal of a run's checkpoints: what was published and resumed, in order; best, latest and what may go follow.

An entry is written before its checkpoint appears, so that a checkpoint without one cannot be; an entry whose
checkpoint is not there is void. Which one is the latest is worked out, never stored.
"""

from __future__ import annotations

import errno
import json
import math
import os
import pathlib
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple


class Retention(NamedTuple):
    """How many checkpoints stay: the best by a validation metric, and the latest."""

    best: int = 1
    latest: int = 1
    metric: str | None = None
    smaller_is_better: bool = True


class Entry(NamedTuple):
    """One published checkpoint. ``value`` is the validation metric at its step, once known."""

    storage_id: str
    steps_completed: int | None
    time: float
    value: float | None = None


class Journal:
    """A run's checkpoints in the order in which they count: one that was resumed counts as new."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        # Checkpoints on the line of training that goes on; those past a rewind are settled for good.
        self._live: set[str] = set()
        try:
            lines = path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            lines = []
        for line in lines:
            try:
                self._replay(json.loads(line))
            except (ValueError, KeyError):
                continue  # torn by a crash, so its checkpoint never appeared

    def publish(self, storage_id: str, steps_completed: int | None, time: float, value: float | None) -> None:
        """Note a checkpoint that is about to appear."""
        self._note({"checkpoint": storage_id, "steps_completed": steps_completed, "time": time, "value": _plain(value)})

    def resume(self, storage_id: str, steps_completed: int, time: float) -> None:
        """Note that training goes on from a checkpoint: later steps so far are no longer on its line."""
        self._note({"resumed": storage_id, "steps_completed": steps_completed, "time": time})

    def learn(self, values: Mapping[int, float]) -> None:
        """Tell which validation value was seen after which number of steps."""
        with self._lock:
            for at, entry in enumerate(self._entries):
                steps = entry.steps_completed
                if steps is not None and entry.storage_id in self._live and steps in values:
                    self._entries[at] = entry._replace(value=values[steps])

    def entries(self, there: Collection[str]) -> list[Entry]:
        """Those of the checkpoints that are there, the latest last."""
        with self._lock:
            return [entry for entry in self._entries if entry.storage_id in there]

    def knows(self, storage_id: str) -> bool:
        with self._lock:
            return any(entry.storage_id == storage_id for entry in self._entries)

    def _note(self, event: dict[str, Any]) -> None:
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line  # a crash tore the last line
                if os.write(descriptor, line) != len(line):
                    os.ftruncate(descriptor, size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._replay(event)

    def _replay(self, event: dict[str, Any]) -> None:
        if "checkpoint" in event:
            value = event["value"]
            self._entries.append(
                Entry(
                    event["checkpoint"],
                    event["steps_completed"],
                    event["time"],
                    None if value is None else float(value),
                )
            )
            self._live.add(event["checkpoint"])
        elif "resumed" in event:
            cut = event["steps_completed"]
            self._live = {
                entry.storage_id
                for entry in self._entries
                if entry.storage_id in self._live and (entry.steps_completed or 0) <= cut
            }
            # It becomes the latest: what came after it was given up.
            resumed = [entry for entry in self._entries if entry.storage_id == event["resumed"]]
            if resumed:
                self._entries.remove(resumed[0])
                self._entries.append(resumed[0]._replace(time=event["time"]))
                self._live.add(event["resumed"])


def best(entries: Collection[Entry], smaller_is_better: bool) -> list[Entry]:
    """Those with a value, the best first; of equals the earlier. NaN never wins."""
    rated = [entry for entry in entries if entry.value is not None]
    return sorted(rated, key=lambda entry: _badness(entry.value, smaller_is_better))


def is_better(new: float, old: float | None, smaller_is_better: bool) -> bool:
    """Whether a validation value beats another strictly, or is the first."""
    return old is None or _badness(new, smaller_is_better) < _badness(old, smaller_is_better)


def to_delete(entries: Sequence[Entry], retention: Retention) -> list[Entry]:
    """What a policy no longer keeps. The latest always stays: without it nothing could be resumed."""
    kept = {entry.storage_id for entry in entries[-max(retention.latest, 1) :]}
    kept.update(entry.storage_id for entry in best(entries, retention.smaller_is_better)[: retention.best])
    return [entry for entry in entries if entry.storage_id not in kept]


def _badness(value: float | None, smaller_is_better: bool) -> tuple[bool, float]:
    if value is None or math.isnan(value):
        return True, 0.0
    return False, value if smaller_is_better else -value


def _plain(value: float | None) -> float | None:
    return None if value is None else float(value)
