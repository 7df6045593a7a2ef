"""Runs that no master started: a script anywhere makes itself known, and reports."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from determined.master.api import sending
from determined.master.api.access import Caller, Db
from determined.master.api.doorkeeper import hash_of, new_token
from determined.master.api.identity import Identity
from determined.master.api.policy import Router, policy
from determined.master.lifecycle import runs
from determined.master.store import settings
from determined.master.store.database import Tx
from determined.wire.requests import RegisterRun
from determined.wire.views import RunView

router = Router()


@router.post("/runs", dependencies=[policy("write")], status_code=201, response_model=RunView)
async def register_run(asked: RegisterRun, request: Request, caller: Caller, db: Db) -> Response:
    """Make a run known. The same external ids are the same run, resumed: its earlier attempt is over from now on."""
    view = await db.write(_register, asked, caller, new_token())
    request.app.state.doorkeeper.forget()
    return sending.answer(request, view, 201)


def _register(tx: Tx, asked: RegisterRun, caller: Identity, token: str) -> RunView:
    run = runs.register(tx, asked, caller.user_id, is_admin=caller.is_admin, token_hash=hash_of(token))
    return RunView(
        experiment_id=run.trial.experiment_id,
        trial_id=run.trial.id,
        allocation_id=run.allocation.id,
        run_epoch=run.allocation.run_epoch,
        session_token=token,
        cluster_id=settings.get(tx, "cluster_id", ""),
        latest_checkpoint=run.trial.latest_checkpoint,
        steps_completed=run.trial.steps_completed,
    )
