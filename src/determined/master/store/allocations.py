"""Allocations in the database, and how much of their spools has been taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from determined import errors
from determined.master.records import Allocation, AllocationState
from determined.master.store import rows, tables
from determined.master.store.database import Tx

_table = tables.allocations
_LIVE = tuple(state.value for state in AllocationState if state is not AllocationState.ENDED)


def get(tx: Tx, allocation_id: str) -> Allocation | None:
    """An allocation, if there is one."""
    return rows.one(Allocation, tx.execute(_BY_ID, {"allocation": allocation_id}))


_BY_ID = sa.select(_table).where(_table.c.id == sa.bindparam("allocation"))


def require(tx: Tx, allocation_id: str) -> Allocation:
    """An allocation; raises NotFound."""
    found = get(tx, allocation_id)
    if found is None:
        raise errors.NotFound(f"there is no allocation {allocation_id}")
    return found


def insert(tx: Tx, values: Mapping[str, Any]) -> None:
    """A new attempt."""
    tx.execute(sa.insert(_table), rows.plain(values))


def update(tx: Tx, allocation_id: str, **values: Any) -> None:
    """Set columns."""
    if values:
        tx.execute(_UPDATE, {"key": allocation_id, **rows.plain(values)})


_UPDATE = sa.update(_table).where(_table.c.id == sa.bindparam("key"))


def live(tx: Tx, pool: str | None = None) -> list[Allocation]:
    """Every attempt that has not been seen to end, the oldest first."""
    found = tx.execute(_ALL_LIVE) if pool is None else tx.execute(_LIVE_OF_POOL, {"of": pool})
    return rows.several(Allocation, found)


_ALL_LIVE = sa.select(_table).where(_table.c.state.in_(_LIVE)).order_by(_table.c.created_at, _table.c.id)
_LIVE_OF_POOL = _ALL_LIVE.where(_table.c.pool == sa.bindparam("of"))


def live_of(tx: Tx, task_id: str) -> Allocation | None:
    """The attempt of a trial or task that has not been seen to end; there is one at most."""
    query = sa.select(_table).where(_table.c.task_id == task_id, _table.c.state.in_(_LIVE))
    return rows.one(Allocation, tx.execute(query))


def of_task(tx: Tx, task_id: str) -> list[Allocation]:
    """All attempts of a trial or task, in order."""
    query = sa.select(_table).where(_table.c.task_id == task_id).order_by(_table.c.run_epoch)
    return rows.several(Allocation, tx.execute(query))


def of_experiment(tx: Tx, experiment_id: int) -> list[Allocation]:
    """All attempts of an experiment's trials."""
    query = sa.select(_table).where(_table.c.experiment_id == experiment_id)
    return rows.several(Allocation, tx.execute(query.order_by(_table.c.trial_id, _table.c.run_epoch)))


def revoke_tokens(tx: Tx, allocation_id: str) -> None:
    """What an attempt was let in with opens nothing any more."""
    tokens = tables.tokens
    tx.execute(
        sa.update(tokens)
        .where(tokens.c.allocation_id == allocation_id, tokens.c.revoked_at.is_(None))
        .values(revoked_at=tx.now)
    )


def acknowledged(tx: Tx, allocation_id: str) -> dict[str, int]:
    """How many lines of each spool have been taken, by its source."""
    spools = tables.spools
    found = tx.execute(sa.select(spools.c.source, spools.c.acknowledged).where(spools.c.allocation_id == allocation_id))
    return {str(source): int(lines) for source, lines in found}


def delete_of(tx: Tx, task_id: str) -> None:
    """Remove all attempts of a task, and their tokens."""
    ids = sa.select(_table.c.id).where(_table.c.task_id == task_id)
    tx.execute(sa.delete(tables.tokens).where(tables.tokens.c.allocation_id.in_(ids)))
    tx.execute(sa.delete(_table).where(_table.c.task_id == task_id))
