"""Signing in and out."""

from __future__ import annotations

from fastapi import Request, Response

from determined import errors
from determined.master.api import users as user_views
from determined.master.api.access import Caller, Db
from determined.master.api.doorkeeper import COOKIE, hash_of, new_token
from determined.master.api.policy import Router, policy
from determined.master.lifecycle import users as lifecycle
from determined.master.records import Token, User
from determined.master.store import users
from determined.wire.requests import Login, Setup
from determined.wire.views import Session

router = Router()


@router.post("/auth/login", dependencies=[policy("anyone", replays=False)])
async def login(asked: Login, request: Request, response: Response, db: Db) -> Session:
    """Sign in with a password. Wrong ones are counted, for the account and for the address they come from."""
    state = request.app.state
    account, address = asked.username.lower()[:128], request.client.host if request.client else ""
    state.account_attempts.check(account)
    state.address_attempts.check(address)
    state.account_attempts.begin(account)
    state.address_attempts.begin(address)
    user = await db.read(users.find, asked.username)
    stored = user.password_hash if user is not None and user.active else None
    if not await state.passwords.matches(asked.password, stored) or user is None:
        raise errors.Unauthenticated("the username or the password is wrong")
    state.account_attempts.succeed(account)
    state.address_attempts.succeed(address)
    return await _open(request, response, db, user, asked.cookie)


@router.post("/auth/setup", dependencies=[policy("anyone", replays=False)])
async def set_up(asked: Setup, request: Request, response: Response, db: Db) -> Session:
    """Give the owner their first password, by the one-time secret in the log of a master that is started first."""
    state = request.app.state
    address = f"setup {request.client.host if request.client else ''}"
    state.address_attempts.check(address)
    state.address_attempts.begin(address)
    hashed = hash_of(asked.secret)
    found = await db.read(users.bearer, hashed)
    if found is None or found.token.kind != "setup":
        raise errors.Unauthenticated(
            "this is not the setup secret, or it has been used; the master's log has the newest"
        )
    password = await state.passwords.hash(asked.password)
    user = await db.write(lifecycle.finish_setup, hashed, password)
    state.address_attempts.succeed(address)
    state.doorkeeper.forget()
    return await _open(request, response, db, user, asked.cookie)


@router.post("/auth/logout", dependencies=[policy("read", replays=False)], status_code=204)
async def logout(request: Request, response: Response, caller: Caller, db: Db) -> None:
    """End the session, or the token, by which this is asked."""
    assert caller.token_id is not None
    await db.write(lifecycle.revoke_token, caller.token_id)
    request.app.state.doorkeeper.forget()
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict", secure=_is_secure(request))


async def _open(request: Request, response: Response, db: Db, user: User, by_cookie: bool) -> Session:
    token = new_token()
    seconds = request.app.state.settings.session_days * 86400.0
    opened: Token = await db.write(lifecycle.open_session, user.id, hash_of(token), seconds, user.password_hash)
    if by_cookie:
        response.set_cookie(
            COOKIE,
            token,
            max_age=int(seconds),
            path="/",
            httponly=True,
            samesite="strict",
            secure=_is_secure(request),
        )
        token = ""
    return Session(token=token, expires_at=opened.expires_at, user=user_views.show(user))


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https"
