"""Rows of metrics: one for each report, and one only for a trial's steps in a group.

Rows come in order nearly always, and then cost one insert. Two reports of the same steps are one row with the metrics
of both; one of a later attempt takes the place of an earlier attempt's.
"""

from __future__ import annotations

import bisect
import dataclasses
import operator
from collections.abc import Iterable
from itertools import islice, repeat
from typing import Any

import sqlalchemy as sa

from determined.master.store import series, tables
from determined.master.store.database import Tx
from determined.master.store.series import Row, Rows, Tail

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


def insert_many(tx: Tx, trial_id: int, group: str, run_epoch: int, rows: Rows) -> Tail:
    """Store reports of one group, in any order; returns what the group's series come to."""
    rows = _in_order(rows)
    tail = series.tail_of(tx, trial_id, group)
    late = bisect.bisect_right(rows.steps, tail.steps)
    if late:
        first = rows.cut(0, late)
        tail = series.replace(
            tx, trial_id, group, first.steps[0], lambda: _merge(tx, trial_id, group, run_epoch, first)
        )
        rows = rows.cut(late)
    if rows.steps:
        texts = tables.encode_many(rows.metrics)
        columns = (repeat(trial_id), repeat(group), rows.steps, repeat(run_epoch), rows.times, texts)
        tx.insert_many(_metrics, [*zip(*columns)])
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


def _in_order(rows: Rows) -> Rows:
    """By steps, each steps once; later reports win where two have the same metric."""
    if all(map(operator.lt, rows.steps, islice(rows.steps, 1, None))):
        return rows
    merged: dict[int, Row] = {}
    for row in map(Row, *rows):
        before = merged.get(row.steps)
        merged[row.steps] = row if before is None else Row(row.steps, row.time, {**before.metrics, **row.metrics})
    return Rows.of(merged[step] for step in sorted(merged))


def _merge(tx: Tx, trial_id: int, group: str, run_epoch: int, rows: Rows) -> int:
    """Insert rows that may be there, and tell how many were not."""
    of_group = (_metrics.c.trial_id == trial_id, _metrics.c.group == group)
    there: dict[int, tuple[int, str]] = {}
    for at in range(0, len(rows.steps), 500):
        steps = rows.steps[at : at + 500]
        some = sa.select(_metrics.c.steps_completed, _metrics.c.run_epoch, _metrics.c.metrics).where(
            *of_group, _metrics.c.steps_completed.in_(steps)
        )
        found: Iterable[Any] = tx.execute(some)
        there.update((step, (epoch, document)) for step, epoch, document in found)
    new = []
    for row in map(Row, *rows):
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
