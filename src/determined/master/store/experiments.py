"""Experiments in the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from determined import errors
from determined.master.records import Experiment
from determined.master.states import ExperimentState, TrialState
from determined.master.store import rows, tables
from determined.master.store.database import Tx

_table = tables.experiments


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
