"""Users and their credentials: who may sign in, with what, and until when."""

from __future__ import annotations

import re
from typing import NamedTuple

from determined import errors
from determined.master.records import Token, User
from determined.master.store import settings, users
from determined.master.store.database import Tx

_USERNAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}")
SETUP_SECONDS = 30 * 86400.0
ALL_SCOPES = ["read", "write", "admin"]


def create(
    tx: Tx, username: str, display_name: str = "", password_hash: str | None = None, admin: bool = False
) -> User:
    """A new user."""
    check_username(username)
    if users.find(tx, username) is not None:
        raise errors.Refused(f"there is a user {username} already")
    user = users.insert(tx, username, display_name, password_hash, admin)
    tx.changed("user", user.id)
    return user


def edit(
    tx: Tx,
    user_id: int,
    *,
    username: str | None = None,
    display_name: str | None = None,
    admin: bool | None = None,
    active: bool | None = None,
) -> User:
    """Change a user. One who is not active any more is signed out everywhere, for good. One administrator stays one."""
    user = require(tx, user_id)
    values: dict[str, object] = {}
    if username is not None and username != user.username:
        check_username(username)
        if users.find(tx, username) is not None:
            raise errors.Refused(f"there is a user {username} already")
        values["username"] = username
    if display_name is not None:
        values["display_name"] = display_name
    if admin is not None:
        values["admin"] = admin
    if active is not None:
        values["active"] = active
    if user.admin and user.active and (admin is False or active is False) and users.count_admins(tx) == 1:
        raise errors.Refused(f"{user.username} is the only administrator; make somebody else one first")
    changed = users.update(tx, user_id, **values)
    if active is False:
        users.revoke(tx, user_id=user_id)
    tx.changed("user", user_id)
    assert changed is not None
    return changed


def set_password(tx: Tx, user_id: int, password_hash: str, but: int | None = None) -> User:
    """A new password: all that was let in with the old one ends, sessions and access tokens, but for the one given.

    The owner's token of this machine goes on: it is good for whoever can read the master's own files.
    """
    require(tx, user_id)
    spared = {token_id for token_id in (but, settings.get(tx, "owner_token_id")) if token_id is not None}
    users.revoke(tx, user_id=user_id, but=spared)
    changed = users.update(tx, user_id, password_hash=password_hash)
    tx.changed("user", user_id)
    assert changed is not None
    return changed


def require(tx: Tx, user_id: int) -> User:
    """The user; raises NotFound."""
    user = users.get(tx, user_id)
    if user is None:
        raise errors.NotFound(f"there is no user {user_id}")
    return user


def check_username(username: str) -> None:
    """Raises BadRequest for what cannot be a user's name."""
    if not _USERNAME.fullmatch(username):
        raise errors.BadRequest(
            "a username has 1 to 64 letters, digits and _ . @ + -, and begins with a letter, a digit or _"
        )


# Credentials. The secrets themselves are made by whoever hands them out; here only their hashes are known.


def open_session(tx: Tx, user_id: int, hash: str, seconds: float, password_hash: str | None) -> Token:
    """Sign in. ``password_hash`` is the one that the password was checked against, outside of this transaction."""
    user = require(tx, user_id)
    if not user.active or user.password_hash != password_hash:
        raise errors.Unauthenticated("the username or the password is wrong")
    return users.insert_token(
        tx, "session", hash, user_id=user_id, scopes=list(ALL_SCOPES), expires_at=tx.now + seconds
    )


def create_token(
    tx: Tx, user_id: int, hash: str, name: str, scopes: list[str], expires_in_seconds: float | None
) -> Token:
    """A token for a program."""
    user = require(tx, user_id)
    if not user.active:
        raise errors.Refused(f"{user.username} is not active")
    if "admin" in scopes and not user.admin:
        raise errors.Forbidden(f"{user.username} is no administrator and can have no token with the scope admin")
    expires_at = None if expires_in_seconds is None else tx.now + expires_in_seconds
    return users.insert_token(tx, "access", hash, user_id=user_id, name=name, scopes=scopes, expires_at=expires_at)


def create_allocation_token(tx: Tx, allocation_id: str, hash: str) -> Token:
    """The token by which an allocation reports. It ends with the allocation; the submitter's own token is not used,
    so that training may take longer than anybody stays signed in."""
    return users.insert_token(tx, "allocation", hash, allocation_id=allocation_id, scopes=["read"])


def revoke_token(tx: Tx, token_id: int) -> None:
    """End a token."""
    users.revoke(tx, token_id=token_id)


class Setup(NamedTuple):
    """The first administrator; ``needs_password`` while no administrator can sign in with a password."""

    owner: User
    needs_password: bool


def set_up(tx: Tx, owner_name: str, owner_hash: str, setup_hash: str) -> Setup:
    """See that there is an owner, that the token with this hash is theirs, and, while no administrator has a password,
    that the secret with this hash may set theirs. Called whenever a master starts."""
    owner_id = settings.get(tx, "owner_id")
    owner = None if owner_id is None else users.get(tx, owner_id)
    if owner is None:
        check_username(owner_name)
        owner = users.find(tx, owner_name) or create(tx, owner_name, admin=True)
        settings.put(tx, "owner_id", owner.id)
    if not users.is_known(tx, owner_hash):
        users.revoke(tx, token_id=settings.get(tx, "owner_token_id", 0))
        token = users.insert_token(
            tx, "access", owner_hash, user_id=owner.id, name="owner of this machine", scopes=list(ALL_SCOPES)
        )
        settings.put(tx, "owner_token_id", token.id)
    users.revoke(tx, kinds=("setup",))
    needs_password = users.count_admins(tx, with_password=True) == 0
    if needs_password:
        users.insert_token(tx, "setup", setup_hash, user_id=owner.id, expires_at=tx.now + SETUP_SECONDS)
    return Setup(owner, needs_password)


def finish_setup(tx: Tx, secret_hash: str, password_hash: str) -> User:
    """The owner's first password, by the one-time secret."""
    found = users.bearer(tx, secret_hash)
    if found is None or found.token.kind != "setup" or found.user is None:
        raise errors.Unauthenticated(
            "this is not the setup secret, or it has been used; the master's log has the newest"
        )
    return set_password(tx, found.user.id, password_hash)
