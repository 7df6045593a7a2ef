"""What the master remembers about itself, by name."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from determined.master.store.database import Tx
from determined.master.store.tables import settings


def get(tx: Tx, name: str, default: Any = None) -> Any:
    """The value of a name, or the default."""
    row = tx.execute(sa.select(settings.c.value).where(settings.c.name == name)).one_or_none()
    return default if row is None else row[0]


def put(tx: Tx, name: str, value: Any) -> None:
    """Remember a value."""
    found = tx.execute(sa.update(settings).where(settings.c.name == name).values(value=value))
    if not found.rowcount:
        tx.execute(sa.insert(settings), {"name": name, "value": value})
