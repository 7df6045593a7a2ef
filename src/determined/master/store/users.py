"""Users, and the tokens that let them and their allocations in."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import sqlalchemy as sa

from determined.master.records import Token, User
from determined.master.store import rows
from determined.master.store.database import Tx
from determined.master.store.tables import allocations, tokens, users


def insert(
    tx: Tx, username: str, display_name: str = "", password_hash: str | None = None, admin: bool = False
) -> User:
    """A new user."""
    values = {
        "username": username,
        "display_name": display_name,
        "password_hash": password_hash,
        "admin": admin,
        "active": True,
        "created_at": tx.now,
    }
    found = rows.one(User, tx.execute(sa.insert(users).values(values).returning(users)))
    assert found is not None
    return found


def get(tx: Tx, user_id: int) -> User | None:
    """A user by id."""
    return rows.one(User, tx.execute(sa.select(users).where(users.c.id == user_id)))


def find(tx: Tx, username: str) -> User | None:
    """A user by name."""
    return rows.one(User, tx.execute(sa.select(users).where(users.c.username == username)))


def everyone(tx: Tx) -> list[User]:
    """All users, by name."""
    return rows.several(User, tx.execute(sa.select(users).order_by(users.c.username)))


def update(tx: Tx, user_id: int, **values: Any) -> User | None:
    """Change columns of a user."""
    if values:
        tx.execute(sa.update(users).where(users.c.id == user_id).values(values))
    return get(tx, user_id)


def count_admins(tx: Tx, with_password: bool = False) -> int:
    """How many active administrators there are."""
    chosen: list[sa.ColumnElement[bool]] = [users.c.admin, users.c.active]
    if with_password:
        chosen.append(users.c.password_hash.is_not(None))
    return int(tx.execute(sa.select(sa.func.count()).select_from(users).where(*chosen)).scalar_one())


# Tokens.


class Bearer(NamedTuple):
    """A token with whom it stands for."""

    token: Token
    user: User | None


def insert_token(
    tx: Tx,
    kind: str,
    hash: str,
    *,
    user_id: int | None = None,
    allocation_id: str | None = None,
    name: str = "",
    scopes: list[str] | None = None,
    expires_at: float | None = None,
) -> Token:
    """A new token, known by the hash of its secret."""
    values = {
        "kind": kind,
        "hash": hash,
        "user_id": user_id,
        "allocation_id": allocation_id,
        "name": name,
        "scopes": scopes or [],
        "created_at": tx.now,
        "expires_at": expires_at,
    }
    found = rows.one(Token, tx.execute(sa.insert(tokens).values(values).returning(tokens)))
    assert found is not None
    return found


def bearer(tx: Tx, hash: str) -> Bearer | None:
    """The token with this hash and whom it stands for, if it is good now: neither revoked nor expired, its user
    active, its allocation not ended."""
    token = rows.one(Token, tx.execute(sa.select(tokens).where(tokens.c.hash == hash)))
    if token is None or token.revoked_at is not None or (token.expires_at is not None and token.expires_at <= tx.now):
        return None
    user = None if token.user_id is None else get(tx, token.user_id)
    if user is not None and not user.active:
        return None
    if token.kind == "allocation":
        state = tx.execute(sa.select(allocations.c.state).where(allocations.c.id == token.allocation_id)).one_or_none()
        return None if state is None or state[0] == "ended" else Bearer(token, user)
    return None if user is None else Bearer(token, user)


def is_known(tx: Tx, hash: str) -> bool:
    """Whether there is, or was, a token with this hash."""
    return tx.execute(sa.select(tokens.c.id).where(tokens.c.hash == hash)).one_or_none() is not None


def get_token(tx: Tx, token_id: int) -> Token | None:
    """A token by id."""
    return rows.one(Token, tx.execute(sa.select(tokens).where(tokens.c.id == token_id)))


def tokens_of(tx: Tx, user_id: int | None) -> list[Token]:
    """The tokens of a user that are shown to people, newest first; of everybody if no user is given."""
    chosen: list[sa.ColumnElement[bool]] = [tokens.c.kind.in_(("session", "access"))]
    if user_id is not None:
        chosen.append(tokens.c.user_id == user_id)
    return rows.several(Token, tx.execute(sa.select(tokens).where(*chosen).order_by(tokens.c.id.desc())))


def revoke(
    tx: Tx,
    *,
    token_id: int | None = None,
    user_id: int | None = None,
    allocation_id: str | None = None,
    kinds: tuple[str, ...] = (),
    but: Collection[int] = (),
) -> int:
    """End all tokens of which everything given is true, except some; returns how many there were."""
    chosen: list[sa.ColumnElement[bool]] = [tokens.c.revoked_at.is_(None)]
    for column, value in ((tokens.c.id, token_id), (tokens.c.user_id, user_id)):
        if value is not None:
            chosen.append(column == value)
    if allocation_id is not None:
        chosen.append(tokens.c.allocation_id == allocation_id)
    if kinds:
        chosen.append(tokens.c.kind.in_(kinds))
    if but:
        chosen.append(tokens.c.id.not_in(but))
    return tx.execute(sa.update(tokens).where(*chosen).values(revoked_at=tx.now)).rowcount


def record_use(tx: Tx, times: dict[int, float]) -> None:
    """When tokens were last used."""
    for token_id, time in times.items():
        tx.execute(sa.update(tokens).where(tokens.c.id == token_id).values(last_used_at=time))


def delete_tokens_before(tx: Tx, time: float) -> int:
    """Remove tokens that ended before a time; returns how many."""
    return tx.execute(sa.delete(tokens).where((tokens.c.revoked_at < time) | (tokens.c.expires_at < time))).rowcount
