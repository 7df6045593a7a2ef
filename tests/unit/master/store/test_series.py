"""Series are thinned without losing a spike, and are right after rewinds, late rows and restarts."""

from __future__ import annotations

import math
import pathlib
import random
from collections.abc import Iterator, Sequence

import pytest

from determined.master.store import metrics, series
from determined.master.store.database import Database, Tx, temporary_database
from determined.master.store.series import Row, Rows

GROUP = "training"


@pytest.fixture
def database(tmp_path: pathlib.Path) -> Iterator[Database]:
    with temporary_database(str(tmp_path / "master.db")) as database:
        yield database


def _store(database: Database, values: Sequence[float], first: int = 0, batch: int = 100, epoch: int = 1) -> None:
    for at in range(0, len(values), batch):
        rows = [Row(first + at + n, float(at + n), {"loss": value}) for n, value in enumerate(values[at : at + batch])]
        database.write_now(metrics.insert_many, 1, GROUP, epoch, Rows.of(rows))


def _read(database: Database, **options: int) -> series.Series:
    return database.read_now(series.series, 1, GROUP, "loss", **options)


def _forget(database: Database) -> None:
    """As a new master: it remembers nothing."""

    def forget(tx: Tx) -> None:
        tx.memory.clear()

    database.write_now(forget)


