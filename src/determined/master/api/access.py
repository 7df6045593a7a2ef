"""What handlers ask for: who calls, the database, ids. ``async def show(id: Id, caller: Caller, db: Db)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Concatenate, TypeVar

import pydantic
from fastapi import Depends, Path, Query
from starlette.requests import Request
from typing_extensions import ParamSpec

from determined.master.api.errors import Answer
from determined.master.api.identity import Identity
from determined.master.api.replay import Replay
from determined.master.store.database import Database, Tx

P = ParamSpec("P")
T = TypeVar("T")


class Access:
    """The database, on behalf of one request."""

    def __init__(self, db: Database, wake: Callable[[], None], replay: Replay | None = None) -> None:
        self.database = db
        self.wake = wake
        self._replay = replay

    async def read(self, look: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Look something up."""
        return await self.database.read(look, *args, **kwargs)

    async def write(self, change: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a change; once only, if the request says so. A view that it returns is kept as the request's answer."""
        replay = self._replay
        if replay is None:
            return await self.database.write(change, *args, **kwargs)

        def marked(tx: Tx) -> T:
            result = change(tx, *args, **kwargs)
            replay.mark(tx, _as_answer(result, replay.status))
            return result

        return await self.database.write(marked)


def _as_answer(result: Any, status: int) -> bytes | None:
    if result is None and status == 204:
        return b""
    return bytes(Answer(result.model_dump(mode="json")).body) if isinstance(result, pydantic.BaseModel) else None


def access(request: Request) -> Access:
    """The database, on behalf of this request."""
    state = request.app.state
    return Access(state.db, state.engine.wake, getattr(request.state, "replay", None))


async def _access(request: Request) -> Access:
    return access(request)


async def _caller(request: Request) -> Identity:
    found: Identity = request.state.caller
    return found


Caller = Annotated[Identity, Depends(_caller)]
Db = Annotated[Access, Depends(_access)]
Id = Annotated[int, Path(ge=1, le=2**63 - 1, description="Its number.")]
Offset = Annotated[int, Query(ge=0, le=2**63 - 1, description="So many of the first are left out.")]
Limit = Annotated[int, Query(ge=0, le=10_000, description="At most so many.")]
