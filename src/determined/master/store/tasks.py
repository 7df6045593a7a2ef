"""Tasks in the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from determined import errors
from determined.master.records import Task
from determined.master.states import TaskState
from determined.master.store import rows, tables
from determined.master.store.database import Tx

_table = tables.tasks
SORTED_BY = {
    name: _table.c[name]
    for name in ("id", "kind", "name", "state", "user_id", "resource_pool", "created_at", "started_at", "ended_at")
}


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


def page(
    tx: Tx,
    *,
    kind: str | None = None,
    states: Collection[TaskState] | None = None,
    user_id: int | None = None,
    sort_by: str = "created_at",
    descending: bool = True,
    offset: int = 0,
    limit: int | None = 100,
) -> tuple[list[Task], int]:
    """Some tasks of those asked for, and how many there are in all; BadRequest for an unknown ``sort_by``."""
    conditions: list[sa.ColumnElement[bool]] = []
    if kind is not None:
        conditions.append(_table.c.kind == kind)
    if states is not None:
        conditions.append(_table.c.state.in_([state.value for state in states]))
    if user_id is not None:
        conditions.append(_table.c.user_id == user_id)
    found = tx.execute(
        sa.select(_table)
        .where(*conditions)
        .order_by(*rows.order(SORTED_BY, sort_by, descending, _table.c.id))
        .offset(offset)
        .limit(limit)
    )
    records = rows.several(Task, found)
    if offset == 0 and limit is not None and len(records) < limit:
        return records, len(records)
    total = tx.execute(sa.select(sa.func.count()).select_from(_table).where(*conditions)).scalar_one()
    return records, int(total)


def delete(tx: Tx, task_id: str) -> None:
    """Remove a task."""
    tx.execute(sa.delete(_table).where(_table.c.id == task_id))
