"""Answers to changing calls that carried an idempotency key, so that a call sent again has no second effect."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from determined.master.store.database import Tx
from determined.master.store.tables import answers


class Answer(NamedTuple):
    """What was answered; status 0: the effect has happened, what was said about it is not known."""

    status: int
    body: bytes


def get(tx: Tx, key: str) -> Answer | None:
    """The answer under a key."""
    row = tx.execute(sa.select(answers.c.status, answers.c.body).where(answers.c.key == key)).one_or_none()
    return None if row is None else Answer(*row)


def put(tx: Tx, key: str, answer: Answer) -> None:
    """Keep an answer; a later one takes its place."""
    values = {"status": answer.status, "body": answer.body}
    if not tx.execute(sa.update(answers).where(answers.c.key == key).values(values)).rowcount:
        tx.execute(sa.insert(answers), {"key": key, "created_at": tx.now, **values})


def delete_before(tx: Tx, time: float) -> int:
    """Forget old answers; returns how many."""
    return tx.execute(sa.delete(answers).where(answers.c.created_at < time)).rowcount
