"""Experiments in the database."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from determined import errors
from determined.master.records import Experiment
from determined.master.states import ExperimentState, TrialState
from determined.master.store import rows, tables
from determined.master.store.database import Tx

_table = tables.experiments
SORTED_BY = {
    name: _table.c[name]
    for name in (
        "id",
        "name",
        "state",
        "progress",
        "searcher",
        "resource_pool",
        "priority",
        "best_metric",
        "trial_count",
        "checkpoint_count",
        "checkpoint_size",
        "user_id",
        "project_id",
        "parent_id",
        "created_at",
        "started_at",
        "ended_at",
    )
}


@dataclasses.dataclass(frozen=True)
class Filter:
    """Which experiments to list; what is None does not matter."""

    states: Collection[ExperimentState] | None = None
    label: str | None = None
    user_id: int | None = None
    name: str | None = None  # a part of it
    project_id: int | None = None
    workspace_id: int | None = None
    archived: bool | None = None
    unmanaged: bool | None = None
    ids: Collection[int] | None = None


def get(tx: Tx, experiment_id: int) -> Experiment | None:
    """An experiment, if there is one."""
    return rows.one(Experiment, tx.execute(_BY_ID, {"key": experiment_id}))


_BY_ID = sa.select(_table).where(_table.c.id == sa.bindparam("key"))


def require(tx: Tx, experiment_id: int) -> Experiment:
    """An experiment; raises NotFound."""
    found = get(tx, experiment_id)
    if found is None:
        raise errors.NotFound(f"there is no experiment {experiment_id}")
    return found


def by_external_id(tx: Tx, external_id: str) -> Experiment | None:
    """The run that somebody else knows by this id."""
    return rows.one(Experiment, tx.execute(sa.select(_table).where(_table.c.external_id == external_id)))


def insert(tx: Tx, values: Mapping[str, Any]) -> int:
    """A new experiment's id; ids are never used again."""
    inserted = tx.execute(sa.insert(_table), values).inserted_primary_key
    assert inserted is not None
    return int(inserted[0])


def update(tx: Tx, experiment_id: int, **values: Any) -> None:
    """Set columns."""
    if values:
        tx.execute(_UPDATE, {"key": experiment_id, **rows.plain(values)})


_UPDATE = sa.update(_table).where(_table.c.id == sa.bindparam("key"))


def add(tx: Tx, experiment_id: int, **amounts: int) -> None:
    """Add to columns that count."""
    tx.execute(
        sa.update(_table)
        .where(_table.c.id == experiment_id)
        .values({name: _table.c[name] + amount for name, amount in amounts.items()})
    )


def page(
    tx: Tx,
    which: Filter = Filter(),
    *,
    sort_by: str = "id",
    descending: bool = True,
    offset: int = 0,
    limit: int | None = 100,
    with_config: bool = False,
) -> tuple[list[Experiment], int]:
    """Some experiments of those asked for, and how many there are in all.

    Their configs, long as they are, are empty unless ``with_config``. Raises BadRequest for an unknown ``sort_by``.
    """
    conditions = _conditions(which)
    columns: Sequence[sa.ColumnElement[Any]] = [*_table.c]
    if not with_config:
        empty = {
            "config": sa.literal("{}").cast(tables.Document).label("config"),
            "written_config": sa.literal("").label("written_config"),
        }
        columns = [empty.get(column.name, column) for column in _table.c]
    found = tx.execute(
        sa.select(*columns)
        .where(*conditions)
        .order_by(*rows.order(SORTED_BY, sort_by, descending, _table.c.id))
        .offset(offset)
        .limit(limit)
    )
    records = rows.several(Experiment, found)
    if offset == 0 and limit is not None and len(records) < limit:
        return records, len(records)
    total = tx.execute(sa.select(sa.func.count()).select_from(_table).where(*conditions)).scalar_one()
    return records, int(total)


def ids(tx: Tx, states: Collection[ExperimentState]) -> list[int]:
    """The experiments in one of these states."""
    return [*tx.execute(sa.select(_table.c.id).where(_table.c.state.in_([s.value for s in states]))).scalars()]


def trial_counts(tx: Tx, experiment_ids: Collection[int]) -> dict[int, dict[TrialState, int]]:
    """How many trials of each state these experiments have."""
    trials = tables.trials
    counts: dict[int, dict[TrialState, int]] = {experiment_id: {} for experiment_id in experiment_ids}
    found = tx.execute(
        sa.select(trials.c.experiment_id, trials.c.state, sa.func.count())
        .where(trials.c.experiment_id.in_(counts))
        .group_by(trials.c.experiment_id, trials.c.state)
    )
    for experiment_id, state, count in found:
        counts[experiment_id][TrialState(state)] = count
    return counts


def is_running_in(tx: Tx, project_id: int) -> bool:
    """Whether a project holds an experiment that has not ended."""
    unfinished = [state.value for state in ExperimentState if not state.has_ended]
    query = sa.select(_table.c.id).where(_table.c.project_id == project_id, _table.c.state.in_(unfinished)).limit(1)
    return tx.execute(query).first() is not None


def project_is_open(tx: Tx, project_id: int) -> bool | None:
    """Whether a project takes experiments; None if there is no such project."""
    archived = tx.execute(
        sa.select(tables.projects.c.archived).where(tables.projects.c.id == project_id)
    ).scalar_one_or_none()
    return None if archived is None else not archived


def delete(tx: Tx, experiment_id: int) -> None:
    """Remove an experiment and everything that belongs to it."""
    of_it = sa.select(tables.trials.c.id).where(tables.trials.c.experiment_id == experiment_id)
    for table in (tables.metrics, tables.series_buckets, tables.series_tails):
        tx.execute(sa.delete(table).where(table.c.trial_id.in_(of_it)))
    attempts = sa.select(tables.allocations.c.id).where(tables.allocations.c.experiment_id == experiment_id)
    tx.execute(sa.delete(tables.tokens).where(tables.tokens.c.allocation_id.in_(attempts)))
    tx.execute(sa.delete(tables.allocations).where(tables.allocations.c.experiment_id == experiment_id))
    tx.execute(sa.delete(tables.checkpoints).where(tables.checkpoints.c.experiment_id == experiment_id))
    tx.execute(sa.delete(_table).where(_table.c.id == experiment_id))


def _conditions(which: Filter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if which.ids is not None:
        conditions.append(_table.c.id.in_([*which.ids]))
    if which.states is not None:
        conditions.append(_table.c.state.in_([state.value for state in which.states]))
    if which.label is not None:
        # Labels are stored as JSON text: a whole label is one with its quotes around it.
        conditions.append(
            sa.type_coerce(_table.c.labels, sa.Text).contains(tables.encode(which.label), autoescape=True)
        )
    if which.name is not None:
        conditions.append(_table.c.name.icontains(which.name, autoescape=True))
    for column, value in (
        (_table.c.user_id, which.user_id),
        (_table.c.project_id, which.project_id),
        (_table.c.archived, which.archived),
        (_table.c.unmanaged, which.unmanaged),
    ):
        if value is not None:
            conditions.append(column == value)
    if which.workspace_id is not None:
        projects = sa.select(tables.projects.c.id).where(tables.projects.c.workspace_id == which.workspace_id)
        conditions.append(_table.c.project_id.in_(projects))
    return conditions
