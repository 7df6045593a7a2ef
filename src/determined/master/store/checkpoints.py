"""Checkpoints in the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from determined import errors
from determined.master.records import Checkpoint, CheckpointState
from determined.master.states import ExperimentState, TrialState
from determined.master.store import rows, tables
from determined.master.store.database import Tx

_table = tables.checkpoints
_UNFINISHED_TRIAL = tuple(state.value for state in TrialState if not state.has_ended)
_UNFINISHED_EXPERIMENT = tuple(state.value for state in ExperimentState if not state.has_ended)


def get(tx: Tx, uuid: str) -> Checkpoint | None:
    """A checkpoint, if there is one."""
    return rows.one(Checkpoint, tx.execute(_BY_ID, {"key": uuid}))


_BY_ID = sa.select(_table).where(_table.c.uuid == sa.bindparam("key"))


def require(tx: Tx, uuid: str) -> Checkpoint:
    """A checkpoint by its uuid, or by the beginning of it if no other begins so; raises CheckpointNotFound."""
    found = get(tx, uuid)
    if found is not None:
        return found
    if len(uuid) >= 4:
        # "~" sorts after everything that a uuid is written with.
        query = sa.select(_table).where(_table.c.uuid >= uuid, _table.c.uuid < uuid + "~")
        candidates = rows.several(Checkpoint, tx.execute(query.limit(2)))
        if len(candidates) > 1:
            raise errors.CheckpointNotFound(f"several checkpoints begin with {uuid}; give more of the uuid")
        if candidates:
            return candidates[0]
    raise errors.CheckpointNotFound(f"there is no checkpoint {uuid}")


def insert(tx: Tx, values: Mapping[str, Any]) -> None:
    """A new checkpoint."""
    tx.execute(sa.insert(_table), rows.plain(values))


def update(tx: Tx, uuid: str, **values: Any) -> None:
    """Set columns."""
    if values:
        tx.execute(_UPDATE, {"key": uuid, **rows.plain(values)})


_UPDATE = sa.update(_table).where(_table.c.uuid == sa.bindparam("key"))


def all_of(
    tx: Tx,
    *,
    experiment_id: int | None = None,
    task_id: str | None = None,
    states: Collection[CheckpointState] | None = None,
) -> list[Checkpoint]:
    """Every checkpoint of an experiment or a task, the oldest first."""
    query = sa.select(_table)
    if experiment_id is not None:
        query = query.where(_table.c.experiment_id == experiment_id)
    if task_id is not None:
        query = query.where(_table.c.task_id == task_id)
    if states is not None:
        query = query.where(_table.c.state.in_([state.value for state in states]))
    return rows.several(Checkpoint, tx.execute(query.order_by(_table.c.reported_at, _table.c.uuid)))


def usable(tx: Tx, *, experiment_id: int | None = None, trial_id: int | None = None) -> list[Sequence[Any]]:
    """Uuid, trial, steps, metric, when reported: of every complete checkpoint of an experiment or a trial."""
    query = sa.select(
        _table.c.uuid, _table.c.trial_id, _table.c.steps_completed, _table.c.searcher_metric, _table.c.reported_at
    ).where(_table.c.state == CheckpointState.COMPLETED.value)
    if experiment_id is not None:
        query = query.where(_table.c.experiment_id == experiment_id)
    if trial_id is not None:
        query = query.where(_table.c.trial_id == trial_id)
    return [*tx.execute(query)]


def best_of_experiment(tx: Tx, experiment_id: int, count: int, smaller_is_better: bool) -> list[Sequence[Any]]:
    """The same of the best ``count`` checkpoints of an experiment."""
    metric = _table.c.searcher_metric
    return [
        *tx.execute(
            sa.select(_table.c.uuid, _table.c.trial_id, _table.c.steps_completed, metric, _table.c.reported_at)
            .where(
                _table.c.experiment_id == experiment_id,
                _table.c.state == CheckpointState.COMPLETED.value,
                metric.is_not(None),
            )
            .order_by(metric if smaller_is_better else metric.desc(), _table.c.reported_at, _table.c.uuid)
            .limit(count)
        )
    ]


def latest_of_trial(tx: Tx, trial_id: int) -> Checkpoint | None:
    """The complete checkpoint of a trial that has the most steps."""
    query = sa.select(_table).where(_table.c.trial_id == trial_id, _table.c.state == CheckpointState.COMPLETED.value)
    ordered = query.order_by(_table.c.steps_completed.desc(), _table.c.reported_at.desc(), _table.c.uuid).limit(1)
    return rows.one(Checkpoint, tx.execute(ordered))


def latest_of_experiment(tx: Tx, experiment_id: int) -> set[str]:
    """The latest checkpoint of each trial of an experiment."""
    trials = tables.trials
    query = sa.select(trials.c.latest_checkpoint).where(
        trials.c.experiment_id == experiment_id, trials.c.latest_checkpoint.is_not(None)
    )
    return {*tx.execute(query).scalars()}


def set_metric(tx: Tx, trial_id: int, steps: int, value: float | None) -> None:
    """A trial's validation after so many steps is also that of its checkpoint of those steps."""
    tx.execute(
        sa.update(_table)
        .where(_table.c.trial_id == trial_id, _table.c.steps_completed == steps)
        .values(searcher_metric=value)
    )


