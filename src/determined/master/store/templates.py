"""Templates: pieces of configuration that others start from."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from determined.master.records import Template
from determined.master.store import rows
from determined.master.store.database import Tx
from determined.master.store.tables import templates


def get(tx: Tx, name: str) -> Template | None:
    """A template by name."""
    return rows.one(Template, tx.execute(sa.select(templates).where(templates.c.name == name)))


def everything(tx: Tx) -> list[Template]:
    """All templates, by name."""
    return rows.several(Template, tx.execute(sa.select(templates).order_by(templates.c.name)))


def put(tx: Tx, name: str, config: dict[str, Any], workspace_id: int | None, user_id: int | None) -> Template:
    """Make a template, or give one another content; it stays with whoever made it."""
    values = {"config": config, "workspace_id": workspace_id}
    if not tx.execute(sa.update(templates).where(templates.c.name == name).values(values)).rowcount:
        tx.execute(sa.insert(templates), {"name": name, "user_id": user_id, **values})
    found = get(tx, name)
    assert found is not None
    return found


def delete(tx: Tx, name: str) -> None:
    """Remove a template."""
    tx.execute(sa.delete(templates).where(templates.c.name == name))
