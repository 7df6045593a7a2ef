"""Rows come back from disk as they were reported, whatever their values and whatever the disk does."""

from __future__ import annotations

import errno
import json
import math
import os
import pathlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from determined.core import sinks
from determined.core.run_folder import RunFolder
from determined.core.sinks import JsonLines, Row, TensorBoardEvents, encode_row


@pytest.fixture
def run(runs_dir: pathlib.Path) -> RunFolder:
    return RunFolder.create(runs_dir, "a")


def row(steps: int, group: str = "training", **metrics: Any) -> Row:
    return Row(group, steps, metrics, None, 1.0)


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
@settings(max_examples=40)
def test_any_value_round_trips(metrics: dict[str, Any]) -> None:
    line = encode_row(Row("training", 1, metrics, None, 0.0), 3)
    assert line.count(b"\n") == 1
    assert same(json.loads(line)["metrics"], metrics)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, -0.0, 2**63, 10**40, 5e-324, 1e308, "\U0001f600\ud800", "x" * 2**20]
)
def test_special_values_round_trip(value: Any) -> None:
    assert same(json.loads(encode_row(row(1, value=value), 1))["metrics"]["value"], value)


def test_rows_are_appended_with_epoch_and_time(run: RunFolder) -> None:
    run.open()
    sink = JsonLines(run, print)
    sink.report([row(1, loss=0.5), row(1, "validation", acc=1)])
    sink.report([row(2, loss=0.25)])
    sink.close()
    assert [(each["group"], each["steps_completed"], each["run_epoch"]) for each in run.rows()] == [
        ("training", 1, 1),
        ("validation", 1, 1),
        ("training", 2, 1),
    ]


def test_a_full_disk_is_survived_and_made_up_for(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    sink = JsonLines(run, warnings.append)
    sink.report([row(1)])
    real_write = os.write

    def full(descriptor: int, data: Any) -> int:
        real_write(descriptor, bytes(data)[:10])  # a disk takes what it can
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for steps in (2, 3):
            sink.report([row(steps)])
            sink.flush()
    assert [each["steps_completed"] for each in run.rows()] == [1]
    assert run.metrics.read_bytes().endswith(b"\n")
    assert len(warnings) == 1 and "disk is full" in warnings[0]
    sink.report([row(4)])
    sink.close()
    assert [each["steps_completed"] for each in run.rows()] == [1, 2, 3, 4]
    assert len(warnings) == 2


def test_rows_that_never_found_room_are_an_error_at_the_end(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = JsonLines(run, lambda text: None)

    def full(descriptor: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    sink.report([row(1), row(2)])
    with pytest.raises(OSError, match="2 metric rows"):
        sink.close()


def test_another_failure_is_not_hidden(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = JsonLines(run, lambda text: None)

    def broken(descriptor: int, data: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", broken)
        with pytest.raises(OSError, match="Input/output"):
            sink.report([row(1)])
    sink.close()


def test_a_row_torn_by_a_crash_is_dropped_before_the_next(run: RunFolder) -> None:
    run.metrics.write_bytes(encode_row(row(1), 1) + b'{"steps_completed":2,"gro')
    sink = JsonLines(run, print)
    sink.report([row(3)])
    sink.close()
    assert [each["steps_completed"] for each in run.rows()] == [1, 3]


def test_writing_goes_on_in_the_file_that_a_rewind_put_there(run: RunFolder) -> None:
    sink = JsonLines(run, print)
    sink.report([row(1), row(2), row(3)])
    run.rewind(1)
    sink.report([row(2, again=True)])
    sink.close()
    assert [each["metrics"] for each in run.rows()] == [{}, {"again": True}]


def test_tensorboard_reads_what_was_written(tmp_path: pathlib.Path) -> None:
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    sink = TensorBoardEvents(lambda: tmp_path / "tb", first_step=lambda: 10)
    sink.report([row(10, loss=0.5, many={"a": 1}, text="x"), row(12, "validation", acc=0.25, val_x=math.inf)])
    sink.report([row(13, big=10**400, small=1e-310)])
    sink.close()
    (file,) = (tmp_path / "tb").iterdir()
    events = list(loading.LegacyEventFileLoader(str(file)).Load())
    assert events[0].file_version == "brain.Event:2"
    assert events[1].session_log.status == 1 and events[1].step == 10
    found = {(event.step, value.tag): value.simple_value for event in events for value in event.summary.value}
    assert found == {
        (10, "Determined/loss"): 0.5,
        (10, "Determined/many/a"): 1.0,
        (12, "Determined/val_acc"): 0.25,
        (12, "Determined/val_x"): math.inf,
        (13, "Determined/big"): math.inf,
        (13, "Determined/small"): 0.0,
    }


def test_nothing_is_written_for_tensorboard_without_numbers(tmp_path: pathlib.Path) -> None:
    sink = TensorBoardEvents(lambda: tmp_path / "tb")
    sink.report([row(1, text="x")])
    sink.close()
    assert not (tmp_path / "tb").exists()


def test_the_checksum_is_that_of_the_format() -> None:
    assert sinks._masked_crc(b"123456789") == (
        (0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8 & 0xFFFFFFFF
    ).to_bytes(4, "little")