def deleting(tx: Tx, limit: int = 1000) -> list[Checkpoint]:
    """Checkpoints whose files are to be removed."""
    query = sa.select(_table).where(_table.c.state == CheckpointState.DELETING.value)
    return rows.several(Checkpoint, tx.execute(query.order_by(_table.c.reported_at, _table.c.uuid).limit(limit)))


def registered(tx: Tx, *, experiment_id: int | None = None, uuids: Collection[str] | None = None) -> dict[str, str]:
    """Checkpoints that registered models hold: their uuids, and which version of what model it is."""
    versions, models = tables.model_versions, tables.models
    query = sa.select(versions.c.checkpoint_uuid, models.c.name, versions.c.version).join(
        models, models.c.id == versions.c.model_id
    )
    if experiment_id is not None:
        query = query.join(_table, _table.c.uuid == versions.c.checkpoint_uuid).where(
            _table.c.experiment_id == experiment_id
        )
    if uuids is not None:
        query = query.where(versions.c.checkpoint_uuid.in_([*uuids]))
    return {uuid: f"version {version} of model {name}" for uuid, name, version in tx.execute(query)}


def used(
    tx: Tx, *, experiment_id: int | None = None, trial_id: int | None = None, uuids: Collection[str] | None = None
) -> dict[str, str]:
    """Checkpoints that what has not ended goes on from, or begins with: their uuids, and whose they are.

    Of all, or of those of one experiment or trial, or of these.
    """
    trials, experiments = tables.trials, tables.experiments
    among = sa.select(_table.c.uuid)
    if experiment_id is not None:
        among = among.where(_table.c.experiment_id == experiment_id)
    if trial_id is not None:
        among = among.where(_table.c.trial_id == trial_id)
    found: dict[str, str] = {}
    unfinished = trials.c.state.in_(_UNFINISHED_TRIAL)
    for column in (trials.c.latest_checkpoint, trials.c.source_checkpoint):
        query = sa.select(column, trials.c.id).where(unfinished, column.is_not(None))
        query = query.where(column.in_([*uuids])) if uuids is not None else query.where(column.in_(among))
        found.update({uuid: f"trial {trial}" for uuid, trial in tx.execute(query)})
    source = experiments.c.source_checkpoint
    query = sa.select(source, experiments.c.id).where(
        experiments.c.state.in_(_UNFINISHED_EXPERIMENT), source.is_not(None)
    )
    query = query.where(source.in_([*uuids])) if uuids is not None else query.where(source.in_(among))
    found.update({uuid: f"experiment {experiment}" for uuid, experiment in tx.execute(query)})
    return found
