"""The queue: what waits and what runs, in order, and why something waits."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Request
from starlette.responses import Response

from determined import errors
from determined.master.api import sending, submitting
from determined.master.api.access import Caller, Db
from determined.master.api.identity import Identity
from determined.master.api.policy import Router, policy
from determined.master.lifecycle import queue
from determined.master.store import listings
from determined.master.store.database import Tx
from determined.wire.requests import EditJob
from determined.wire.views import QueueEntry

router = Router()

JobId = Annotated[str, Path(max_length=200, description="`experiment-3`, or the id of a task.")]


@router.get("/jobs", dependencies=[policy("read")], response_model=list[QueueEntry])
async def list_jobs(
    request: Request, db: Db, pool: Annotated[str | None, Query(max_length=1000, description="Of this pool.")] = None
) -> Response:
    """The jobs of the queue, in the order in which their turn comes."""
    entries = await db.read(_entries, request.app.state.engine, submitting.pools_of(request.app).default)
    return sending.several(request, [entry for entry in entries if pool is None or entry.pool == pool])


@router.get("/jobs/{job_id}", dependencies=[policy("read")], response_model=QueueEntry)
async def get_job(job_id: JobId, request: Request, db: Db) -> Response:
    """One job of the queue."""
    default = submitting.pools_of(request.app).default
    return sending.answer(request, await db.read(_entry, job_id, request.app.state.engine, default))


@router.patch("/jobs/{job_id}", dependencies=[policy("write")], response_model=QueueEntry)
async def edit_job(job_id: JobId, asked: EditJob, request: Request, caller: Caller, db: Db) -> Response:
    """Change its priority, weight, pool or place. Passing others by is for their owner or an administrator."""
    pools = submitting.pools_of(request.app)
    if asked.resource_pool and asked.resource_pool not in pools.sizes():
        raise errors.Refused(f"there is no pool {asked.resource_pool!r}; the pools are {', '.join(pools.sizes())}")
    entry = await db.write(_edit, job_id, asked, caller, request.app.state.engine, pools.default)
    db.wake()
    return sending.answer(request, entry)


def _entries(tx: Tx, engine: Any, default_pool: str) -> list[QueueEntry]:
    found = queue.entries(tx)
    names = listings.usernames(tx, (entry.user_id for entry in found))
    waiting = engine.why if hasattr(engine, "why") else {}
    firsts: dict[str, Any] = {}
    jobs = listings.job_ids(tx, [*waiting])
    for request_id, why in waiting.items():
        job_id = jobs.get(request_id)
        if job_id is not None and (job_id not in firsts or why.position < firsts[job_id].position):
            firsts[job_id] = why
    return [
        QueueEntry(
            job_id=entry.job_id,
            name=entry.name,
            kind=entry.kind,
            state=entry.state,
            username=names.get(entry.user_id or 0, ""),
            pool=entry.pool or default_pool,
            priority=entry.priority,
            weight=entry.weight,
            slots_wanted=entry.slots_wanted,
            slots_held=entry.slots_held,
            waiting=entry.waiting,
            running=entry.running,
            position=firsts[entry.job_id].position if entry.job_id in firsts else None,
            why=str(firsts[entry.job_id]) if entry.job_id in firsts else _why(tx, entry, engine, default_pool),
            queued_at=entry.queued_at,
        )
        for entry in found
    ]


def _why(tx: Tx, entry: queue.Entry, engine: Any, default_pool: str) -> str:
    """Why something waits of which scheduling knows nothing; empty if it does not, or if no pass has seen it yet."""
    if not entry.waiting:
        return ""
    pool = entry.pool or default_pool
    pools = getattr(engine, "pools", {pool: None})
    if pool not in pools:
        return f"its pool {pool} is not there any more; the pools are {', '.join(pools)}: move it to one of them"
    if entry.retry_at is not None:
        return f"was lost again and again; it is tried again in {max(entry.retry_at - tx.now, 0.0):.0f} s"
    return ""


def _entry(tx: Tx, job_id: str, engine: Any, default_pool: str) -> QueueEntry:
    for entry in _entries(tx, engine, default_pool):
        if entry.job_id == job_id:
            return entry
    raise errors.NotFound(f"there is no job {job_id} in the queue")


def _edit(tx: Tx, job_id: str, asked: EditJob, caller: Identity, engine: Any, default_pool: str) -> QueueEntry:
    caller.require_owner(queue.require_job(tx, job_id).user_id, f"job {job_id}")
    anchor = asked.ahead_of or asked.behind
    if anchor is not None:
        # Its place may be better than the anchor's only if the anchor's owner agrees.
        other = queue.require_job(tx, anchor)
        if asked.ahead_of is not None:
            caller.require_owner(other.user_id, f"job {anchor}")
    queue.edit_job(
        tx,
        job_id,
        priority=asked.priority,
        weight=asked.weight,
        resource_pool=asked.resource_pool,
        ahead_of=asked.ahead_of,
        behind=asked.behind,
    )
    return _entry(tx, job_id, engine, default_pool)
