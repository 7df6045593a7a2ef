"""Where there is no terminal, a table becomes a line for each change."""

from __future__ import annotations

import pytest

from determined.cli import render
from determined.cli.live import Board, Entry


def entry(state: str) -> Entry:
    return Entry("1", {"trial": 1, "state": state}, f"trial 1: {state}")


def test_a_change_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board(["trial", "state"], is_live=False)
    for state in ("running", "running", "completed"):
        board.show("a title that changes", [entry(state)], news="search: active")
    board.say("one\n  two\x1b[31m")
    board.print("a result")
    board.close()
    out, err = capsys.readouterr()
    assert err.splitlines() == ["search: active", "trial 1: running", "trial 1: completed", "one", "  two"]
    assert out == "a result\n"


def test_only_what_differs_is_shown() -> None:
    maps = [{"lr": 0.1, "layers": 2, "deep": {"a": 1}}, {"lr": 0.2, "layers": 2, "deep": {"a": 1}}]
    assert render.differing(maps) == [{"lr": 0.1}, {"lr": 0.2}]
    assert render.differing(maps[:1]) == maps[:1]
    assert render.differing([{"a": 1}, {"b": None}]) == [{"a": 1}, {}]


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", " =1"])
def test_a_cell_is_never_a_formula(cell: str, capsys: pytest.CaptureFixture[str]) -> None:
    render.listing([{"name": cell, "=x": 1}], ["name", "=x"], render.Format.CSV)
    head, row = capsys.readouterr().out.splitlines()
    assert head == "name,'=x"
    assert row.startswith("'")


def test_a_line_of_a_log_keeps_its_spaces_and_loses_what_acts() -> None:
    assert render.log_line("  x = 1\t2\x1b[2K\x07\u202e\n") == "  x = 1 2"
    assert render.log_line("10%\r20%\r30%\n") == "30%"
