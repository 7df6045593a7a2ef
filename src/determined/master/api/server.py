"""The master itself: what it is, how it is set up, what it says, and stopping it."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import PlainTextResponse, Response

import determined
from determined import errors
from determined.master import settings as master_settings
from determined.master.api.access import Caller, Db
from determined.master.api.policy import Router, policy
from determined.master.store import settings
from determined.master.store.database import Tx
from determined.wire.requests import SetMessage
from determined.wire.views import MasterInfo

router = Router()

_LOG_BYTES = 4 * 2**20
_LONGEST_MESSAGE = 1000


@router.get("/health", dependencies=[policy("anyone")])
async def health(db: Db) -> dict[str, str]:
    """Whether the master serves, and its database answers."""
    await db.read(settings.get, "cluster_id")
    return {"status": "ok"}


@router.get("/master", dependencies=[policy("anyone")])
async def info(request: Request, db: Db) -> MasterInfo:
    """What anyone may know about this master."""
    return await db.read(_info, request.app.state.settings.cluster_name)


@router.get("/master/config", dependencies=[policy("admin")])
async def config(request: Request) -> dict[str, Any]:
    """How this master is set up; secrets are masked."""
    return master_settings.masked(request.app.state.settings)


@router.get("/master/logs", dependencies=[policy("admin")], response_class=PlainTextResponse)
def logs(
    request: Request, tail: Annotated[int, Query(ge=1, le=10_000, description="So many last lines.")] = 100
) -> Response:
    """The end of the master's log."""
    return PlainTextResponse(_last_lines(request.app.state.settings.log_file, tail))


@router.put("/master/message", dependencies=[policy("admin")])
async def set_message(asked: SetMessage, request: Request, db: Db) -> MasterInfo:
    """A sentence that everybody sees; an empty one takes it away."""
    if len(asked.message) > _LONGEST_MESSAGE:
        raise errors.BadRequest(f"the message has more than {_LONGEST_MESSAGE} characters")
    return await db.write(_set_message, asked.message, request.app.state.settings.cluster_name)


@router.post("/master/stop", dependencies=[policy("admin", replays=False)], status_code=202)
async def stop(request: Request, caller: Caller) -> dict[str, str]:
    """Stop the master. What runs, runs on, and is found again when a master is started."""
    request.app.state.stop(f"{caller.name} asked for it")
    return {"status": "stopping"}


@router.get("/openapi.json", dependencies=[policy("read")], include_in_schema=False)
async def openapi(request: Request) -> dict[str, Any]:
    """All of this, described for programs."""
    found: dict[str, Any] = request.app.openapi()
    return found


def _info(tx: Tx, cluster_name: str) -> MasterInfo:
    return MasterInfo(
        version=determined.__version__,
        cluster_id=settings.get(tx, "cluster_id", ""),
        cluster_name=cluster_name,
        message=settings.get(tx, "message", ""),
    )


def _set_message(tx: Tx, message: str, cluster_name: str) -> MasterInfo:
    settings.put(tx, "message", message)
    tx.changed("master", "message", message=message)
    return _info(tx, cluster_name)


def _last_lines(path: pathlib.Path, count: int) -> str:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines(keepends=True)
    except FileNotFoundError:
        return ""
    return "".join(lines[-count:])
