"""The node process: one gang, ended as one, with nothing left behind and the right rank to blame."""

from __future__ import annotations

import itertools
import os
import pathlib
import signal
import socket
import time

import pytest

from determined.wire.outcome import Outcome
from tests.flow.processes import is_alive, node, say, wait_until

START = "import os, signal, subprocess, sys, time\nrank = int(os.environ['RANK'])\n"
# A grandchild in a session of its own, orphaned, that ignores what can be ignored and keeps our output open.
ESCAPEE = f"""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        {say("escapee-{rank}")}
        time.sleep(600)
    os._exit(0)
"""
FOREVER = "time.sleep(600)\n"


def test_ranks_get_torchruns_environment_and_their_lines_are_marked(tmp_path: pathlib.Path) -> None:
    script = START + (
        "names = 'WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR'.split()\n"
        "print(*[os.environ[name] for name in names], int(os.environ['MASTER_PORT']) > 1024, flush=True)\n"
        "sys.stdout.write('10%\\r20%\\r'); print('to stderr', file=sys.stderr); sys.stdout.write('no end')\n"
        "assert os.path.exists(os.environ['DET_NODE_SPEC']) and os.path.exists(os.environ['DET_BEATS'])\n"
    )
    with node(tmp_path, script, slots=2) as started:
        assert started.wait() == 0, started.complaints
        for rank in range(2):
            own = [line for line in started.output.splitlines() if line.startswith(f"[rank={rank}] ")]
            lines = [f"2 {rank} 2 0 127.0.0.1 True", "10%", "20%", "no end"]
            assert own == [f"[rank={rank}] {line}" for line in lines]
            log = (started.run_folder / "logs" / f"rank-{rank}.log").read_text().splitlines()
            assert sorted(log) == sorted([*lines, "to stderr"])
        assert started.ending.outcome is Outcome.COMPLETED


def test_a_single_rank_is_passed_on_as_it_is(tmp_path: pathlib.Path) -> None:
    with node(tmp_path, START + "sys.stdout.write('1\\r2'); sys.exit(7)\n") as started:
        assert started.wait() == 7
        assert started.out.read_bytes() == b"1\r2"
        assert started.complaints == "the training process failed with exit code 7\n"


def test_the_rank_that_failed_first_is_shown_last(tmp_path: pathlib.Path) -> None:
    script = START + (
        "from determined.core.ranks import DistributedContext\n"
        "gang = DistributedContext.from_torch_distributed()\n"
        "gang.allgather(0)\n"
        "if rank == 1: raise ValueError('a mistake of mine')\n"
        "gang.allgather(1)\n"
    )
    with node(tmp_path, script, slots=3) as started:
        assert started.wait() == 1
        shown = started.complaints.partition("rank 1 failed with exit code 1; its output ends:\n")[2]
        assert shown.startswith("Traceback") and shown.endswith("ValueError: a mistake of mine\n")
        assert (started.ending.culprit, started.ending.outcome) == (1, Outcome.FAILED)


def test_a_rank_that_is_killed_takes_the_gang_with_it(tmp_path: pathlib.Path) -> None:
    script = START + f"{say('pid-{rank}')}\n" + FOREVER
    with node(tmp_path, script, slots=2) as started:
        pids = [started.number_in(f"pid-{rank}") for rank in range(2)]
        os.kill(pids[1], signal.SIGKILL)
        assert started.wait(5) == 137
        assert not any(is_alive(pid) for pid in pids)
        assert (started.ending.culprit, started.ending.reason) == (1, "rank 1 was killed by SIGKILL")


def test_a_grandchild_that_keeps_the_output_open_delays_nothing_and_dies(tmp_path: pathlib.Path) -> None:
    script = START + ESCAPEE + "while not os.path.exists('escapee-0'): time.sleep(0.01)\nprint('done')\n"
    with node(tmp_path, script) as started:
        pid = started.number_in("escapee-0")
        begun = time.monotonic()
        assert started.wait() == 0
        assert time.monotonic() - begun < 2.5
        assert not is_alive(pid)
        assert started.output == "done\n"


@pytest.mark.parametrize("order", list(itertools.permutations(["node", "rank", "sweeper"])), ids="-".join)
def test_whoever_is_killed_nothing_survives(tmp_path: pathlib.Path, order: tuple[str, ...]) -> None:
    script = START + ESCAPEE + f"{say('rank')}\n" + FOREVER
    with node(tmp_path, script) as started:
        pids = {
            "node": started.process.pid,
            "rank": started.number_in("rank"),
            "escapee": started.number_in("escapee-0"),
        }
        assert wait_until(lambda: len(started.sweepers) == 2)
        pids["sweeper"], other = started.sweepers
        for name in order:
            if is_alive(pids[name]):
                os.kill(pids[name], signal.SIGKILL)
        begun = time.monotonic()
        assert wait_until(lambda: not any(is_alive(pid) for pid in [*pids.values(), other]), 5), order
        assert time.monotonic() - begun < 5


def test_a_killed_sweeper_is_replaced(tmp_path: pathlib.Path) -> None:
    with node(tmp_path, START + f"{say('rank')}\n" + FOREVER) as started:
        started.number_in("rank")
        assert wait_until(lambda: len(started.sweepers) == 2)
        old = started.sweepers
        for pid in old:
            os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: len(set(started.sweepers) - set(old)) == 2, 3)


