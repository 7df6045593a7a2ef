"""The watchdog: notices that a rank makes no progress, has every rank write down where it is, and names the culprit."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import signal
import threading
import time
from collections.abc import Mapping, Sequence

from determined.core import beats
from determined.worker import processes

_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line \d+ in (?P<function>.*)')
# Where ranks stand that wait for another one. Backward passes exchange gradients.
_WAITING = (
    ("/torch/distributed/", ""),
    ("/torch/nn/parallel/distributed.py", ""),
    ("/torch/autograd/graph.py", "_engine_run_backward"),
    ("/determined/core/link.py", ""),
    ("/determined/core/orders.py", ""),
)
_FRAMES_LOOKED_AT = 4
_TELLING_STATES = {"": "has ended", "T": "is stopped (SIGSTOP)", "D": "is stuck in the kernel (state D)"}


class Watchdog:
    """Counts how long each rank's beat has stood still. A rank whose beat is 0 is not watched."""

    def __init__(self, current: memoryview, hang_seconds: float) -> None:
        self._beats = current
        self._hang_seconds = hang_seconds
        self._seen = list(current)
        self._still_for = [0.0] * len(current)

    def tick(self, elapsed: float) -> list[int]:
        """The local ranks that are stuck, given how long this process itself has been running since the last tick."""
        stuck = []
        for at, beat in enumerate(self._beats):
            if beat == 0 or beat != self._seen[at]:
                self._still_for[at] = 0.0
                self._seen[at] = beat
                continue
            self._still_for[at] += elapsed
            if self._still_for[at] >= self._hang_seconds:
                stuck.append(at)
        return stuck


@dataclasses.dataclass
class Suspect:
    """A rank of a gang that makes no progress; ``stacks`` is empty if it did not answer."""

    rank: int
    state: str
    batches_done: int
    stacks: str = ""

    @property
    def main_stack(self) -> str:
        """The stack of the main thread: the last in what faulthandler writes."""
        blocks = re.split(r"(?m)^(?=(?:Current thread|Thread) 0x)", self.stacks)
        return blocks[-1].strip()

    @property
    def waits_for_others(self) -> bool:
        frames = [match.group("file", "function") for match in _FRAME.finditer(self.main_stack)]
        return any(
            place in file and function.strip() in (wanted or function)
            for file, function in frames[:_FRAMES_LOOKED_AT]
            for place, wanted in _WAITING
        )


def investigate(pids: Mapping[int, int], current: Sequence[int], stacks: Mapping[int, pathlib.Path]) -> list[Suspect]:
    """Every rank's state, and its stacks, written now. ``pids`` and ``stacks`` are by rank; beats in their order."""
    suspects = [
        Suspect(rank, processes.state_of(pid), beats.batches_done(beat))
        for (rank, pid), beat in zip(pids.items(), current, strict=True)
    ]
    before = {rank: _size(path) for rank, path in stacks.items()}
    asked = [suspect for suspect in suspects if _ask_for_stacks(suspect, pids[suspect.rank])]
    pause, deadline = threading.Event(), time.monotonic() + 1.0
    sizes: dict[int, int] = {}
    while time.monotonic() < deadline:
        pause.wait(0.05)
        latest = {suspect.rank: _size(stacks[suspect.rank]) for suspect in asked}
        if latest == sizes and all(size > before[rank] for rank, size in latest.items()):
            break  # All have written, and nobody is still writing.
        sizes = latest
    for suspect in asked:
        try:
            with open(stacks[suspect.rank], errors="replace") as file:
                file.seek(before[suspect.rank])
                suspect.stacks = file.read()
        except OSError:
            pass
    return suspects


def _ask_for_stacks(suspect: Suspect, pid: int) -> bool:
    # Without a handler the signal would end the process, and its output would be lost.
    if not processes.catches(pid, signal.SIGUSR1):
        return False
    processes.signal_process(pid, signal.SIGUSR1)
    if suspect.state == "T":
        processes.signal_process(pid, signal.SIGCONT)
    return True


def _size(path: pathlib.Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def culprit(suspects: Sequence[Suspect]) -> tuple[int | None, str]:
    """The rank to blame and why; None when they all look alike."""
    for letter, meaning in (
        ("", "has ended"),
        ("T", "is stopped (SIGSTOP)"),
        ("D", "is stuck in the kernel (state D)"),
    ):
        accused = [suspect for suspect in suspects if suspect.state == letter]
        if accused:
            return accused[0].rank, f"rank {accused[0].rank} {meaning}"
    if len(suspects) == 1:
        return suspects[0].rank, f"rank {suspects[0].rank} is at batch {suspects[0].batches_done}"
    least = min(suspect.batches_done for suspect in suspects)
    behind = [suspect for suspect in suspects if suspect.batches_done == least]
    if len(behind) == 1:
        return behind[0].rank, f"rank {behind[0].rank} is behind, at batch {least}"
    silent = [suspect for suspect in suspects if not suspect.stacks]
    if silent and len(silent) < len(suspects):
        return silent[0].rank, f"rank {silent[0].rank} did not say where it is"
    busy = [suspect for suspect in suspects if suspect.stacks and not suspect.waits_for_others]
    if busy and len(busy) < len(suspects):
        return busy[0].rank, f"rank {busy[0].rank} is not waiting for the others, while they wait for it"
    return None, f"all ranks are at batch {least}; none stands out"
