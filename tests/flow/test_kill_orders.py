"""Whoever is killed, in whatever order: five seconds later nothing of the allocation is left, and the pool says so."""

from __future__ import annotations

import contextlib
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from determined.wire.outcome import Outcome
from tests.flow.pools import Ground
from tests.flow.processes import is_alive, say, wait_until

# Two ranks; each leaves a child in a session of its own, orphaned, deaf to signals, that holds its output open.
SCRIPT = f"""
import os, signal, time
rank = os.environ["RANK"]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        {say("escapee-{rank}")}
        time.sleep(600)
    os._exit(0)
{say("rank-{rank}")}
time.sleep(600)
"""
# A master as far as its node processes can tell: it has started them, and holds on to the starter.
MASTER = """
import pathlib, pickle, sys, time
from determined.master.pools.local import LocalPool
pool = LocalPool(pathlib.Path(sys.argv[1]), slots=2)
pool.start(pickle.loads(sys.stdin.buffer.read()))
print("started", flush=True)
time.sleep(600)
"""
ORDERS = [
    ("master", "starter", "node", "rank"),
    ("rank", "node", "starter", "master"),
    ("node", "rank", "master", "starter"),
    ("starter", "rank", "node", "master"),
    ("node", "starter", "rank", "master"),
    ("sweeper", "node", "rank", "starter"),
    ("starter", "node", "master", "rank"),
    ("rank", "master", "sweeper", "node"),
    ("node", "sweeper", "rank", "starter"),
    ("master", "node", "starter", "rank"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    made = Ground(tmp_path_factory.mktemp("kills"), warm=True)
    try:
        yield made
    finally:
        made.close()


def bring_up_starters(place: Ground) -> int:
    """The number of the starter that has torch."""
    sockets = place.state / "starter"
    found = starters(sockets)
    if len(found) < 2:
        for path in sockets.glob("*.sock"):
            path.unlink()  # Left by one that was killed.
        assert wait_until(lambda: not starters(sockets))
        place.again().prepare()
        assert wait_until(lambda: len(list(sockets.glob("*.sock"))) == 2, 90)
        found = starters(sockets)
    (with_torch,) = [pid for pid, words in found.items() if "--bare" not in words]
    return with_torch


def starters(sockets: pathlib.Path) -> dict[int, list[str]]:
    """The living starters, themselves: what they fork looks the same."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            is_starter = "determined.worker.starter" in words and any(str(sockets) in word for word in words)
            parent = process.parent()
            is_fork = parent is not None and parent.cmdline() == words
            if is_starter and not is_fork and is_alive(process.pid):
                found[process.pid] = words
    return found


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_nothing_survives(place: Ground, order: tuple[str, ...]) -> None:
    for path in place.code.glob("*-*"):
        path.unlink()
    starter = bring_up_starters(place)
    gang = place.gang(SCRIPT, slots=2)
    id = gang.allocation_id
    master = subprocess.Popen(
        [sys.executable, "-c", MASTER, str(place.state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with master:
        try:
            assert master.stdin is not None and master.stdout is not None
            master.stdin.write(pickle.dumps(gang))
            master.stdin.close()
            assert master.stdout.readline() == b"started\n"
            node = place.node_pid(id)
            ranks = [place.number_in(f"rank-{rank}") for rank in range(2)]
            escapees = [place.number_in(f"escapee-{rank}") for rank in range(2)]
            # The services that this starter's node processes share.
            services = [child for child in psutil.Process(starter).children() if "--serve" in child.cmdline()]
            sweepers = [service.pid for service in services]
            assert len(sweepers) == 2
            pids = {"master": master.pid, "starter": starter, "node": node, "rank": ranks[0], "sweeper": sweepers[0]}
            for victim in order:
                if is_alive(pids[victim]):
                    os.kill(pids[victim], signal.SIGKILL)
            began = time.monotonic()
            assert wait_until(lambda: not any(map(is_alive, [node, *ranks, *escapees])), 5), order
            assert place.ending(id, 5.0).outcome in (Outcome.LOST, Outcome.FAILED)
            assert time.monotonic() - began < 5
        finally:
            master.kill()


@pytest.mark.slow
def test_a_killed_rank_takes_its_gang_along_within_two_seconds(place: Ground) -> None:
    bring_up_starters(place)
    for _ in range(5):
        for path in place.code.glob("*-*"):
            path.unlink()
        id = place.start(SCRIPT, slots=2)
        ranks = [place.number_in(f"rank-{rank}") for rank in range(2)]
        os.kill(ranks[1], signal.SIGKILL)
        began = time.monotonic()
        ending = place.ending(id, 2.0)
        assert time.monotonic() - began < 2.0
        assert (ending.outcome, ending.culprit) == (Outcome.FAILED, 1)
        assert not any(map(is_alive, ranks))


def test_what_is_sure_to_be_left_is_left_to_itself(tmp_path: pathlib.Path) -> None:
    """A sleeper that is nobody's is not swept: sweeping is by marker, session and descent, never by name."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as sleeper:
        made = Ground(tmp_path)
        try:
            assert made.run("print('done')").outcome is Outcome.COMPLETED
            assert sleeper.poll() is None
        finally:
            made.close()
            sleeper.kill()
