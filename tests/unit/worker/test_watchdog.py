"""The watchdog counts only time that was watched, and blames the rank that keeps the others waiting."""

from __future__ import annotations

import os
import signal

import pytest

from determined.worker import processes
from determined.worker.watchdog import Suspect, Watchdog, culprit


def beats(*values: int) -> memoryview:
    view = memoryview(bytearray(8 * len(values))).cast("Q")
    for at, value in enumerate(values):
        view[at] = value
    return view


def test_a_rank_is_stuck_when_its_beat_stands_still_long_enough() -> None:
    current = beats(5, 5)
    dog = Watchdog(current, hang_seconds=1.0)
    for _ in range(9):
        current[0] += 1
        assert dog.tick(0.1) == []
    assert dog.tick(0.15) == [0, 1][1:]


def test_a_rank_that_has_not_begun_or_is_not_to_be_watched_is_left_alone() -> None:
    current = beats(0, 7)
    dog = Watchdog(current, hang_seconds=1.0)
    assert dog.tick(0.9) == []
    current[1] = 0
    assert dog.tick(100.0) == []
    current[1] = 7
    assert dog.tick(100.0) == []  # Just came back: its time begins now.
    assert dog.tick(1.0) == [1]


def stacks(*frames: tuple[str, str]) -> str:
    head = 'Thread 0x00007f00 (most recent call first):\n  File "/x/threading.py", line 1 in wait\n\n'
    lines = [f'  File "{file}", line 10 in {function}' for file, function in frames]
    return head + "\n".join(["Current thread 0x00007f01 (most recent call first):", *lines])


WAITING = stacks(("/env/torch/distributed/distributed_c10d.py", "all_reduce"), ("/home/me/train.py", "<module>"))
BACKWARD = stacks(("/env/torch/autograd/graph.py", "_engine_run_backward"), ("/env/torch/_tensor.py", "backward"))
GATHERING = stacks(("/env/determined/core/link.py", "_read"), ("/env/determined/core/ranks.py", "allgather"))
BUSY = stacks(("/home/me/train.py", "train_batch"), ("/env/determined/pytorch/loop.py", "train_batches"))


@pytest.mark.parametrize(
    ("suspects", "blamed", "why"),
    [
        ([Suspect(0, "S", 9, WAITING), Suspect(1, "T", 10, BUSY)], 1, "stopped"),
        ([Suspect(0, "D", 9), Suspect(1, "S", 8, WAITING)], 0, "state D"),
        ([Suspect(0, "S", 9, WAITING), Suspect(1, "R", 8, BUSY)], 1, "behind, at batch 8"),
        ([Suspect(0, "S", 9, WAITING), Suspect(1, "R", 9, BUSY)], 1, "not waiting"),
        ([Suspect(0, "R", 9, BUSY), Suspect(1, "S", 9, BACKWARD)], 0, "not waiting"),
        ([Suspect(0, "R", 9, BUSY), Suspect(1, "S", 9, GATHERING)], 0, "not waiting"),
        ([Suspect(0, "S", 9, WAITING), Suspect(1, "R", 9)], 1, "did not say"),
        ([Suspect(0, "S", 9, WAITING), Suspect(1, "S", 9, WAITING)], None, "none stands out"),
        ([Suspect(0, "S", 9)], 0, "batch 9"),
    ],
)
def test_the_culprit_is_the_one_the_others_wait_for(suspects: list[Suspect], blamed: int | None, why: str) -> None:
    accused, reason = culprit(suspects)
    assert accused == blamed and why in reason


def test_only_a_process_with_a_handler_is_asked_for_its_stacks() -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    assert not processes.catches(os.getpid(), signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    assert processes.catches(os.getpid(), signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, before)
    assert processes.state_of(os.getpid()) in ("R", "S")
