"""Reports are taken in: each line once and in order, or refused with the line that is wrong."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from determined import errors
from determined.master.lifecycle import reports
from determined.master.records import AllocationState
from determined.master.states import TrialState
from determined.master.store import allocations as allocation_rows
from determined.master.store import checkpoints as checkpoint_rows
from determined.master.store import metrics
from determined.master.store.database import temporary_database
from determined.testing.fake_pool import FakeGang
from determined.wire.outcome import Outcome
from determined.wire.reports import (
    CheckpointReport,
    EarlyExitReport,
    MetadataReport,
    MetricsReport,
    ProgressReport,
    ReportBatch,
    ReportReply,
    Source,
    StatusReport,
    UsageReport,
)
from tests.unit.master.engine.scenes import Scene, Training

ID = "trial-1.1"


@pytest.fixture
def scene(tmp_path: pathlib.Path) -> Iterator[Scene]:
    with temporary_database(str(tmp_path / "master.db")) as database:
        scene = Scene(database, tmp_path)
        scene.submit(searcher={"name": "single", "metric": "loss", "max_length": {"batches": 16}})
        scene.engine.round()
        yield scene


def _row(steps: int, group: str = "training", **values: Any) -> dict[str, Any]:
    return {
        "kind": "metrics",
        "group": group,
        "steps_completed": steps,
        "metrics": values or {"loss": 1.0},
        "time": 1.0,
    }


def _body(*lines: Any, first: int = 0, **fields: Any) -> bytes:
    batch = {"run_epoch": 1, "source": "chief", "first": first, "reports": lines, **fields}
    return json.dumps(batch).encode()


def _send(scene: Scene, *lines: Any, first: int = 0, **fields: Any) -> ReportReply:
    return scene.database.write_now(reports.ingest, ID, reports.understand(_body(*lines, first=first, **fields)))


def _steps(scene: Scene, group: str = "training") -> list[int]:
    return [row.steps_completed for row in scene.database.read_now(metrics.rows, 1, group)]


def test_a_line_is_taken_once_however_often_it_is_sent(scene: Scene) -> None:
    lines = [_row(step) for step in range(1, 6)]
    assert _send(scene, *lines[:3]).acknowledged == 3
    assert _send(scene, *lines[:3]).acknowledged == 3
    assert _send(scene, *lines[1:], first=1).acknowledged == 5
    assert _steps(scene) == [1, 2, 3, 4, 5]


def test_what_lies_beyond_a_gap_waits(scene: Scene) -> None:
    assert _send(scene, _row(9), first=3).acknowledged == 0
    assert _steps(scene) == []


def test_the_first_word_shows_that_it_runs(scene: Scene) -> None:
    _send(scene)
    assert scene.database.read_now(allocation_rows.require, ID).state is AllocationState.RUNNING
    assert scene.trials()[0].state is TrialState.RUNNING


def test_all_that_can_be_reported(scene: Scene) -> None:
    [gang] = scene.pool.running
    for report in (
        MetricsReport(group="training", steps_completed=4, metrics={"loss": 0.5}, time=1.0),
        MetricsReport(group="validation", steps_completed=4, metrics={"loss": 0.4}, time=1.0),
        CheckpointReport(uuid="c4", steps_completed=4, time=1.0),
        ProgressReport(progress=0.25),
        StatusReport(status="training"),
        MetadataReport(metadata={"a": 1}),
        MetricsReport(group="mine", steps_completed=5, metrics={"x": 1}, time=1.0),
        UsageReport(time=100.0, usage={"cpu": 50.0}),
        UsageReport(node_rank=1, time=100.0, usage={"cpu": 60.0}),
    ):
        gang.report(report)
    assert scene.ship(gang).acknowledged == 9
    [trial] = scene.trials()
    assert (trial.progress, trial.status, trial.metadata) == (0.25, "training", {"a": 1})
    assert (trial.best_metric, trial.latest_checkpoint, trial.steps_completed) == (0.4, "c4", 5)
    assert {*trial.summary_metrics} == {"training", "validation", "mine"}
    checkpoint = scene.database.read_now(checkpoint_rows.require, "c4")
    assert checkpoint.searcher_metric == 0.4
    usage = scene.database.read_now(metrics.rows, 1, metrics.USAGE)
    assert [row.metrics for row in usage] == [{"cpu": 50.0, "node_1.cpu": 60.0}]


def test_usage_is_not_gone_back_on(scene: Scene) -> None:
    [gang] = scene.pool.running
    gang.report(MetricsReport(group="training", steps_completed=4, metrics={"loss": 0.5}, time=1.0))
    gang.report(UsageReport(time=100.0, usage={"cpu": 50.0}))
    scene.ship(gang)
    scene.pool.end(ID, Outcome.LOST)
    scene.engine.round()
    assert _steps(scene) == []
    assert _steps(scene, metrics.USAGE) == [100_000]


def test_invalid_hyperparameters(scene: Scene) -> None:
    [gang] = scene.pool.running
    gang.report(EarlyExitReport(reason="invalid_hp", message="batch too large"))
    scene.ship(gang)
    scene.pool.end(ID, Outcome.COMPLETED)
    scene.engine.round()
    assert (scene.trials()[0].state, scene.trials()[0].error) == (TrialState.ERROR, "batch too large")


def test_numbers_that_are_none(scene: Scene) -> None:
    row = _row(1, loss=math.nan, top=math.inf, low=-math.inf, huge=2**63, tiny=1e-310, zero=-0.0)
    _send(scene, row)
    [stored] = scene.database.read_now(metrics.rows, 1, "training")
    assert repr(stored.metrics) == repr(row["metrics"])


def test_the_last_reports_are_taken_from_the_spool(scene: Scene) -> None:
    [gang] = scene.pool.running
    ending = Training()(gang)
    scene.pool.end(ID, ending)
    scene.engine.round()
    assert scene.trials()[0].latest_checkpoint == "trial-1.1-16"


def test_nothing_is_taken_of_what_is_over(scene: Scene) -> None:
    [gang] = scene.pool.running
    scene.pool.end(ID, Outcome.LOST)
    scene.engine.round()
    with pytest.raises(errors.StaleRunEpoch):
        scene.ship(FakeGang(gang.gang, 1))
    with pytest.raises(errors.NotFound):
        scene.database.write_now(
            reports.ingest, "trial-9.1", ReportBatch(run_epoch=1, source=Source.CHIEF, first=0, reports=[])
        )


def test_another_epoch_is_refused(scene: Scene) -> None:
    with pytest.raises(errors.StaleRunEpoch):
        _send(scene, _row(1), run_epoch=2)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no batch"),
        (b"[]", "no batch"),
        (b"[" * 100_000, "no batch"),
        (b'{"run_epoch": 1, "first": 0, "source": "chief"}', "no list"),
        (_body(source="somebody"), "chief or node"),
        (_body(first=-1), "run_epoch and first"),
        (_body(run_epoch="1"), "run_epoch and first"),
        (_body(_row(1), {**_row(2), "steps_completed": "2"}), "line 1"),
        (_body(_row(1), 7, first=4), "line 5"),
        (_body({**_row(1), "metrics": [1]}), "line 0 is no report: metrics"),
        (_body({**_row(1), "extra": 1}), "line 0"),
        (_body(_row(-1)), "line 0"),
        (_body(_row(2**63)), "line 0"),
        (_body({**_row(1), "steps_completed": True}), "line 0"),
        (_body({"kind": "gossip"}), "line 0"),
        (_body({**_row(1), "group": None}), "line 0 is no report: metrics.group"),
    ],
)
def test_what_is_wrong_is_named(body: bytes, says: str) -> None:
    with pytest.raises(errors.BadRequest, match=says):
        reports.understand(body)
