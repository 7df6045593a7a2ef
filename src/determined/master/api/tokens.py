"""Tokens for programs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from determined import errors
from determined.master.api.access import Caller, Db, Id
from determined.master.api.doorkeeper import hash_of, new_token
from determined.master.api.identity import Identity
from determined.master.api.policy import Router, policy
from determined.master.lifecycle import users as lifecycle
from determined.master.records import Token
from determined.master.store import users
from determined.master.store.database import Tx
from determined.wire.requests import CreateToken
from determined.wire.views import TokenView

router = Router()


def show(token: Token, secret: str | None = None) -> TokenView:
    """A token as the API shows one: with its secret only when it has just been made."""
    return TokenView(
        id=token.id,
        user_id=token.user_id,
        name=token.name,
        kind=token.kind,
        scopes=token.scopes,
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        last_used_at=token.last_used_at,
        token=secret,
    )


@router.get("/tokens", dependencies=[policy("read")])
async def list_tokens(
    caller: Caller, db: Db, everyone: Annotated[bool, Query(description="Administrators: of all users.")] = False
) -> list[TokenView]:
    """One's own sessions and tokens, without their secrets."""
    if everyone:
        caller.require_admin("see everybody's tokens")
    return await db.read(_list, None if everyone else caller.user_id)


@router.post("/tokens", dependencies=[policy("write")], status_code=201)
async def create_token(asked: CreateToken, caller: Caller, db: Db) -> TokenView:
    """A token for a program; its secret is in this answer only."""
    user_id = asked.user_id if asked.user_id is not None else caller.user_id
    if user_id != caller.user_id:
        caller.require_admin("make a token for somebody else")
    missing = set(asked.scopes) - caller.scopes
    if missing:
        raise errors.Forbidden(f"the credential that asks has not the scope {', '.join(sorted(missing))} itself")
    if asked.expires_in_seconds is not None and not 0 < asked.expires_in_seconds < 1e10:
        raise errors.BadRequest("expires_in_seconds must be positive, or null for a token that does not expire")
    assert user_id is not None
    return await db.write(_create, user_id, asked, new_token())


@router.delete("/tokens/{id}", dependencies=[policy("write")], status_code=204)
async def revoke_token(id: Id, request: Request, caller: Caller, db: Db) -> None:
    """End a token; whoever shows it is refused from now on."""
    await db.write(_revoke, id, caller)
    request.app.state.doorkeeper.forget()


def _list(tx: Tx, user_id: int | None) -> list[TokenView]:
    return [show(token) for token in users.tokens_of(tx, user_id)]


def _create(tx: Tx, user_id: int, asked: CreateToken, secret: str) -> TokenView:
    scopes: list[str] = [*dict.fromkeys(asked.scopes)]
    token = lifecycle.create_token(tx, user_id, hash_of(secret), asked.name, scopes, asked.expires_in_seconds)
    return show(token, secret)


def _revoke(tx: Tx, token_id: int, caller: Identity) -> None:
    token = users.get_token(tx, token_id)
    if token is None or token.kind not in ("session", "access"):
        raise errors.NotFound(f"there is no token {token_id}, or it is not for you to see")
    if not caller.is_admin and token.user_id != caller.user_id:
        raise errors.NotFound(f"there is no token {token_id}, or it is not for you to see")
    lifecycle.revoke_token(tx, token_id)
