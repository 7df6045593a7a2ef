"""Submitted code: which archives there are, and what is in them. The archives themselves are files."""

from __future__ import annotations

import sqlalchemy as sa

from determined.master.records import CodeContext
from determined.master.store import rows
from determined.master.store.database import Tx
from determined.master.store.tables import contexts, experiments, tasks


def get(tx: Tx, sha256: str) -> CodeContext | None:
    """The code whose archive has this hash."""
    return rows.one(CodeContext, tx.execute(sa.select(contexts).where(contexts.c.sha256 == sha256)))


def insert(tx: Tx, sha256: str, size: int, files: dict[str, int]) -> CodeContext:
    """Code that has just been taken in; again is fine."""
    if get(tx, sha256) is None:
        tx.execute(sa.insert(contexts), {"sha256": sha256, "size": size, "files": files, "created_at": tx.now})
    found = get(tx, sha256)
    assert found is not None
    return found


def unused_before(tx: Tx, time: float) -> list[str]:
    """Code that came before a time and that no experiment and no task has."""
    used = sa.union_all(sa.select(experiments.c.context_sha256), sa.select(tasks.c.context_sha256)).subquery()
    query = sa.select(contexts.c.sha256).where(
        contexts.c.created_at < time,
        ~sa.exists(sa.select(1).where(used.c.context_sha256 == contexts.c.sha256)),
    )
    return [row[0] for row in tx.execute(query)]


def delete(tx: Tx, sha256: str) -> None:
    """Forget code."""
    tx.execute(sa.delete(contexts).where(contexts.c.sha256 == sha256))