def _expect(database: Database, values: dict[int, float]) -> None:
    """That the series is that of these values, at several widths and in several windows."""
    steps = sorted(values)
    for points in (3, 50, 1000, 100_000):
        found = _read(database, points=points)
        assert found.total == len(values)
        assert len(found.steps) <= points
        assert found.steps[-1] == steps[-1]
        assert found.last == [values[step] for step in found.steps]
        at = 0
        for end, low, high in zip(found.steps, found.min, found.max):
            part = []
            while at < len(steps) and steps[at] <= end:
                part.append(values[steps[at]])
                at += 1
            assert (low, high) == (min(part), max(part))
        assert at == len(steps)
    low, high = steps[len(steps) // 3], steps[-len(steps) // 4]
    inside = [values[step] for step in steps if low <= step <= high]
    found = _read(database, points=100, first=low, last=high)
    assert min(found.min) <= min(inside)
    assert max(found.max) >= max(inside)
    rows = database.read_now(metrics.rows, 1, GROUP)
    assert [(row.steps_completed, row.metrics["loss"]) for row in rows] == [(step, values[step]) for step in steps]


@pytest.mark.parametrize("total", [1, 7, 8, 9, 64, 511, 5000])
def test_every_width_has_every_spike(database: Database, total: int) -> None:
    draw = random.Random(total)
    values = [draw.random() for _ in range(total)]
    values[draw.randrange(total)] = 1e9
    values[draw.randrange(total)] = -1e9
    _store(database, values)
    _expect(database, dict(enumerate(values)))


def test_there_is_nothing_to_show_of_what_was_not_reported(database: Database) -> None:
    assert _read(database).steps == []
    _store(database, [1.0])
    assert database.read_now(series.series, 1, GROUP, "accuracy").total == 0
    assert database.read_now(series.series, 1, "validation", "loss").total == 0


def test_numbers_that_are_none_are_points_and_no_extremes(database: Database) -> None:
    values = [math.nan, 1.0, math.inf, -math.inf, 2.0, math.nan] + [math.nan] * 64 + [3.0] * 10
    _store(database, values, batch=7)
    found = _read(database, points=100_000)
    assert [*map(str, found.last)] == [*map(str, values)]
    few = _read(database, points=5)
    assert (max(few.max), min(few.min)) == (math.inf, -math.inf)
    assert few.last[-1] == 3.0


def test_integers_nested_maps_and_words(database: Database) -> None:
    rows = [
        Row(step, 0.0, {"n": step, "eval": {"top1": step / 2, "note": "good"}, "huge": 10**400}) for step in range(20)
    ]
    database.write_now(metrics.insert_many, 1, GROUP, 1, Rows.of(rows))
    assert database.read_now(series.names, 1) == {GROUP: ["eval.top1", "huge", "n"]}
    assert database.read_now(series.series, 1, GROUP, "eval.top1").last[-1] == 9.5
    assert database.read_now(series.series, 1, GROUP, "huge").max[0] == math.inf
    assert database.read_now(series.summary, 1)[GROUP]["n"] == {"count": 20, "min": 0.0, "max": 19.0, "last": 19.0}


def test_a_metric_that_is_rare_is_found(database: Database) -> None:
    rows = [Row(n, 0.0, {"loss": 1.0, **({"rare": float(n)} if n % 1000 == 0 else {})}) for n in range(20_000)]
    for at in range(0, len(rows), 1000):
        database.write_now(metrics.insert_many, 1, GROUP, 1, Rows.of(rows[at : at + 1000]))
    found = database.read_now(series.series, 1, GROUP, "rare")
    assert (found.total, found.last[-1], found.min[0]) == (20, 19_000.0, 0.0)


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_rewinds_late_rows_and_restarts(database: Database, seed: int, forgets: bool) -> None:
    draw = random.Random(seed)
    values: dict[int, float] = {}
    step = 0
    for epoch in range(1, 25):
        if forgets and draw.random() < 0.5:
            _forget(database)
        kind = draw.random()
        if kind < 0.3 and step:
            step = draw.randrange(step)
            database.write_now(metrics.rewind, 1, step)
            values = {at: value for at, value in values.items() if at <= step}
        elif kind < 0.5 and values:
            late = [Row(draw.randrange(step + 1), 0.0, {"loss": draw.random()}) for _ in range(draw.randrange(1, 20))]
            database.write_now(metrics.insert_many, 1, GROUP, epoch, Rows.of(late))
            values.update((row.steps, row.metrics["loss"]) for row in late)
        else:
            rows = []
            for _ in range(draw.choice((1, 10, 100, 1500))):
                step += draw.choice((1, 1, 5))
                rows.append(Row(step, 0.0, {"loss": draw.random()}))
            for at in range(0, len(rows), 400):
                database.write_now(metrics.insert_many, 1, GROUP, epoch, Rows.of(rows[at : at + 400]))
            values.update((row.steps, row.metrics["loss"]) for row in rows)
        if values:
            step = max(values)
            _expect(database, values)
        else:
            assert _read(database).total == 0


def test_two_reports_of_the_same_steps_are_one_row(database: Database) -> None:
    for row in (Row(5, 1.0, {"loss": 1.0}), Row(5, 2.0, {"accuracy": 0.5}), Row(6, 3.0, {"loss": 0.5})):
        database.write_now(metrics.insert_many, 1, GROUP, 1, Rows.of([row]))
    assert database.read_now(metrics.get, 1, GROUP, 5) == {"loss": 1.0, "accuracy": 0.5}
    database.write_now(metrics.insert_many, 1, GROUP, 2, Rows.of([Row(5, 4.0, {"loss": 3.0})]))
    assert database.read_now(metrics.get, 1, GROUP, 5) == {"loss": 3.0}
    assert _read(database).last == [3.0, 0.5]
    assert database.read_now(series.series, 1, GROUP, "accuracy").total == 0


def test_rows_that_come_very_late_are_all_kept(database: Database) -> None:
    _store(database, [float(n) for n in range(12_000)], first=10, batch=1000)
    _store(database, [-7.0], first=3)
    _store(database, [5.0] * 3, first=20_000)
    found = _read(database, points=100)
    assert (found.total, min(found.min), found.last[-1]) == (12_004, -7.0, 5.0)
    database.write_now(metrics.rewind, 1, 5)
    assert _read(database).last == [-7.0]


def test_a_change_that_fails_leaves_no_trace(database: Database) -> None:
    _store(database, [1.0] * 20)

    def fail(tx: Tx) -> None:
        metrics.insert_many(tx, 1, GROUP, 1, Rows.of([Row(100, 0.0, {"loss": 9.0})]))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        database.write_now(fail)
    _store(database, [2.0] * 20, first=20)
    _expect(database, {**dict.fromkeys(range(20), 1.0), **dict.fromkeys(range(20, 40), 2.0)})


def test_deleted(database: Database) -> None:
    _store(database, [1.0] * 100)
    database.write_now(metrics.delete, 1)
    assert _read(database).total == 0
    assert database.read_now(metrics.rows, 1) == []
    _store(database, [2.0] * 5)
    _expect(database, dict.fromkeys(range(5), 2.0))
