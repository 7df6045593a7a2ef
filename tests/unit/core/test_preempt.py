"""A wish to stop reaches training from a signal or a call, once, and is acknowledged when training acts on it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from determined.core.preempt import PreemptContext, PreemptMode
from determined.core.ranks import DistributedContext

PATIENCE = 20.0


@pytest.fixture
def preempt() -> Iterator[PreemptContext]:
    with PreemptContext() as context:
        yield context


@contextlib.contextmanager
def pair(mode: PreemptMode) -> Iterator[list[PreemptContext]]:
    """Two ranks of one gang, in one process."""
    places: dict[int, DistributedContext] = {}

    def join(rank: int) -> None:
        places[rank] = DistributedContext(
            rank=rank,
            size=2,
            local_rank=rank,
            local_size=2,
            cross_rank=0,
            cross_size=1,
            port_offset=30000 + os.getpid() % 20000,
        )

    together([threading.Thread(target=join, args=(rank,)) for rank in range(2)])
    contexts = [PreemptContext(places[rank], mode).start() for rank in range(2)]
    yield contexts
    together([threading.Thread(target=context.close) for context in contexts])
    for place in places.values():
        place.close()


def together(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)


def wait_until_asked(contexts: list[PreemptContext]) -> None:
    pause = threading.Event()
    for _ in range(2000):
        if all(context.asked for context in contexts):
            return
        pause.wait(0.005)
    raise AssertionError("the wish did not reach all ranks")


def test_nothing_can_be_asked_before_the_start() -> None:
    context = PreemptContext()
    for call in (context.should_preempt, context.acknowledge_preemption_signal, lambda: context.stop_line(int)):
        with pytest.raises(RuntimeError, match="before start"):
            call()
    context.close()


def test_the_first_true_is_acknowledged(preempt: PreemptContext) -> None:
    assert not preempt.should_preempt() and not preempt.acknowledged
    preempt.ask("a test")
    assert preempt.should_preempt(auto_ack=False) and not preempt.acknowledged
    assert preempt.should_preempt() and preempt.acknowledged


@pytest.mark.parametrize("asker", [0, 1])
def test_all_workers_hear_what_the_chief_knows(asker: int) -> None:
    answers: dict[int, list[bool]] = {}
    with pair(PreemptMode.WorkersAskChief) as contexts:
        contexts[asker].ask()
        wait_until_asked(contexts)

        def ask_away(rank: int) -> None:
            answers[rank] = [contexts[rank].should_preempt() for _ in range(3)]

        together([threading.Thread(target=ask_away, args=(rank,)) for rank in range(2)])
    assert answers == {0: [True] * 3, 1: [True] * 3}


def test_workers_agree_even_while_the_wish_is_on_its_way() -> None:
    counts = [0, 0]
    with pair(PreemptMode.WorkersAskChief) as contexts:

        def train(rank: int) -> None:
            while not contexts[rank].should_preempt():
                counts[rank] += 1
                if (rank, counts[rank]) == (1, 10):
                    contexts[rank].ask()

        together([threading.Thread(target=train, args=(rank,)) for rank in range(2)])
    assert counts[0] == counts[1] >= 10


def test_only_the_chief_may_ask_in_its_mode() -> None:
    with pair(PreemptMode.ChiefOnly) as (chief, other):
        assert chief.should_preempt() is False
        with pytest.raises(RuntimeError, match=r"rank 1.*only the chief"):
            other.should_preempt()


def test_signals_ask_once_and_are_given_back(preempt: PreemptContext, capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    line = preempt.stop_line(lambda: 4)
    assert preempt.install_signals()
    assert not preempt.install_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    assert preempt.asked and line.at == 4 and line.reached()
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "SIGTERM" in said and "Ctrl-C again" in said
    preempt.close()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_second_interrupt_is_an_interrupt_but_not_within_one_key_press(preempt: PreemptContext) -> None:
    assert preempt.install_signals()
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(0.35)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    preempt.close()


def test_signals_are_left_alone_outside_the_main_thread(preempt: PreemptContext) -> None:
    answers: list[bool] = []
    together([threading.Thread(target=lambda: answers.append(preempt.install_signals()))])
    assert answers == [False]


def test_stacks_are_written_on_demand(preempt: PreemptContext, tmp_path: pathlib.Path) -> None:
    stacks = tmp_path / "stacks"
    assert preempt.install_signals(str(stacks))
    os.kill(os.getpid(), signal.SIGUSR1)
    assert "test_stacks_are_written_on_demand" in stacks.read_text()


def test_a_forked_worker_dies_by_sigterm_and_ignores_ctrl_c(tmp_path: pathlib.Path) -> None:
    script = (
        "import multiprocessing, os, signal, time\n"
        "from determined.core.preempt import PreemptContext\n"
        "preempt = PreemptContext().start(); preempt.install_signals()\n"
        "def work():\n"
        "    os.kill(os.getpid(), signal.SIGINT); print('alive', flush=True); time.sleep(60)\n"
        "worker = multiprocessing.get_context('fork').Process(target=work)\n"
        "worker.start()\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "worker.terminate(); worker.join(10); print(worker.exitcode, preempt.asked)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    with process:
        assert process.stdout is not None and process.stdout.readline() == "alive\n"
        (tmp_path / "go").touch()
        assert process.stdout.read() == "-15 False\n"
