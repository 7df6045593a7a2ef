"""The console tells what a person wants to know, and never spoils what the script itself prints."""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import Any

import pytest

from determined.core.console import Console, describe, duration
from determined.core.sinks import Row


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def row(steps: int, group: str = "training", **metrics: Any) -> Row:
    return Row(group, steps, metrics, None, 0.0)


def test_a_pipe_gets_plain_lines_seldom_and_every_validation() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(stream, clock=clock)
    for steps in range(1, 101):
        clock.now += 0.1
        console.report([row(steps, loss=1 / steps)])
        if steps % 20 == 0:
            console.report([row(steps, "validation", acc=0.5)])
    console.close()
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if "acc" in line] == [f"step {steps}  acc 0.5" for steps in range(20, 101, 20)]
    assert len([line for line in lines if "loss" in line]) == 2
    assert not set("\r\x1b") & set(stream.getvalue())


def test_pace_and_time_left_are_told() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(stream, clock=clock)
    for steps in range(0, 500, 100):
        clock.now += 10
        console.progress(steps / 1000)
        console.report([row(steps, loss=0.5)])
    assert "step 400  loss 0.5  40%  10 steps/s  1m00s left" in stream.getvalue()


def test_the_end_of_training_does_not_look_like_its_beginning() -> None:
    stream, clock, done = io.StringIO(), Clock(), [100]
    console = Console(stream, clock=clock, count=lambda: done[0])
    console.progress(1.0)
    done[0] = 0  # nobody watches any more
    console.report([row(100, loss=0.5)])
    assert stream.getvalue() == "step 100  loss 0.5  100%\n"


def test_a_long_run_gets_a_line_at_most_every_thirty_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(stream, clock=clock)
    clock.now = 100_000.0
    for steps in range(3000):
        clock.now += 0.1
        console.report([row(steps, loss=0.5)])
    assert len(stream.getvalue().splitlines()) == 10


def test_a_terminal_shows_one_line_that_lives() -> None:
    stream, clock, done = Terminal(), Clock(), [0]
    console = Console(stream, is_live=True, clock=clock, count=lambda: done[0])
    for step in range(5):
        done[0], clock.now = step * 100, step * 1.0
        console.progress(step / 10)
        console.report([row(step * 100, loss=0.25)])
    drawn = stream.getvalue().split("\r\x1b[2K")
    assert "40%" in drawn[-1] and "400/1,000" in drawn[-1] and "loss 0.25" in drawn[-1]
    assert "100 steps/s" in drawn[-1] and drawn[-1].endswith("6s left")
    console.status("validating")
    console.tick()
    assert "1,000  validating  loss" in stream.getvalue().split("\r\x1b[2K")[-1]
    console.report([row(400, "validation", acc=0.5)])
    assert "step 400  acc 0.5\n" in stream.getvalue()
    console.close()
    assert stream.getvalue().endswith("\r\x1b[2K")


def test_the_bar_moves_between_reports() -> None:
    stream, done = Terminal(), [100]
    console = Console(stream, is_live=True, count=lambda: done[0])
    console.progress(0.1)
    done[0] = 500
    console.tick()
    console.close()
    assert "50%" in stream.getvalue()


def test_what_the_script_prints_goes_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    console = Console(terminal, is_live=True)
    console.progress(0.5)
    console.tick()
    assert sys.stdout is not terminal
    print("hello")
    print("half a line", end="")
    before = terminal.getvalue()
    console.tick()
    assert terminal.getvalue() == before  # nothing is drawn into a line that somebody is writing
    print()
    console.tick()
    console.close()
    assert sys.stdout is terminal
    assert "\r\x1b[2Khello\nhalf a line\n" in terminal.getvalue()


def test_a_pipe_is_left_alone_while_the_terminal_is_drawn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    console = Console(Terminal(), is_live=True)
    console.progress(0.5)
    console.tick()
    assert sys.stdout is pipe
    print("data")
    console.close()
    assert pipe.getvalue() == "data\n"


def test_logging_goes_above_the_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = logging.StreamHandler(terminal)
    logging.getLogger().addHandler(handler)
    try:
        console = Console(terminal, is_live=True)
        console.progress(0.5)
        console.tick()
        logging.getLogger().warning("careful")
        console.close()
        assert handler.stream is terminal
        assert "\r\x1b[2Kcareful\n" in terminal.getvalue()
    finally:
        logging.getLogger().removeHandler(handler)


def test_a_debugger_stops_the_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    called: list[str] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: called.append("here"))
    console = Console(terminal, is_live=True)
    console.progress(0.5)
    console.tick()
    breakpoint()
    before = terminal.getvalue()
    console.tick()
    assert called == ["here"] and terminal.getvalue() == before
    console.close()


def test_a_forked_worker_prints_without_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    console = Console(terminal, is_live=True)
    console.progress(0.5)
    console.tick()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    drawn = terminal.getvalue()
    print("from the worker")
    monkeypatch.undo()
    console.close()
    assert terminal.getvalue().startswith(drawn + "from the worker\n")


def test_other_ranks_speak_only_to_warn() -> None:
    stream = io.StringIO()
    console = Console(stream, is_live=True, speaker="rank 3: ")
    console.info("hello")
    console.progress(0.5)
    console.tick()
    console.warn("the loader is slow")
    assert stream.getvalue() == "rank 3: warning: the loader is slow\n"


def test_a_closed_stream_ends_the_talk_not_the_training() -> None:
    stream = io.StringIO()
    console = Console(stream)
    stream.close()
    console.info("hello")
    console.close()


def test_metrics_on_a_line() -> None:
    assert describe({"loss": 0.123456, "n": 3, "deep": {"x": float("nan")}, "text": "ok", "list": [1]}) == (
        "loss 0.1235  n 3  deep.x nan  text ok"
    )
    assert describe({str(at): at for at in range(20)}, most=2) == "0 0  1 1  … 18 more"
    assert "\x1b" not in describe({"evil": "\x1b[2J"})


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.9, "59s"), (61, "1m01s"), (3600, "1h00m"), (200_000, "2d07h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
