"""Lets callers in: from a token to who it stands for, remembered for seconds and forgotten at once when it ends."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time

from starlette.requests import HTTPConnection

from determined import errors
from determined.master.api.identity import ANYONE, Identity
from determined.master.store import users
from determined.master.store.database import Database, Tx

COOKIE = "resolute_session"
_TOKEN_PREFIX = "res_"  # so that scanners for leaked secrets can know one
_REMEMBERED_SECONDS = 5.0
_REMEMBERED_MOST = 20_000
# When a token was last used is for people to see; once a minute is often enough to write it down.
_USE_SECONDS = 60.0
_LONGEST = 512


def new_token() -> str:
    """A secret of 256 random bits."""
    return f"{_TOKEN_PREFIX}{secrets.token_urlsafe(32)}"


def hash_of(token: str) -> str:
    """What is stored of a token. It is random enough that a plain hash cannot be turned back."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Doorkeeper:
    """Knows who a token stands for."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._known: dict[str, tuple[Identity, float]] = {}
        self._forgotten = 0  # counts, so that a look-up that was under way does not remember what has just ended
        self._uses: dict[int, float] = {}
        self._uses_written = time.monotonic()

    async def admit(self, connection: HTTPConnection) -> Identity:
        """Who calls. Nobody has shown anything: ANYONE. Raises Unauthenticated for a credential that is not good."""
        token = credential(connection)
        return ANYONE if token is None else await self.identify(token)

    async def identify(self, token: str) -> Identity:
        """Who a token stands for; raises Unauthenticated if it is not, or no longer, good."""
        hashed = hash_of(token)
        known = self._known.get(hashed)
        if known is not None and known[1] > time.monotonic():
            identity = known[0]
            if identity.expires_at is not None and identity.expires_at <= self._db.clock():
                raise _no_good()
        else:
            forgotten = self._forgotten
            found = await self._db.read(_look_up, hashed)
            if found is None:
                self._known.pop(hashed, None)
                raise _no_good()
            identity = found
            if forgotten == self._forgotten:
                if len(self._known) >= _REMEMBERED_MOST:
                    self._known.clear()
                self._known[hashed] = (identity, time.monotonic() + _REMEMBERED_SECONDS)
        if identity.token_id is not None:
            self._uses[identity.token_id] = self._db.clock()
        return identity

    def forget(self) -> None:
        """Something about users or tokens has changed: look everybody up anew."""
        self._forgotten += 1
        self._known.clear()

    def forget_allocation(self, allocation_id: str) -> None:
        """An allocation has ended."""
        self._forgotten += 1
        for hashed in [key for key, (identity, _) in self._known.items() if identity.allocation_id == allocation_id]:
            del self._known[hashed]

    async def keep_books(self) -> None:
        """Write down, once a minute, when tokens were used; runs until it is cancelled."""
        while True:
            await asyncio.sleep(_USE_SECONDS)
            await self.write_uses()

    async def write_uses(self) -> None:
        """Write down when tokens were used."""
        used, self._uses = self._uses, {}
        if used:
            await self._db.write(users.record_use, used)


def credential(connection: HTTPConnection) -> str | None:
    """The token a caller shows, in the header or in the browser's cookie; the header goes before the cookie."""
    shown = connection.headers.get("authorization")
    if shown is not None:
        scheme, _, token = shown.partition(" ")
        if scheme.lower() != "bearer" or not token.strip() or len(token) > _LONGEST:
            raise errors.Unauthenticated("the Authorization header must be `Bearer` and a token")
        return token.strip()
    cookie = connection.cookies.get(COOKIE)
    return cookie if cookie and len(cookie) <= _LONGEST else None


def _no_good() -> errors.Unauthenticated:
    return errors.Unauthenticated("this credential is not known, or no longer good; sign in again: det user login")


def _look_up(tx: Tx, hashed: str) -> Identity | None:
    found = users.bearer(tx, hashed)
    if found is None or found.token.kind == "setup":
        return None
    token = found.token
    return Identity(
        token.kind,
        None if token.kind == "allocation" else found.user,
        token.id,
        token.allocation_id,
        frozenset(token.scopes),
        token.expires_at,
    )
