"""What changed, for whoever watches. Written by ``Tx.changed``; old rows are dropped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from determined.master.store import tables
from determined.master.store.database import Tx
from determined.wire.views import Change

_table = tables.changes


def record(tx: Tx, noun: str, ids: Iterable[object], experiment_id: int | None = None, **fields: Any) -> None:
    """Tell whoever watches that many things have changed in the same way."""
    rows = [
        {"time": tx.now, "noun": noun, "id": str(id), "experiment_id": experiment_id, "fields": fields} for id in ids
    ]
    if rows:
        tx.has_changes = tx.has_moves = True
        tx.execute(sa.insert(_table), rows)


def after(tx: Tx, seq: int, limit: int = 1000) -> list[Change]:
    """What changed after the change with this number, in order."""
    query = sa.select(_table).where(_table.c.seq > seq).order_by(_table.c.seq).limit(limit)
    return [Change.model_construct(**row._mapping) for row in tx.execute(query)]


def newest(tx: Tx) -> int:
    """The number of the newest change; 0 if there was none."""
    return int(tx.execute(sa.select(sa.func.max(_table.c.seq))).scalar_one() or 0)


def oldest(tx: Tx) -> int:
    """The number of the oldest change that is still there; 0 if there is none."""
    return int(tx.execute(sa.select(sa.func.min(_table.c.seq))).scalar_one() or 0)


def drop_before(tx: Tx, time: float, keep: int = 1000) -> int:
    """Drop what is older than ``time``, but never the newest ``keep``; how many were dropped."""
    dropped = tx.execute(sa.delete(_table).where(_table.c.time < time, _table.c.seq <= newest(tx) - keep))
    return dropped.rowcount
