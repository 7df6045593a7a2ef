"""Rows of metrics: one for each report, and one only for a trial's steps in a group.

Rows come in order nearly always, and then cost one insert. Two reports of the same steps are one row with the metrics
of both; one of a later attempt takes the place of an earlier attempt's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from determined.master.store import series, tables
from determined.master.store.database import Tx
from determined.master.store.series import Row, Tail

# What machines report about themselves. Its rows are counted in milliseconds, not in steps, and are not rewound.
USAGE = "system"

_metrics = tables.metrics


@dataclasses.dataclass(frozen=True, slots=True)
class MetricsRow:
    """One report of metrics."""

    trial_id: int
    group: str
    steps_completed: int
    run_epoch: int
    time: float
    metrics: dict[str, Any]


def insert_many(tx: Tx, trial_id: int, group: str, run_epoch: int, rows: Sequence[Row]) -> Tail:
    """Store reports of one group, in any order; returns what the group's series come to."""
    rows = _in_order(rows)
    tail = series.tail_of(tx, trial_id, group)
    late = 0
    while late < len(rows) and rows[late].steps <= tail.steps:
        late += 1
    if late:
        tail = series.replace(
            tx, trial_id, group, rows[0].steps, lambda: _merge(tx, trial_id, group, run_epoch, rows[:late])
        )
        rows = rows[late:]
    if rows:
        encode = tables.encode
        tx.insert_many(
            _metrics, [(trial_id, group, row.steps, run_epoch, row.time, encode(row.metrics)) for row in rows]
        )
        tail = series.append(tx, trial_id, group, rows)
    return tail


def rows(
    tx: Tx, trial_id: int, group: str | None = None, after_steps: int = -1, limit: int | None = None
) -> list[MetricsRow]:
    """Reports of a trial after some step, by group and steps; of all its groups if none is named."""
    statement = (
        sa.select(
            _metrics.c.trial_id,
            _metrics.c.group,
            _metrics.c.steps_completed,
            _metrics.c.run_epoch,
            _metrics.c.time,
            _metrics.c.metrics,
        )
        .where(_metrics.c.trial_id == trial_id, _metrics.c.steps_completed > after_steps)
        .order_by(_metrics.c.group, _metrics.c.steps_completed)
    )
    if group is not None:
        statement = statement.where(_metrics.c.group == group)
    if limit is not None:
        statement = statement.limit(limit)
    found: Iterable[Any] = tx.execute(statement)
    return [
        MetricsRow(trial, its_group, steps, epoch, time, tables.decode(document))
        for trial, its_group, steps, epoch, time, document in found
    ]


def count(tx: Tx, trial_id: int, group: str) -> int:
    """How many reports a group has."""
    return series.load_tail(tx, trial_id, group).rows


def get(tx: Tx, trial_id: int, group: str, steps: int) -> dict[str, Any] | None:
    """The metrics of one report."""
    found = tx.execute(
        sa.select(_metrics.c.metrics).where(
            _metrics.c.trial_id == trial_id, _metrics.c.group == group, _metrics.c.steps_completed == steps
        )
    ).scalar_one_or_none()
    return None if found is None else tables.decode(found)


def latest(tx: Tx, trial_id: int, group: str) -> MetricsRow | None:
    """The last report of a group."""
    statement = (
        sa.select(_metrics)
        .where(_metrics.c.trial_id == trial_id, _metrics.c.group == group)
        .order_by(_metrics.c.steps_completed.desc())
        .limit(1)
    )
    row = tx.execute(statement).one_or_none()
    if row is None:
        return None
    return MetricsRow(row.trial_id, row.group, row.steps_completed, row.run_epoch, row.time, tables.decode(row.metrics))


def rewind(tx: Tx, trial_id: int, steps: int) -> dict[str, dict[str, Any]]:
    """Delete what a trial reported after ``steps``, in all groups; returns the summary of what is left.

    For a trial that goes on from a cut: what comes after the cut is about to be reported again.
    """
    summary = {}
    for group in series.groups(tx, trial_id):
        if group == USAGE:
            continue
        tail = series.rewind(tx, trial_id, group, steps)
        if tail.rows:
            summary[group] = tail.summary()
    return summary


def delete(tx: Tx, trial_id: int) -> None:
    """Delete all that a trial reported."""
    tx.execute(sa.delete(_metrics).where(_metrics.c.trial_id == trial_id))
    series.delete(tx, trial_id)


def delete_some(tx: Tx, trial_id: int, limit: int) -> int:
    """Delete some of the rows of a trial, and tell how many; for one that has very many. Its series go separately."""
    some = (
        sa.select(_metrics.c.group, _metrics.c.steps_completed)
        .where(_metrics.c.trial_id == trial_id)
        .order_by(_metrics.c.group, _metrics.c.steps_completed)
        .offset(limit - 1)
        .limit(1)
    )
    end = tx.execute(some).one_or_none()
    rest = sa.delete(_metrics).where(_metrics.c.trial_id == trial_id)
    if end is not None:
        group, steps = end
        rest = rest.where(
            (_metrics.c.group < group) | ((_metrics.c.group == group) & (_metrics.c.steps_completed <= steps))
        )
    return tx.execute(rest).rowcount


def _in_order(rows: Sequence[Row]) -> Sequence[Row]:
    """By steps, each steps once; later reports win where two have the same metric."""
    steps = [row.steps for row in rows]
    if all(map(int.__lt__, steps, steps[1:])):
        return rows
    merged: dict[int, Row] = {}
    for row in rows:
        before = merged.get(row.steps)
        merged[row.steps] = row if before is None else Row(row.steps, row.time, {**before.metrics, **row.metrics})
    return [merged[step] for step in sorted(merged)]


def _merge(tx: Tx, trial_id: int, group: str, run_epoch: int, rows: Sequence[Row]) -> int:
    """Insert rows that may be there, and tell how many were not."""
    of_group = (_metrics.c.trial_id == trial_id, _metrics.c.group == group)
    there: dict[int, tuple[int, str]] = {}
    for at in range(0, len(rows), 500):
        steps = [row.steps for row in rows[at : at + 500]]
        some = sa.select(_metrics.c.steps_completed, _metrics.c.run_epoch, _metrics.c.metrics).where(
            *of_group, _metrics.c.steps_completed.in_(steps)
        )
        found: Iterable[Any] = tx.execute(some)
        there.update((step, (epoch, document)) for step, epoch, document in found)
    new = []
    for row in rows:
        before = there.get(row.steps)
        if before is None:
            new.append((trial_id, group, row.steps, run_epoch, row.time, tables.encode(row.metrics)))
            continue
        epoch, document = before
        metrics = {**tables.decode(document), **row.metrics} if epoch == run_epoch else row.metrics
        tx.execute(
            sa.update(_metrics).where(*of_group, _metrics.c.steps_completed == row.steps),
            {"run_epoch": run_epoch, "time": row.time, "metrics": tables.encode(metrics)},
        )
    tx.insert_many(_metrics, new)
    return len(new)