TRAIN = START + (
    "from determined.core import beats, preempt, ranks\n"
    "gang = ranks.DistributedContext.from_torch_distributed()\n"
    "orders = preempt.PreemptContext(gang).start()\n"
    "orders.install_signals(os.environ['DET_STACKS'])\n"
    "beat = beats.open_beats(os.environ['DET_BEATS'], gang.local_rank)\n"
    "def batch(number):\n"
    "    gang.allgather(number)\n"
    "    beat[0] = number\n"
    "    time.sleep(0.005)\n"
    "def stuck():\n"
    "    while True: time.sleep(1)\n"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_ranks_agree_and_leave(tmp_path: pathlib.Path, number: int) -> None:
    script = TRAIN + (
        "done = 0\n"
        "line = orders.stop_line(lambda: done)\n"
        "while done < line.at or not line.reached():\n"
        "    batch(done + 1)\n"
        "    done += 1\n"
        "    if done == 3: " + say("started") + "\n"
        "print('left at', done)\n"
    )
    with node(tmp_path, script, slots=2) as started:
        started.number_in("started")
        started.process.send_signal(number)
        assert started.wait() == 0, started.complaints
        left = {line.partition("] ")[2] for line in started.output.splitlines()}
        assert len(left) == 1 and left.pop().startswith("left at")
        assert started.ending.outcome is Outcome.STOPPED


def test_ranks_that_do_not_stop_are_killed_after_the_grace_period(tmp_path: pathlib.Path) -> None:
    script = START + f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{say('rank')}\n" + FOREVER
    with node(tmp_path, script, grace_seconds=0.5) as started:
        pid = started.number_in("rank")
        started.process.terminate()
        assert started.wait(5) == 137
        assert not is_alive(pid)
        assert "did not stop within 0.5 s" in started.complaints


def test_a_second_interrupt_stops_at_once(tmp_path: pathlib.Path) -> None:
    script = START + (
        f"signal.signal(signal.SIGTERM, lambda *_: open('asked', 'w').write('1\\n'))\n{say('rank')}\n"
        "while True: time.sleep(1)\n"
    )
    with node(tmp_path, script) as started:
        pid = started.number_in("rank")
        started.process.send_signal(signal.SIGINT)
        started.number_in("asked")
        wait_until(lambda: False, 0.4)  # Two signals close together count as one key press.
        started.process.send_signal(signal.SIGINT)
        assert started.wait(5) == 130
        assert not is_alive(pid)


@pytest.mark.parametrize("trouble", ["stuck", "stopped"])
def test_a_rank_without_progress_is_named_with_all_stacks(tmp_path: pathlib.Path, trouble: str) -> None:
    action = "stuck()" if trouble == "stuck" else "os.kill(os.getpid(), signal.SIGSTOP)"
    script = TRAIN + f"for number in range(1, 10**9):\n    if number == 20 and rank == 1: {action}\n    batch(number)\n"
    with node(tmp_path, script, slots=2, hang_seconds=1.0) as started:
        assert started.wait(15) == 1
        ending = started.ending
        assert (ending.outcome, ending.culprit) == (Outcome.FAILED, 1), ending
        stacks = [(started.run_folder / "logs" / f"stacks-rank-{each}.txt").read_text() for each in range(2)]
        assert "in allgather" in stacks[0] and "script.py" in stacks[1]
        assert ("in stuck" in started.complaints) == (trouble == "stuck")


def test_a_node_process_that_was_stopped_itself_suspects_nobody(tmp_path: pathlib.Path) -> None:
    script = TRAIN + "batch(1)\n" + say("started") + "\nwhile not os.path.exists('go-on'): time.sleep(0.01)\n"
    with node(tmp_path, script, hang_seconds=2.0) as started:
        started.number_in("started")
        started.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: False, 3.0)
        started.process.send_signal(signal.SIGCONT)
        (tmp_path / "go-on").touch()
        assert started.wait() == 0, started.complaints


def test_two_node_processes_make_one_gang(tmp_path: pathlib.Path) -> None:
    script = START + (
        "from determined.core.ranks import DistributedContext\n"
        "gang = DistributedContext.from_torch_distributed()\n"
        "print(gang.allgather(rank), gang.allgather_local(rank), gang.broadcast(rank), gang.get_num_agents())\n"
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"slots": 2, "nodes": 2, "master_port": port}
    with (
        node(tmp_path / "a", script, node_rank=0, **common) as first,
        node(tmp_path / "b", script, node_rank=1, **common) as second,
    ):
        assert (first.wait(), second.wait()) == (0, 0), first.complaints + second.complaints
        assert sorted(first.output.splitlines()) == [f"[rank={rank}] [0, 1, 2, 3] [0, 1] 0 2" for rank in (0, 1)]
        assert sorted(second.output.splitlines()) == [f"[rank={rank}] [0, 1, 2, 3] [2, 3] 0 2" for rank in (2, 3)]


def test_a_port_in_use_is_told(tmp_path: pathlib.Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with node(tmp_path, START, master_port=port) as started:
            assert started.wait() == 1
            assert f"the ranks cannot meet at port {port}" in started.complaints
            assert "Traceback" not in started.complaints
