"""Checkpoints: looked at, noted, deleted, and handed out file by file."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Path, Request
from starlette.responses import Response

from determined import errors
from determined.master.api import checkpoint_files, sending
from determined.master.api.access import Caller, Db
from determined.master.api.identity import Identity
from determined.master.api.policy import Router, policy
from determined.master.api.views import checkpoint_of
from determined.master.lifecycle import checkpoints as lifecycle
from determined.master.records import Checkpoint, CheckpointState
from determined.master.store import checkpoints, experiments, listings, tasks, trials
from determined.master.store.database import Tx
from determined.wire.requests import DeleteCheckpoints, EditMetadata
from determined.wire.views import CheckpointView, Done

router = Router()

Uuid = Annotated[str, Path(max_length=200, description="Its id, or an unambiguous beginning of it.")]
_MOST = 1000


@router.post("/checkpoints/delete", dependencies=[policy("write")], response_model=list[Done])
async def delete_checkpoints(asked: DeleteCheckpoints, request: Request, caller: Caller, db: Db) -> Response:
    """Delete checkpoints, or only those of their files that match `globs`; each answers for itself.

    The files go in the background. One that is registered, or that something unfinished goes on from, stays.
    """
    if len(asked.uuids) > _MOST or len(asked.globs) > _MOST:
        raise errors.BadRequest(f"at most {_MOST} checkpoints and {_MOST} patterns at once")
    done = []
    for uuid in dict.fromkeys(asked.uuids):
        try:
            await db.database.write(_delete, uuid, asked.globs, caller)
            done.append(Done(id=uuid))
        except errors.DeterminedError as error:
            done.append(Done(id=uuid, error=str(error)))
    await db.write(_nothing)
    db.wake()
    return sending.several(request, done)


@router.get("/checkpoints/{uuid}", dependencies=[policy("read", allocations="any")], response_model=CheckpointView)
async def get_checkpoint(uuid: Uuid, request: Request, db: Db) -> Response:
    """One checkpoint, with the config, hyperparameters and validation metrics of its trial."""
    return sending.answer(request, await db.read(_view, uuid))


@router.patch("/checkpoints/{uuid}/metadata", dependencies=[policy("write")], response_model=CheckpointView)
async def edit_metadata(uuid: Uuid, asked: EditMetadata, request: Request, caller: Caller, db: Db) -> Response:
    """Replace top-level keys of its metadata, and remove some."""
    return sending.answer(request, await db.write(_edit, uuid, asked, caller))


@router.get("/checkpoints/{uuid}/files", dependencies=[policy("read", allocations="any")])
async def list_files(uuid: Uuid, request: Request, db: Db) -> dict[str, int]:
    """Its files, with their sizes. `manifest.json`, where there is one, has the digests of the others."""
    place = checkpoint_files.place_of(await db.read(_usable, uuid), request.app.state.settings)
    return await asyncio.to_thread(checkpoint_files.files, place)


@router.get(
    "/checkpoints/{uuid}/files/{path:path}",
    dependencies=[policy("read", allocations="any")],
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}}, 206: {"description": "A part of it."}},
)
async def get_file(
    uuid: Uuid, path: Annotated[str, Path(description="The file's place in the checkpoint.")], request: Request, db: Db
) -> Response:
    """One of its files; `Range` asks for a part."""
    place = checkpoint_files.place_of(await db.read(_usable, uuid), request.app.state.settings)
    return await checkpoint_files.send(place, path, request.headers.get("range"))


def _view(tx: Tx, uuid: str) -> CheckpointView:
    checkpoint = checkpoints.require(tx, uuid)
    experiment = None if checkpoint.experiment_id is None else experiments.get(tx, checkpoint.experiment_id)
    trial = None if checkpoint.trial_id is None else trials.get(tx, checkpoint.trial_id)
    validation = None
    if checkpoint.trial_id is not None:
        place = (checkpoint.trial_id, checkpoint.steps_completed)
        validation = listings.validations_at(tx, [place]).get(place)
    return checkpoint_of(checkpoint, validation, experiment, trial)


def _usable(tx: Tx, uuid: str) -> Checkpoint:
    checkpoint = checkpoints.require(tx, uuid)
    if checkpoint.state in (CheckpointState.DELETED, CheckpointState.DELETING):
        raise errors.CheckpointNotFound(f"checkpoint {checkpoint.uuid} is deleted; its files are gone")
    return checkpoint


def _owned(tx: Tx, uuid: str, caller: Identity) -> Checkpoint:
    checkpoint = checkpoints.require(tx, uuid)
    owner = None
    if checkpoint.experiment_id is not None:
        owner = experiments.require(tx, checkpoint.experiment_id).user_id
    elif checkpoint.task_id is not None:
        task = tasks.get(tx, checkpoint.task_id)
        owner = None if task is None else task.user_id
    caller.require_owner(owner, f"checkpoint {checkpoint.uuid}")
    return checkpoint


def _edit(tx: Tx, uuid: str, asked: EditMetadata, caller: Identity) -> CheckpointView:
    checkpoint = _owned(tx, uuid, caller)
    lifecycle.edit_metadata(tx, checkpoint.uuid, asked.set, asked.remove)
    return _view(tx, checkpoint.uuid)


def _delete(tx: Tx, uuid: str, globs: list[str], caller: Identity) -> None:
    checkpoint = _owned(tx, uuid, caller)
    lifecycle.mark_deleting(tx, checkpoint.uuid, globs)


def _nothing(tx: Tx) -> None:
    """Marks that a call which is several changes has happened."""
