"""Searches in the database: what each was told and answered, and snapshots of what it knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from determined import errors
from determined.master.records import Search, SearchEvent
from determined.master.store import rows, tables
from determined.master.store.database import Tx

_table = tables.searches
_events = tables.search_events
_snapshots = tables.search_snapshots


def require(tx: Tx, experiment_id: int) -> Search:
    """How the search of an experiment stands; raises NotFound."""
    found = rows.one(Search, tx.execute(_BY_EXPERIMENT, {"experiment": experiment_id}))
    if found is None:
        raise errors.NotFound(f"experiment {experiment_id} has no search")
    return found


_BY_EXPERIMENT = sa.select(_table).where(_table.c.experiment_id == sa.bindparam("experiment"))


def insert(tx: Tx, experiment_id: int, *, unit: str | None, is_over: bool = False) -> None:
    """A search that has been told nothing yet."""
    tx.execute(sa.insert(_table), {"experiment_id": experiment_id, "events": 0, "is_over": is_over, "unit": unit})


def update(tx: Tx, experiment_id: int, **values: Any) -> None:
    """Set columns."""
    tx.execute(sa.update(_table).where(_table.c.experiment_id == experiment_id), values)


def append(
    tx: Tx,
    experiment_id: int,
    number: int,
    kind: str,
    *,
    trial: int | None,
    told: Any,
    actions: Sequence[Mapping[str, Any]],
) -> None:
    """Add the event with this number to what the search was told."""
    tx.execute(
        sa.insert(_events),
        {
            "experiment_id": experiment_id,
            "number": number,
            "kind": kind,
            "trial": trial,
            "told": told,
            "actions": actions,
            "time": tx.now,
        },
    )


def events(tx: Tx, experiment_id: int, first: int = 0, limit: int | None = None) -> list[SearchEvent]:
    """What the search was told and answered, from event ``first`` on."""
    query = sa.select(_events).where(_events.c.experiment_id == experiment_id, _events.c.number >= first)
    return rows.several(SearchEvent, tx.execute(query.order_by(_events.c.number).limit(limit)))


def save_snapshot(tx: Tx, experiment_id: int, number: int, state: Any) -> None:
    """Keep what the search knows after so many events, instead of what it knew before."""
    tx.execute(sa.delete(_snapshots).where(_snapshots.c.experiment_id == experiment_id))
    tx.execute(sa.insert(_snapshots), {"experiment_id": experiment_id, "events": number, "state": state})


def snapshot(tx: Tx, experiment_id: int) -> tuple[int, Any] | None:
    """After how many events what it knew was kept last, and what that was."""
    row = tx.execute(
        sa.select(_snapshots.c.events, _snapshots.c.state).where(_snapshots.c.experiment_id == experiment_id)
    ).one_or_none()
    return None if row is None else (row[0], row[1])
