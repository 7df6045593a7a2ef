"""Trials in the database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from determined import errors
from determined.master.records import Trial
from determined.master.states import TrialState, Wanted
from determined.master.store import rows, tables
from determined.master.store.database import Tx

_table = tables.trials


def get(tx: Tx, trial_id: int) -> Trial | None:
    """A trial, if there is one."""
    return rows.one(Trial, tx.execute(_BY_ID, {"trial": trial_id}))


_BY_ID = sa.select(_table).where(_table.c.id == sa.bindparam("trial"))


def require(tx: Tx, trial_id: int) -> Trial:
    """A trial; raises NotFound."""
    found = get(tx, trial_id)
    if found is None:
        raise errors.NotFound(f"there is no trial {trial_id}")
    return found


def by_number(tx: Tx, experiment_id: int, number: int) -> Trial | None:
    """A trial as its search knows it."""
    query = sa.select(_table).where(_table.c.experiment_id == experiment_id, _table.c.number == number)
    return rows.one(Trial, tx.execute(query))


def by_external_id(tx: Tx, experiment_id: int, external_id: str) -> Trial | None:
    """The trial of a run that somebody else knows by this id."""
    query = sa.select(_table).where(_table.c.experiment_id == experiment_id, _table.c.external_id == external_id)
    return rows.one(Trial, tx.execute(query))


def of_experiment(
    tx: Tx, experiment_id: int, states: Collection[TrialState] | None = None, after_number: int = -1
) -> list[Trial]:
    """The trials of an experiment, by number."""
    query = sa.select(_table).where(_table.c.experiment_id == experiment_id, _table.c.number > after_number)
    if states is not None:
        query = query.where(_table.c.state.in_([state.value for state in states]))
    return rows.several(Trial, tx.execute(query.order_by(_table.c.number)))


def insert(tx: Tx, values: Mapping[str, Any]) -> int:
    """A new trial's id; ids are never used again."""
    inserted = tx.execute(sa.insert(_table), rows.plain(values)).inserted_primary_key
    assert inserted is not None
    return int(inserted[0])


def update(tx: Tx, trial_id: int, **values: Any) -> None:
    """Set columns."""
    if values:
        tx.execute(_UPDATE, {"key": trial_id, **rows.plain(values)})


_UPDATE = sa.update(_table).where(_table.c.id == sa.bindparam("key"))


def update_all(tx: Tx, trial_ids: Sequence[int], **values: Any) -> None:
    """Set the same columns of many trials."""
    if trial_ids:
        statement = sa.update(_table).where(_table.c.id == sa.bindparam("trial")).values(**rows.plain(values))
        # One statement for each: lists of ids have a limit in both databases.
        tx.execute(statement, [{"trial": trial_id} for trial_id in trial_ids])


def states(tx: Tx, experiment_id: int) -> set[TrialState]:
    """Which states the trials of an experiment are in; as fast for a million of them as for ten."""
    row = tx.execute(_EACH_STATE, {"experiment": experiment_id}).one()
    return {state for state, is_there in zip(TrialState, row) if is_there}


_EACH_STATE = sa.select(
    *(
        sa.exists()
        .where(_table.c.experiment_id == sa.bindparam("experiment"), _table.c.state == state.value)
        .label(state.value)
        for state in TrialState
    )
)


def brief(tx: Tx, experiment_id: int, states: Iterable[TrialState]) -> list[tuple[int, int, TrialState, Wanted]]:
    """Id, number, state and what is wanted of each trial in one of these states, by number."""
    found = tx.execute(
        sa.select(_table.c.id, _table.c.number, _table.c.state, _table.c.wanted)
        .where(_table.c.experiment_id == experiment_id, _table.c.state.in_([state.value for state in states]))
        .order_by(_table.c.number)
    )
    return [(trial_id, number, TrialState(state), Wanted(wanted)) for trial_id, number, state, wanted in found]


def progress(tx: Tx, experiment_id: int) -> dict[int, float]:
    """How much of each trial is done, by number."""
    found = tx.execute(sa.select(_table.c.number, _table.c.progress).where(_table.c.experiment_id == experiment_id))
    return {int(number): float(done) for number, done in found}


def best(tx: Tx, experiment_id: int, smaller_is_better: bool) -> tuple[int, float] | None:
    """The trial with the best value of the searcher's metric, and that value; the earliest of equals."""
    value = _table.c.best_metric
    row = tx.execute(
        sa.select(_table.c.id, value)
        .where(_table.c.experiment_id == experiment_id, value.is_not(None))
        .order_by(value if smaller_is_better else value.desc(), _table.c.number)
        .limit(1)
    ).one_or_none()
    return None if row is None else (row[0], row[1])


def waiting_for_copy(tx: Tx, experiment_id: int, number: int) -> list[tuple[int, int]]:
    """Trials that wait for a checkpoint of the trial with this number: their ids, and of which steps it must be."""
    found = tx.execute(
        sa.select(_table.c.id, _table.c.copy_from_steps)
        .where(
            _table.c.experiment_id == experiment_id,
            _table.c.copy_of == number,
            _table.c.copy_from_steps.is_not(None),
        )
        .order_by(_table.c.number)
    )
    return [(trial_id, steps) for trial_id, steps in found]


def validations(
    tx: Tx, trial_id: int, up_to: int | None = None, at: int | None = None
) -> list[tuple[int, dict[str, Any]]]:
    """Steps and metrics of a trial's validations, in order: all, those ``up_to`` some steps, or the one ``at`` them."""
    metrics = tables.metrics
    query = sa.select(metrics.c.steps_completed, metrics.c.metrics).where(
        metrics.c.trial_id == trial_id, metrics.c.group == "validation"
    )
    if up_to is not None:
        query = query.where(metrics.c.steps_completed <= up_to)
    if at is not None:
        query = query.where(metrics.c.steps_completed == at)
    return [(steps, tables.decode(text)) for steps, text in tx.execute(query.order_by(metrics.c.steps_completed))]
