"""Tasks: jobs and commands, started, looked at, ended."""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import Path, Query, Request
from starlette.responses import Response

from determined import errors
from determined.config import merge
from determined.config.masking import mask
from determined.config.task import TaskConfig
from determined.master.api import sending, submitting
from determined.master.api.access import Caller, Db, Limit, Offset
from determined.master.api.experiments import Cursor, Order, SortBy, States
from determined.master.api.identity import Identity
from determined.master.api.policy import Router, policy
from determined.master.api.views import allocation_of, task_of
from determined.master.lifecycle import tasks as lifecycle
from determined.master.lifecycle.tasks import NewTask
from determined.master.operations import Operation
from determined.master.records import Task
from determined.master.store import allocations, contexts, listings, tasks, templates
from determined.master.store.database import Tx
from determined.master.store.listings import Where
from determined.wire.requests import CreateTask
from determined.wire.views import AllocationView, Page, TaskView

router = Router()

TaskId = Annotated[str, Path(max_length=200, description="Its id, such as `job-3`.")]
Several = Annotated[Sequence[str], Query(max_length=100)]
_LONGEST_NAME = 200
# What they have of a config that an experiment's defaults may give them.
_SHARED = ("environment", "bind_mounts", "slurm")


@router.post("/tasks", dependencies=[policy("write")], status_code=201, response_model=TaskView)
async def create_task(asked: CreateTask, request: Request, caller: Caller, db: Db) -> Response:
    """Start a job or a command."""
    if asked.kind in ("notebook", "tensorboard"):
        raise errors.Refused(f"this master starts no {asked.kind}s; run one in a command or on your own machine")
    if asked.kind == "command" and not asked.arguments:
        raise errors.BadRequest("a command needs `arguments`: the program and what it is given")
    pools = submitting.pools_of(request.app)
    below = await db.read(_defaults, asked.template, request.app.state.settings.experiment_defaults)
    config = await asyncio.to_thread(submitting.task, asked, below, pools.sizes(), pools.default)
    view = await db.write(_create, asked, config, caller)
    db.wake()
    return sending.answer(request, view, 201)


@router.get("/tasks", dependencies=[policy("read")], response_model=Page[TaskView])
async def list_tasks(
    request: Request,
    db: Db,
    kinds: Annotated[Sequence[str], Query(alias="kind", max_length=10, description="Of these kinds.")] = (),
    states: States = (),
    users: Annotated[Sequence[str], Query(alias="user", max_length=100, description="Of one of these users.")] = (),
    sort_by: SortBy = "created_at",
    order: Order = "desc",
    offset: Offset = 0,
    after: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Tasks, filtered and sorted."""
    where = Where(sort_by, order == "desc", after, offset, limit)
    return sending.answer(request, await db.read(_page, kinds, states, users, where))


@router.get("/tasks/{id}", dependencies=[policy("read")], response_model=TaskView)
async def get_task(id: TaskId, request: Request, db: Db) -> Response:
    """One task."""
    return sending.answer(request, await db.read(_view, id))


@router.delete("/tasks/{id}", dependencies=[policy("write")], status_code=204, response_class=Response)
async def delete_task(id: TaskId, request: Request, caller: Caller, db: Db) -> Response:
    """Delete one that has ended, with its logs."""
    await db.write(_delete, id, caller)
    settings = request.app.state.settings
    # The row is gone, so that its id came from us: it names folders and leads nowhere else.
    for folder in (settings.logs_dir / id, settings.runs_dir / id):
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return Response(status_code=204)


@router.get("/tasks/{id}/config", dependencies=[policy("read")])
async def get_config(id: TaskId, db: Db) -> dict[str, Any]:
    """What it was asked to do, defaults included; secrets are masked."""
    return mask((await db.read(tasks.require, id)).config)


@router.get("/tasks/{id}/allocations", dependencies=[policy("read")], response_model=list[AllocationView])
async def list_allocations(id: TaskId, request: Request, db: Db) -> Response:
    """Every attempt to run it."""
    return sending.several(request, await db.read(_allocations, id))


@router.post("/tasks/{id}/{operation}", dependencies=[policy("write")], response_model=TaskView)
async def operate_on_task(
    id: TaskId,
    operation: Annotated[Literal["activate", "pause", "cancel", "kill"], Path(description="What to do with it.")],
    request: Request,
    caller: Caller,
    db: Db,
) -> Response:
    """Activate, pause, cancel or kill it."""
    view = await db.write(_operate, id, operation, caller)
    db.wake()
    return sending.answer(request, view)


def _defaults(tx: Tx, template: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    shared = {name: settings[name] for name in _SHARED if name in settings}
    if template is None:
        return shared
    found = templates.get(tx, template)
    if found is None:
        raise errors.NotFound(f"there is no template {template}")
    return merge.merge(found.config, shared)


def _create(tx: Tx, asked: CreateTask, config: TaskConfig, caller: Identity) -> TaskView:
    if asked.context_sha256 is not None and contexts.get(tx, asked.context_sha256) is None:
        raise errors.NotFound(f"there is no code {asked.context_sha256}; upload it first: PUT /contexts/<sha256>")
    if asked.kind == "command":
        config = config.model_copy(update={"entrypoint": tuple(asked.arguments)})
    resources = config.resources
    task = lifecycle.create(
        tx,
        NewTask(
            kind=asked.kind,
            name=_name(config),
            config=config.as_dict(),
            user_id=caller.user_id,
            resource_pool=resources.resource_pool,
            slots=resources.slots,
            priority=resources.priority,
            weight=resources.weight,
            context_sha256=asked.context_sha256,
            python=asked.python,
            paused=asked.paused,
        ),
    )
    return task_of(task, caller.name)


def _name(config: TaskConfig) -> str:
    said = config.name or config.description
    if not said:
        entrypoint = config.entrypoint or ""
        said = entrypoint if isinstance(entrypoint, str) else shlex.join(entrypoint)
    line = " ".join(said.split())
    return line if len(line) <= _LONGEST_NAME else f"{line[: _LONGEST_NAME - 1]}…"


def _view(tx: Tx, task_id: str) -> TaskView:
    task = tasks.require(tx, task_id)
    return task_of(task, listings.usernames(tx, [task.user_id]).get(task.user_id or 0, ""))


def _page(tx: Tx, kinds: Sequence[str], states: Sequence[str], users: Sequence[str], where: Where) -> Page[TaskView]:
    found = listings.tasks(tx, where, kinds=kinds, states=states, users=users)
    items = [task_of(row) for row in found.rows]
    return Page[TaskView](items=items, total=found.total, offset=where.offset, next=found.next)


def _owned(tx: Tx, task_id: str, caller: Identity) -> Task:
    task = tasks.require(tx, task_id)
    caller.require_owner(task.user_id, f"task {task_id}")
    return task


def _operate(tx: Tx, task_id: str, operation: str, caller: Identity) -> TaskView:
    _owned(tx, task_id, caller)
    lifecycle.operate(tx, task_id, Operation(operation))
    return _view(tx, task_id)


def _delete(tx: Tx, task_id: str, caller: Identity) -> None:
    _owned(tx, task_id, caller)
    lifecycle.delete(tx, task_id)


def _allocations(tx: Tx, task_id: str) -> list[AllocationView]:
    tasks.require(tx, task_id)
    return [allocation_of(allocation) for allocation in allocations.of_task(tx, task_id)]
