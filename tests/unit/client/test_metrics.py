"""Metrics as tables: complete, typed, and exact where the format can be."""

from __future__ import annotations

import datetime
import math
import pathlib
from typing import Any

import pyarrow.parquet

from determined.client.metrics import as_trial_metrics, to_pandas, to_parquet
from determined.wire.views import MetricsRow


def row(steps: int, group: str = "validation", **metrics: Any) -> MetricsRow:
    return MetricsRow(trial_id=1, group=group, steps_completed=steps, metrics=metrics, time=1000.5 + steps, run_epoch=2)


ROWS = [
    row(1, loss=0.5, count=3, name="a", ok=True, nested={"deep": {"x": 1.0}}, mixed=1, big=2**70, time="noon"),
    row(2, loss=math.nan, count=4, name="b", ok=False, mixed="x", odd=[1, None]),
    row(3, "training", loss=math.inf, later=-0.0),
]


def test_one_line_for_each_report_and_one_column_for_each_metric() -> None:
    frame = to_pandas(ROWS)
    assert len(frame) == 3
    assert [*frame.columns[:5]] == ["trial_id", "group", "steps_completed", "time", "run_epoch"]
    assert {*frame.columns[5:]} == {
        *("loss", "count", "name", "ok", "nested.deep.x", "mixed", "big", "metrics.time", "odd", "later"),
    }
    assert frame["time"][0] == datetime.datetime(1970, 1, 1, 0, 16, 41, 500000, tzinfo=datetime.timezone.utc)
    assert frame["loss"].dtype == "float64" and frame["loss"][2] == math.inf and math.isnan(frame["loss"][1])
    assert frame["count"].dtype == "Int64" and frame["count"][0] == 3
    assert frame["big"][0] == 2**70 and frame["odd"][1] == [1, None] and frame["mixed"][1] == "x"


def test_nothing_is_an_empty_table(tmp_path: pathlib.Path) -> None:
    assert to_pandas([]).empty
    assert pyarrow.parquet.read_table(to_parquet([], tmp_path / "x.parquet")).num_rows == 0


def test_parquet_keeps_what_is_absent_apart_from_what_is_no_number(tmp_path: pathlib.Path) -> None:
    path = to_parquet(ROWS, tmp_path / "new" / "metrics.parquet")
    table = pyarrow.parquet.read_table(path).to_pydict()
    assert [*path.parent.iterdir()] == [path]
    assert table["loss"][0] == 0.5 and math.isnan(table["loss"][1]) and table["loss"][2] == math.inf
    assert table["later"][:2] == [None, None] and math.copysign(1, table["later"][2]) == -1
    assert table["count"] == [3, 4, None] and table["ok"] == [True, False, None]
    assert table["big"][0] == str(2**70) and table["odd"][1] == "[1, null]" and table["mixed"] == ["1", "x", None]
    assert table["steps_completed"] == [1, 2, 3] and table["group"] == ["validation", "validation", "training"]


def test_a_report_as_scripts_see_it() -> None:
    found = as_trial_metrics(ROWS[1])
    assert (found.trial_id, found.trial_run_id, found.steps_completed, found.group) == (1, 2, 2, "validation")
    assert found.end_time.tzinfo is not None and found.total_batches == 2
