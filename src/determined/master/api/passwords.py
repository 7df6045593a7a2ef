"""Passwords: how they are stored and checked, what is too weak, and how guessing is slowed down."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import time
from collections import OrderedDict

from determined import errors

_SALT = 16
_SIZE = 32
_BLOCKS, _LANES = 8, 3
SHORTEST, LONGEST = 8, 256
_COMMON = frozenset(
    """password passw0rd password1 password12 password123 12345678 123456789 1234567890 11111111 00000000 87654321
    qwertyui qwerty12 qwerty123 qwertyuiop 1q2w3e4r 1qaz2wsx iloveyou sunshine princess football baseball superman
    determined resolute changeme letmein1 welcome1 administrator adminadmin trustno1 whatever starwars computer
    internet michelle jennifer corvette mercedes abcdefgh abcd1234 a1b2c3d4 asdfghjk zxcvbnm1 dragon12 monkey12
    master12 mastermaster rootroot testtest test1234 guest123 default1 p@ssw0rd p@ssword secret12 secret123""".split()
)
# Checking takes tens of MiB for a moment: so many at once at most.
_AT_ONCE = 2


class Passwords:
    """Checks passwords, at a price that makes guessing slow even with the database in hand."""

    def __init__(self, cost: int) -> None:
        self._cost = cost
        self._turns = asyncio.Semaphore(_AT_ONCE)
        # Somebody who does not exist is checked against this, so that it takes as long as for somebody who does.
        self._nobody = _encode(cost, os.urandom(_SALT), os.urandom(_SIZE))

    async def hash(self, password: str) -> str:
        """What is stored of a password. Raises BadRequest if it is too weak."""
        check_strength(password)
        salt = os.urandom(_SALT)
        return _encode(self._cost, salt, await self._work(password, self._cost, salt))

    async def matches(self, password: str, stored: str | None) -> bool:
        """Whether this is the password; takes as long when there is none."""
        cost, salt, digest = _decode(stored or self._nobody)
        found = await self._work(password[: LONGEST * 4], cost, salt)
        return hmac.compare_digest(found, digest) and stored is not None

    async def _work(self, password: str, cost: int, salt: bytes) -> bytes:
        async with self._turns:
            return await asyncio.to_thread(_scrypt, password.encode("utf-8", "surrogatepass"), cost, salt)


def check_strength(password: str) -> None:
    """Raises BadRequest for a password that is guessed at once."""
    if not SHORTEST <= len(password) <= LONGEST:
        raise errors.BadRequest(f"a password has {SHORTEST} to {LONGEST} characters")
    if password.lower() in _COMMON or len(set(password)) < 4:
        raise errors.BadRequest("this password is one of the first that anybody would guess; choose another")


def _scrypt(password: bytes, cost: int, salt: bytes) -> bytes:
    memory = 128 * _BLOCKS * (2**cost + _LANES + 2) + 2**20
    return hashlib.scrypt(password, salt=salt, n=2**cost, r=_BLOCKS, p=_LANES, maxmem=memory, dklen=_SIZE)


def _encode(cost: int, salt: bytes, digest: bytes) -> str:
    return f"scrypt${cost}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def _decode(stored: str) -> tuple[int, bytes, bytes]:
    _, cost, salt, digest = stored.split("$")
    return int(cost), base64.b64decode(salt), base64.b64decode(digest)


class TooMany(errors.TooManyAttempts):
    """Says when to try again."""

    def __init__(self, seconds: float) -> None:
        self.retry_after_seconds = max(1, int(seconds + 0.999))
        super().__init__(f"too many wrong passwords; try again in {self.retry_after_seconds} seconds")


class Attempts:
    """Slows down guessing: after some wrong ones, each next costs twice the wait of the one before.

    Counted for each account and for each address. Whoever guesses at one account makes only that one wait.
    """

    def __init__(self, free: int, longest_seconds: float = 300.0, forget_seconds: float = 3600.0) -> None:
        self._free = free
        self._longest = longest_seconds
        self._forget = forget_seconds
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def check(self, key: str) -> None:
        """Raises TooManyAttempts while ``key`` has to wait."""
        count, last = self._failures.get(key, (0, 0.0))
        if count < self._free:
            return
        wait = min(self._longest, 2.0 ** (count - self._free)) - (time.monotonic() - last)
        if wait > 0:
            raise TooMany(wait)

    def begin(self, key: str) -> None:
        """An attempt counts as failed until it has not: so that many at once are as many."""
        count, last = self._failures.pop(key, (0, 0.0))
        if time.monotonic() - last > self._forget:
            count = 0
        self._failures[key] = (count + 1, time.monotonic())
        while len(self._failures) > 100_000:
            self._failures.popitem(last=False)

    def succeed(self, key: str) -> None:
        """It was the right one."""
        self._failures.pop(key, None)
