"""A changing call that is sent again under its idempotency key has one effect, and the same answer.

That the effect has happened is written in its own transaction, together with the answer as far as it is known there:
a master that dies in between neither repeats nor forgets. Answers are sealed with the caller's key, which is not
stored: a token that was shown once cannot be read out of the database.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from determined import errors
from determined.master.api.identity import Identity
from determined.master.store import answers
from determined.master.store.answers import Answer
from determined.master.store.database import Database, Tx

_LONGEST_KEY = 200
_DIGEST = 32


class Replay:
    """One call under a key: what marks its effect, and keeps its answer."""

    def __init__(self, caller: Identity, key: str, request: Request, body: bytes, status: int) -> None:
        who = f"{caller.kind}:{caller.user_id}:{caller.allocation_id}"
        self.status = status
        self.row = _digest("row", who, request.method, request.url.path, key).hex()
        self._seal = _digest("seal", who, request.method, request.url.path, key)
        self._asked = hashlib.sha256(body + request.url.query.encode()).digest()
        self.kept: Answer | None = None

    def mark(self, tx: Tx, body: bytes | None) -> None:
        """In the transaction of the effect: it has happened, and this is the answer if nothing is added to it."""
        answer = Answer(0 if body is None else self.status, self._sealed(body or b""))
        answers.put(tx, self.row, answer)
        self.kept = answer

    def keep(self, tx: Tx, answer: Response) -> None:
        """The answer as it was given."""
        answers.put(tx, self.row, self._kept(answer))

    def needs(self, answer: Response) -> bool:
        """Whether what was kept with the effect is not what was answered."""
        return self.kept is not None and self.kept != self._kept(answer)

    def again(self, kept: Answer) -> Response:
        """The answer given before."""
        if kept.body[:_DIGEST] != self._asked:
            raise errors.Refused("this idempotency key was used for another request; use a new one")
        if kept.status == 0:
            raise errors.Refused(
                "this has been done before, and what was answered is lost: the master stopped in between. See how "
                "things are, and use a new idempotency key to do it once more"
            )
        body = self._xor(kept.body[_DIGEST:])
        headers = {"Idempotent-Replay": "true"}
        return Again(body, kept.status, headers, "application/json" if body else None)

    def _kept(self, answer: Response) -> Answer:
        return Answer(answer.status_code, self._sealed(bytes(answer.body)))

    def _sealed(self, body: bytes) -> bytes:
        return self._asked + self._xor(body)

    def _xor(self, body: bytes) -> bytes:
        stream = hashlib.shake_256(self._seal + self._asked).digest(len(body))
        size = len(body)
        return (int.from_bytes(body, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")


class Again(Response):
    """An answer that was given before."""


async def once(
    request: Request,
    caller: Identity,
    key: str,
    status: int,
    handle: Callable[[Request], Coroutine[Any, Any, Response]],
) -> Response:
    """The answer to a call under a key: given before, or given now by ``handle``."""
    if not 8 <= len(key) <= _LONGEST_KEY:
        raise errors.BadRequest(f"an idempotency key has 8 to {_LONGEST_KEY} characters")
    db: Database = request.app.state.db
    under_way: dict[str, asyncio.Event] = request.app.state.under_way
    call = Replay(caller, key, request, await request.body(), status)
    while call.row in under_way:
        await under_way[call.row].wait()
    under_way[call.row] = done = asyncio.Event()
    try:
        kept = await db.read(answers.get, call.row)
        if kept is not None:
            return call.again(kept)
        request.state.replay = call
        answer = await handle(request)
        if call.needs(answer) and hasattr(answer, "body"):
            await db.write(call.keep, answer)
        return answer
    finally:
        del under_way[call.row]
        done.set()


def _digest(*parts: str) -> bytes:
    found = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        found.update(len(encoded).to_bytes(8, "big") + encoded)
    return found.digest()
