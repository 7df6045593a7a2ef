"""What allocations say to the master: reports, logs, and that they have ended."""

from __future__ import annotations

import asyncio
import fcntl
import gzip
import io
import os
import pathlib
import zlib
from typing import Annotated, Any

from fastapi import Path, Query, Request
from starlette.responses import Response

from determined import errors
from determined.master.api import sending
from determined.master.api.access import Db
from determined.master.api.policy import Router, policy
from determined.master.api.views import allocation_of
from determined.master.lifecycle import allocations as lifecycle
from determined.master.lifecycle import reports
from determined.master.lifecycle.reports import Batch
from determined.master.records import Allocation
from determined.master.store import allocations, experiments, trials
from determined.master.store.database import Tx
from determined.wire.reports import ExitReport, ReportReply
from determined.wire.views import AllocationView

router = Router()

AllocationId = Annotated[str, Path(max_length=250, description="Its id, such as `trial-12.3`.")]
_MOST_BYTES = 64 * 2**20
_MOST_LOG_BYTES = 16 * 2**20
_SMALL = 16 * 1024


@router.get(
    "/allocations/{allocation_id}", dependencies=[policy("read", allocations="own")], response_model=AllocationView
)
async def get_allocation(allocation_id: AllocationId, request: Request, db: Db) -> Response:
    """One attempt to run a trial or task."""
    return sending.answer(request, allocation_of(await db.read(allocations.require, allocation_id)))


@router.post(
    "/allocations/{allocation_id}/reports",
    dependencies=[policy("allocation", replays=False)],
    response_model=ReportReply,
)
async def report(allocation_id: AllocationId, request: Request) -> Response:
    """Take in lines of a spool (`ReportBatch`, also gzipped); each is taken once, however often it is sent.

    Rows come by the thousand: they are understood without a model for each, and stored in one transaction.
    """
    body = await request.body()
    is_gzipped = request.headers.get("content-encoding") == "gzip"
    if len(body) > _SMALL or is_gzipped:
        batch = await asyncio.to_thread(_understand, body, is_gzipped)
    else:
        batch = reports.understand(body)
    reply = await request.app.state.db.write(reports.ingest, allocation_id, batch)
    return Response(reply.model_dump_json(), media_type="application/json")


@router.post(
    "/allocations/{allocation_id}/exit",
    dependencies=[policy("allocation", replays=False)],
    status_code=204,
    response_class=Response,
)
async def report_exit(allocation_id: AllocationId, asked: ExitReport, request: Request, db: Db) -> Response:
    """It has ended: look at its pool now instead of soon. A run that no master started ends with this."""
    allocation = await db.read(allocations.require, allocation_id)
    if allocation.run_epoch != asked.run_epoch:
        raise errors.StaleRunEpoch(f"allocation {allocation_id} is of another run epoch than {asked.run_epoch}")
    if await db.read(_is_unmanaged, allocation):
        await db.database.write(lifecycle.record_exit, allocation_id, asked.ending)
    engine: Any = request.app.state.engine
    if hasattr(engine, "look"):
        engine.look()
    db.wake()
    return Response(status_code=204)


@router.put("/allocations/{allocation_id}/logs", dependencies=[policy("allocation", replays=False)])
async def append_log(
    allocation_id: AllocationId,
    request: Request,
    db: Db,
    offset: Annotated[int, Query(ge=0, le=2**40, description="Where in the log these bytes belong.")],
    node_rank: Annotated[int, Query(ge=0, le=100_000, description="Of which node's log.")] = 0,
) -> dict[str, int]:
    """Append to the log of a node on another machine.

    Answers with the log's size. Bytes that are there already are not written again; where some are missing before
    `offset` nothing is written, and the size says from where to send.
    """
    body = await request.body()
    if len(body) > _MOST_LOG_BYTES:
        raise errors.BadRequest(f"at most {_MOST_LOG_BYTES} bytes at once")
    allocation = await db.read(allocations.require, allocation_id)
    path: pathlib.Path = request.app.state.engine.site.log_file(allocation, node_rank)
    return {"size": await asyncio.to_thread(_append, path, offset, body)}


def _understand(body: bytes, is_gzipped: bool) -> Batch:
    if is_gzipped:
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(body)) as zipped:
                body = zipped.read(_MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error):
            raise errors.BadRequest("the body is not what gzip makes") from None
        if len(body) > _MOST_BYTES:
            raise errors.BadRequest(f"a batch has at most {_MOST_BYTES} bytes")
    return reports.understand(body)


def _is_unmanaged(tx: Tx, allocation: Allocation) -> bool:
    if allocation.trial_id is None:
        return False
    return experiments.require(tx, trials.require(tx, allocation.trial_id).experiment_id).unmanaged


def _append(path: pathlib.Path, offset: int, content: bytes) -> int:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        if offset <= size < offset + len(content):
            file.write(content[size - offset :])
            file.flush()
            size = offset + len(content)
        return size
