"""The queue in the database: what wants slots and what holds them, read in as few rows as scheduling needs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from determined.master.states import TaskState, TrialState
from determined.master.store import tables
from determined.master.store.database import Tx

_e, _t, _k, _a = tables.experiments, tables.trials, tables.tasks, tables.allocations
_HOLDING = [state.value for state in TrialState if state.has_allocation]
_IN_QUEUE = [TrialState.QUEUED.value, *_HOLDING]
_TASKS_HOLDING = [state.value for state in TaskState if state.has_allocation]
_TASKS_IN_QUEUE = [TaskState.QUEUED.value, *_TASKS_HOLDING]


def trials(tx: Tx) -> list[Sequence[Any]]:
    """Of every queued or running trial that this master starts itself: id, number, state, retry_at, experiment and the
    nodes it may not be on."""
    return [*tx.execute(_TRIALS)]


_TRIALS = sa.select(_t.c.id, _t.c.number, _t.c.state, _t.c.retry_at, _t.c.experiment_id, _t.c.excluded_nodes).where(
    _t.c.state.in_(_IN_QUEUE), _t.c.copy_from_steps.is_(None)
)


def jobs(tx: Tx) -> list[Sequence[Any]]:
    """Of every experiment that has such trials: id, pool, slots, priority, weight, max_slots, queued_at,
    single_node."""
    return [*tx.execute(_JOBS)]


_JOBS = sa.select(
    _e.c.id,
    _e.c.resource_pool,
    _e.c.slots_per_trial,
    _e.c.priority,
    _e.c.weight,
    _e.c.max_slots,
    _e.c.queued_at,
    _e.c.single_node,
).where(_e.c.id.in_(sa.select(_t.c.experiment_id).where(_t.c.state.in_(_IN_QUEUE))), _e.c.unmanaged.is_(False))


def tasks(tx: Tx) -> list[Sequence[Any]]:
    """Of every queued or running task: id, pool, slots, priority, weight, queued_at, state, retry_at, kind."""
    return [*tx.execute(_TASKS)]


_TASKS = sa.select(
    _k.c.id,
    _k.c.resource_pool,
    _k.c.slots,
    _k.c.priority,
    _k.c.weight,
    _k.c.queued_at,
    _k.c.state,
    _k.c.retry_at,
    _k.c.kind,
).where(_k.c.state.in_(_TASKS_IN_QUEUE))


def holding(tx: Tx) -> dict[str, Sequence[Any]]:
    """Of everything that holds slots, by the task's id: that, the pool, the placement, and how many slots."""
    return {row[0]: row for row in tx.execute(_HOLDING_SLOTS)}


_HOLDING_SLOTS = sa.select(_a.c.task_id, _a.c.pool, _a.c.placement, _a.c.slots).where(
    _a.c.state.in_(("assigned", "running", "stopping"))
)


def experiments_in_line(tx: Tx) -> list[Sequence[Any]]:
    """Of every experiment in the queue what people are shown of it."""
    has_trials = sa.select(_t.c.experiment_id).where(_t.c.state.in_(_IN_QUEUE))
    return [
        *tx.execute(
            sa.select(
                _e.c.id,
                _e.c.name,
                _e.c.user_id,
                _e.c.state,
                _e.c.wanted,
                _e.c.resource_pool,
                _e.c.priority,
                _e.c.weight,
                _e.c.slots_per_trial,
                _e.c.queued_at,
            ).where(_e.c.id.in_(has_trials), _e.c.unmanaged.is_(False))
        )
    ]


def trial_states(tx: Tx, experiment_ids: Collection[int]) -> list[Sequence[Any]]:
    """How many trials of each state in the queue these experiments have: experiment, state, count."""
    return [
        *tx.execute(
            sa.select(_t.c.experiment_id, _t.c.state, sa.func.count())
            .where(_t.c.experiment_id.in_([*experiment_ids]), _t.c.state.in_(_IN_QUEUE))
            .group_by(_t.c.experiment_id, _t.c.state)
        )
    ]


def tasks_in_line(tx: Tx) -> list[Sequence[Any]]:
    """Of every task in the queue what people are shown of it."""
    return [
        *tx.execute(
            sa.select(
                _k.c.id,
                _k.c.name,
                _k.c.kind,
                _k.c.user_id,
                _k.c.state,
                _k.c.wanted,
                _k.c.resource_pool,
                _k.c.priority,
                _k.c.weight,
                _k.c.slots,
                _k.c.queued_at,
            ).where(_k.c.state.in_(_TASKS_IN_QUEUE))
        )
    ]
