"""Users."""

from __future__ import annotations

from fastapi import Request

from determined import errors
from determined.master.api.access import Caller, Db, Id
from determined.master.api.policy import Router, policy
from determined.master.lifecycle import users as lifecycle
from determined.master.records import User
from determined.master.store import users
from determined.master.store.database import Tx
from determined.wire.requests import ChangePassword, CreateUser, EditUser
from determined.wire.views import UserView

router = Router()


def show(user: User) -> UserView:
    """A user as the API shows one."""
    return UserView(
        id=user.id,
        username=user.username,
        display_name=user.display_name,
        admin=user.admin,
        active=user.active,
        created_at=user.created_at,
    )


@router.get("/me", dependencies=[policy("read")])
async def me(caller: Caller) -> UserView:
    """Who I am."""
    assert caller.user is not None
    return show(caller.user)


@router.get("/users", dependencies=[policy("read")])
async def list_users(db: Db) -> list[UserView]:
    """All users."""
    return await db.read(_everyone)


@router.post("/users", dependencies=[policy("admin")], status_code=201)
async def create_user(asked: CreateUser, request: Request, db: Db) -> UserView:
    """A new user."""
    lifecycle.check_username(asked.username)
    hashed = None if asked.password is None else await request.app.state.passwords.hash(asked.password)
    return await db.write(_create, asked, hashed)


@router.get("/users/{id}", dependencies=[policy("read")])
async def get_user(id: Id, db: Db) -> UserView:
    """One user."""
    return show(await db.read(lifecycle.require, id))


@router.patch("/users/{id}", dependencies=[policy("write")])
async def edit_user(id: Id, asked: EditUser, request: Request, caller: Caller, db: Db) -> UserView:
    """Change a user. One's own shown name is one's own to change; everything else is for administrators."""
    fields = asked.model_dump(exclude_none=True)
    if fields.keys() - {"display_name"} or id != caller.user_id:
        caller.require_admin("change a user")
    view = await db.write(_edit, id, fields)
    request.app.state.doorkeeper.forget()
    return view


@router.post("/users/{id}/password", dependencies=[policy("write", replays=False)])
async def change_password(id: Id, asked: ChangePassword, request: Request, caller: Caller, db: Db) -> UserView:
    """Set a password: one's own by the current one, somebody else's as an administrator. That user's sessions and
    access tokens end, but for the one that asks."""
    state = request.app.state
    if id != caller.user_id:
        caller.require_admin("set somebody else's password")
    user = await db.read(lifecycle.require, id)
    if id == caller.user_id and user.password_hash is not None:
        account = f"password {id}"
        state.account_attempts.check(account)
        state.account_attempts.begin(account)
        if not await state.passwords.matches(asked.current or "", user.password_hash):
            raise errors.Forbidden("the current password is wrong")
        state.account_attempts.succeed(account)
    hashed = await state.passwords.hash(asked.password)
    view = await db.write(_set_password, id, hashed, caller.token_id)
    state.doorkeeper.forget()
    return view


def _everyone(tx: Tx) -> list[UserView]:
    return [show(user) for user in users.everyone(tx)]


def _create(tx: Tx, asked: CreateUser, hashed: str | None) -> UserView:
    return show(lifecycle.create(tx, asked.username, asked.display_name, hashed, asked.admin))


def _edit(tx: Tx, user_id: int, fields: dict[str, object]) -> UserView:
    return show(lifecycle.edit(tx, user_id, **fields))  # type: ignore[arg-type]


def _set_password(tx: Tx, user_id: int, hashed: str, but: int | None) -> UserView:
    return show(lifecycle.set_password(tx, user_id, hashed, but))
