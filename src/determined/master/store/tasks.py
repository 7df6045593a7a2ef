"""Tasks in the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from determined import errors
from determined.master.records import Task
from determined.master.store import rows, tables
from determined.master.store.database import Tx

_table = tables.tasks


def get(tx: Tx, task_id: str) -> Task | None:
    """A task, if there is one."""
    return rows.one(Task, tx.execute(sa.select(_table).where(_table.c.id == task_id)))


def require(tx: Tx, task_id: str) -> Task:
    """A task; raises NotFound."""
    found = get(tx, task_id)
    if found is None:
        raise errors.NotFound(f"there is no task {task_id}")
    return found


def next_number(tx: Tx, kind: str) -> int:
    """The number of the next task of a kind; none is ever given twice."""
    counters = tables.counters
    name = f"task {kind}"
    number = tx.execute(sa.select(counters.c.value).where(counters.c.name == name)).scalar_one_or_none()
    if number is None:
        tx.execute(sa.insert(counters), {"name": name, "value": 1})
        return 1
    tx.execute(sa.update(counters).where(counters.c.name == name), {"value": number + 1})
    return int(number) + 1


def insert(tx: Tx, values: Mapping[str, Any]) -> None:
    """A new task."""
    tx.execute(sa.insert(_table), rows.plain(values))


def update(tx: Tx, task_id: str, **values: Any) -> None:
    """Set columns."""
    if values:
        tx.execute(sa.update(_table).where(_table.c.id == task_id), rows.plain(values))


def delete(tx: Tx, task_id: str) -> None:
    """Remove a task."""
    tx.execute(sa.delete(_table).where(_table.c.id == task_id))
