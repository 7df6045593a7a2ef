"""Tables fit, numbers line up, and text cannot act on the terminal."""

from __future__ import annotations

import csv
import io
import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from determined.cli import render

ROWS = [{"name": "mnist-a1", "batches": 5}, {"name": "vit-b2", "batches": 12000}]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07name", "name"),
        ("over\rwritten\nlines", "over written lines"),
        ("bell\x07\x08\x7f\x9b", "bell"),
        ("gpj.\u202eexe", "gpj.exe"),
        ("größe 模型", "größe 模型"),
    ],
)
def test_text_of_others_is_only_text(text: str, shown: str) -> None:
    assert render.plain(text) == shown


@given(st.text())
def test_no_control_character_survives(text: str) -> None:
    assert all(sign.isprintable() or sign.isalnum() or ord(sign) > 0x9F for sign in render.plain(text))
    assert "\x1b" not in render.plain(text)


def test_a_message_keeps_its_lines() -> None:
    assert render.sentences("two mistakes:\n  a\x07\n  b") == "two mistakes:\n  a\n  b"


def test_a_table_lines_up() -> None:
    assert render.table(ROWS, ["name", "batches"]).splitlines() == [
        "NAME      BATCHES",
        "mnist-a1        5",
        "vit-b2      12000",
    ]


def test_a_table_that_is_too_wide_loses_the_middle_of_its_longest_cells() -> None:
    rows = [{"name": "a-very-long-name-of-a-run-17", "batches": 5}]
    lines = render.table(rows, ["name", "batches"], width=24).splitlines()
    assert max(map(len, lines)) <= 24
    assert lines[1].startswith("a-very-") and "…" in lines[1] and "17" in lines[1]


def test_a_table_to_a_file_is_never_cut() -> None:
    rows = [{"name": "x" * 500}]
    assert "x" * 500 in render.table(rows, ["name"], width=None)


def test_wide_signs_count_as_two() -> None:
    lines = render.table([{"name": "模型", "batches": 1}, {"name": "abcd", "batches": 2}], ["name", "batches"])
    assert lines.splitlines()[1:] == ["模型        1", "abcd        2"]


def test_nothing_to_list_is_said_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    render.listing([], ["name"], render.Format.TABLE, empty="No runs.")
    assert capsys.readouterr() == ("", "No runs.\n")


def test_formats_for_programs_hold_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(form: render.Format) -> str:
        render.listing(ROWS, ["name", "batches"], form)
        return capsys.readouterr().out

    assert json.loads(printed(render.Format.JSON)) == ROWS
    assert [json.loads(line) for line in printed(render.Format.JSONL).splitlines()] == ROWS
    assert yaml.safe_load(printed(render.Format.YAML)) == ROWS
    in_csv = list(csv.DictReader(io.StringIO(printed(render.Format.CSV))))
    assert in_csv == [{"name": "mnist-a1", "batches": "5"}, {"name": "vit-b2", "batches": "12000"}]


@pytest.mark.parametrize("form", list(render.Format))
def test_no_format_lets_a_name_act(form: render.Format, capsys: pytest.CaptureFixture[str]) -> None:
    render.listing([{"name": "a\x1b[2Jb\u202e", "parts": {"x\x07": 1}}], ["name", "parts"], form)
    assert not {"\x1b", "\x07", "\u202e"} & set(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "just now"), (61, "1 minute ago"), (7300, "2 hours ago"), (200_000, "2 days ago")]
)
def test_ages_have_one_unit(seconds: int, words: str) -> None:
    assert render.age(1000.0, now=1000.0 + seconds) == words


@pytest.mark.parametrize(("count", "words"), [(12, "12 B"), (1500, "1.5 KB"), (402_000_000, "402.0 MB")])
def test_sizes_have_a_unit(count: int, words: str) -> None:
    assert render.size(count) == words


@pytest.mark.parametrize(
    ("value", "words"), [(0.123456789, "0.123457"), (float("nan"), "nan"), (float("inf"), "inf"), (3, "3"), ("a", "a")]
)
def test_metrics_read_well(value: object, words: str) -> None:
    assert render.number(value) == words
