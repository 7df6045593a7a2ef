"""Experiments: submitted, listed, changed, ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

import yaml
from fastapi import Path, Query, Request
from starlette.responses import Response

from determined import errors
from determined.config import loading, merge, places
from determined.config.experiment import ExperimentConfig
from determined.config.masking import mask
from determined.master.api import sending, streaming, submitting
from determined.master.api.access import Access, Caller, Db, Id, Limit, Offset
from determined.master.api.identity import Identity
from determined.master.api.policy import Router, policy
from determined.master.api.views import checkpoint_views, experiment_of, experiment_view, trial_of
from determined.master.lifecycle import experiments as lifecycle
from determined.master.lifecycle import projects
from determined.master.lifecycle.experiments import NewExperiment
from determined.master.operations import Operation
from determined.master.records import Experiment
from determined.master.store import contexts, experiments, listings, searches, templates
from determined.master.store.database import Tx
from determined.master.store.listings import ExperimentFilter, Where
from determined.wire.requests import Bulk, ContinueExperiment, CreateExperiment, EditExperiment, Move
from determined.wire.views import CheckpointView, Created, Done, ExperimentView, MetricsRow, Page, TrialView

router = Router()

Order = Annotated[Literal["asc", "desc"], Query(description="The least first, or the greatest.")]
SortBy = Annotated[str, Query(description="The field that they are sorted by.")]
MaybeSortBy = Annotated[str | None, Query(max_length=1000, description="A field, `searcher_metric`, or `metric:NAME`.")]
States = Annotated[Sequence[str], Query(alias="state", max_length=20, description="In one of these states.")]
Cursor = Annotated[str | None, Query(max_length=4096, description="The `next` of the page before.")]
Number = Annotated[int, Query(ge=1, le=2**63 - 1)]
_MOST_BULK = 1000
_MAY_BE_NOTHING = {"priority", "max_slots", "log_retention_days"}


@router.post("/experiments", dependencies=[policy("write")], status_code=201, response_model=Created)
async def create_experiment(asked: CreateExperiment, request: Request, caller: Caller, db: Db) -> Response:
    """Submit an experiment, or with `check_only` learn what is wrong with it or what it would become.

    Every mistake in the config is told at once, in `details`, with its file and line.
    """
    pools = submitting.pools_of(request.app)
    below = await db.read(_defaults, asked.template, request.app.state.settings.experiment_defaults)
    # Parsing takes milliseconds, which are not the event loop's to give.
    config = await asyncio.to_thread(submitting.experiment, asked, below, pools.sizes(), pools.default)
    try:
        created = await db.write(_create, asked, config, caller.user_id)
    except _OnlyChecked as checked:
        # All of it was tried, search included, and taken back.
        view: Created = checked.args[0]
        return sending.answer(request, view, 200)
    db.wake()
    return sending.answer(request, created, 201)


@router.get("/experiments", dependencies=[policy("read", allocations="any")], response_model=Page[ExperimentView])
async def list_experiments(
    request: Request,
    db: Db,
    ids: Annotated[Sequence[Number], Query(alias="id", max_length=1000, description="These only.")] = (),
    states: States = (),
    labels: Annotated[Sequence[str], Query(alias="label", max_length=100, description="That have all of these.")] = (),
    users: Annotated[Sequence[str], Query(alias="user", max_length=100, description="Of one of these users.")] = (),
    name: Annotated[str | None, Query(max_length=1000, description="Whose name contains this.")] = None,
    search: Annotated[str | None, Query(max_length=1000, description="In name, description, labels or id.")] = None,
    project_id: Annotated[Number | None, Query(description="Of this project.")] = None,
    workspace_id: Annotated[Number | None, Query(description="Of this workspace.")] = None,
    archived: Annotated[bool | None, Query(description="Only archived ones, or none of them; absent: all.")] = None,
    with_config: Annotated[bool, Query(description="Configs too, which are long.")] = False,
    sort_by: SortBy = "id",
    order: Order = "desc",
    offset: Offset = 0,
    after: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Experiments, filtered and sorted."""
    which = ExperimentFilter(
        ids, states, labels, users, name or None, search or None, project_id, workspace_id, archived
    )
    where = Where(sort_by, order == "desc", after, offset, limit)
    return sending.answer(request, await db.read(_page, which, where, with_config))


@router.post("/experiments/bulk", dependencies=[policy("write")], response_model=list[Done])
async def operate_on_several(asked: Bulk, request: Request, caller: Caller, db: Db) -> Response:
    """One operation on several experiments; each answers for itself."""
    if len(asked.ids) > _MOST_BULK:
        raise errors.BadRequest(f"at most {_MOST_BULK} experiments at once")
    done = []
    for experiment_id in dict.fromkeys(asked.ids):
        try:
            await db.database.write(_operate, experiment_id, asked.operation, caller)
            done.append(Done(id=str(experiment_id)))
        except errors.DeterminedError as error:
            done.append(Done(id=str(experiment_id), error=str(error)))
    await db.write(_nothing)
    db.wake()
    return sending.several(request, done)


@router.get("/experiments/{id}", dependencies=[policy("read", allocations="any")], response_model=ExperimentView)
async def get_experiment(id: Id, request: Request, db: Db) -> Response:
    """One experiment."""
    return sending.answer(request, await db.read(_view, id))


@router.patch("/experiments/{id}", dependencies=[policy("write")], response_model=ExperimentView)
async def edit_experiment(id: Id, asked: EditExperiment, request: Request, caller: Caller, db: Db) -> Response:
    """Change what it is called, and what it may use and keep."""
    # Null takes a limit away; anything else cannot be nothing.
    changes = {
        name: value
        for name, value in asked.model_dump(exclude_unset=True).items()
        if value is not None or name in _MAY_BE_NOTHING
    }
    pool = changes.get("resource_pool")
    if pool and pool not in submitting.pools_of(request.app).sizes():
        raise errors.Refused(f"there is no pool {pool!r}")
    view = await db.write(_edit, id, changes, caller)
    db.wake()
    return sending.answer(request, view)


@router.delete("/experiments/{id}", dependencies=[policy("write")], status_code=202, response_class=Response)
async def delete_experiment(id: Id, caller: Caller, db: Db) -> Response:
    """Delete it with all it left. Files go in the background; until then it is DELETING."""
    await db.write(_delete, id, caller)
    db.wake()
    return Response(status_code=202)


@router.post("/experiments/{id}/move", dependencies=[policy("write")], response_model=ExperimentView)
async def move_experiment(id: Id, asked: Move, request: Request, caller: Caller, db: Db) -> Response:
    """Put it into another project."""
    return sending.answer(request, await db.write(_move, id, asked.to, caller))


@router.post("/experiments/{id}/continue", dependencies=[policy("write")], response_model=ExperimentView)
async def continue_experiment(id: Id, asked: ContinueExperiment, request: Request, caller: Caller, db: Db) -> Response:
    """Train its trials on from where they ended, with changes to its config."""
    experiment = await db.read(experiments.require, id)
    caller.require_owner(experiment.user_id, f"experiment {id}")
    config = await asyncio.to_thread(_changed, experiment, asked.overrides)
    view = await db.write(_continue, id, config, caller)
    db.wake()
    return sending.answer(request, view)


Verb = Annotated[
    Literal["activate", "pause", "cancel", "kill", "archive", "unarchive", "retry"],
    Path(description="What to do with it."),
]


@router.post("/experiments/{id}/{operation}", dependencies=[policy("write")], response_model=ExperimentView)
async def operate_on_experiment(id: Id, operation: Verb, request: Request, caller: Caller, db: Db) -> Response:
    """Activate, pause, cancel, kill, archive or unarchive it, or start its failed trials again."""
    view = await db.write(_operated, id, operation, caller)
    db.wake()
    return sending.answer(request, view)


@router.get(
    "/experiments/{id}/trials", dependencies=[policy("read", allocations="any")], response_model=Page[TrialView]
)
async def list_trials(
    id: Id,
    request: Request,
    db: Db,
    states: States = (),
    sort_by: SortBy = "id",
    order: Order = "asc",
    offset: Offset = 0,
    after: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Its trials, filtered and sorted."""
    where = Where(sort_by, order == "desc", after, offset, limit)
    return sending.answer(request, await db.read(_trials, id, states, where))


@router.get(
    "/experiments/{id}/checkpoints",
    dependencies=[policy("read", allocations="any")],
    response_model=Page[CheckpointView],
)
async def list_checkpoints(
    id: Id,
    request: Request,
    db: Db,
    states: States = (),
    sort_by: MaybeSortBy = None,
    order: Annotated[Order | None, Query(description="Absent: the better first.")] = None,
    offset: Offset = 0,
    after: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Its checkpoints; by default the best of the searcher's metric first. `metric:NAME` sorts by another."""
    return sending.answer(request, await db.read(_checkpoints, id, states, sort_by, order, after, offset, limit))


@router.get("/experiments/{id}/config", dependencies=[policy("read", allocations="any")])
async def get_config(id: Id, db: Db) -> dict[str, Any]:
    """The YAML as it was submitted (`written`) and what it became (`config`); secrets are masked."""
    experiment = await db.read(experiments.require, id)
    return {
        "written": await asyncio.to_thread(masked_text, experiment.written_config),
        "config": mask(experiment.config),
        "context_sha256": experiment.context_sha256,
    }


@router.get("/experiments/{id}/search-events", dependencies=[policy("read")])
async def list_search_events(
    id: Id,
    db: Db,
    after: Annotated[int, Query(ge=-1, le=2**31 - 2, description="Those after this number.")] = -1,
    limit: Limit = 1000,
) -> list[dict[str, Any]]:
    """What its search was told and what it answered, in order."""
    return await db.read(_search_events, id, after, limit)


@router.get("/experiments/{id}/best", dependencies=[policy("read", allocations="any")])
async def get_best(id: Id, db: Db) -> dict[str, Any]:
    """The best value so far of the searcher's metric, and the trial that had it."""
    experiment = await db.read(experiments.require, id)
    return {"value": experiment.best_metric, "trial_id": experiment.best_trial_id, "metric": experiment.metric}


@router.get("/experiments/{id}/metrics", dependencies=[policy("read")], response_model=MetricsRow)
async def export_metrics(
    id: Id,
    request: Request,
    db: Db,
    group: Annotated[str | None, Query(max_length=1000, description="Of this group; absent: of all.")] = None,
    after_trial: Annotated[int, Query(ge=0, le=2**63 - 1, description="Only of trials with greater ids.")] = 0,
) -> Response:
    """Every report of every trial, complete: one JSON object a line, in order of trial, group and steps."""
    await db.read(experiments.require, id)
    return sending.lines(_all_metrics(db, id, group, after_trial, sending.takes_constants(request)))


async def _all_metrics(
    db: Access, experiment_id: int, group: str | None, after: int, constants: bool
) -> AsyncIterator[bytes]:
    while True:
        ids = await db.read(listings.trial_ids, experiment_id, after, 500)
        if not ids:
            return
        for trial_id in ids:
            async for piece in streaming.metrics(db, trial_id, group, constants):
                yield piece
        after = ids[-1]


# What happens in transactions.


def _defaults(tx: Tx, template: str | None, settings: dict[str, Any]) -> dict[str, Any]:
    if template is None:
        return dict(settings)
    found = templates.get(tx, template)
    if found is None:
        raise errors.NotFound(f"there is no template {template}")
    return merge.merge(found.config, settings)


class _OnlyChecked(Exception):
    """Carries what would have been created out of a transaction that does not happen."""


def _create(tx: Tx, asked: CreateExperiment, config: ExperimentConfig, user_id: int | None) -> Created:
    experiment = lifecycle.create(
        tx,
        NewExperiment(
            config=config,
            written=asked.config,
            user_id=user_id,
            project_id=_project(tx, asked, config),
            context_sha256=_context(tx, asked.context_sha256),
            python=asked.python,
            paused=asked.paused,
            archived=asked.test,  # it is only to be looked at; lists need not show it
            notices=list(config.notices),
            parent_id=asked.parent_id,
        ),
    )
    created = Created(
        experiment=_view(tx, experiment.id), config=config.as_dict(masked=True), notices=list(config.notices)
    )
    if asked.check_only:
        raise _OnlyChecked(created.model_copy(update={"experiment": None}))
    return created


def _project(tx: Tx, asked: CreateExperiment, config: ExperimentConfig) -> int:
    if asked.project_id is not None:
        return projects.require_takes_experiments(tx, asked.project_id).id
    return projects.resolve(tx, config.workspace or None, config.project or None).id


def _context(tx: Tx, sha256: str | None) -> str | None:
    if sha256 is not None and contexts.get(tx, sha256) is None:
        raise errors.NotFound(f"there is no code {sha256}; upload it first: PUT /contexts/<sha256>")
    return sha256


def _view(tx: Tx, experiment_id: int) -> ExperimentView:
    view = experiment_view(tx, experiment_id)
    if view is None:
        raise errors.NotFound(f"there is no experiment {experiment_id}")
    return view


def _page(tx: Tx, which: ExperimentFilter, where: Where, with_config: bool) -> Page[ExperimentView]:
    found = listings.experiments(tx, which, where, with_config=with_config)
    counts = experiments.trial_counts(tx, [row["id"] for row in found.rows])
    items = [experiment_of(row, counts[row["id"]], with_config=with_config) for row in found.rows]
    return Page[ExperimentView](items=items, total=found.total, offset=where.offset, next=found.next)


def _owned(tx: Tx, experiment_id: int, caller: Identity) -> Experiment:
    experiment = experiments.require(tx, experiment_id)
    caller.require_owner(experiment.user_id, f"experiment {experiment_id}")
    return experiment


def _operated(tx: Tx, experiment_id: int, operation: str, caller: Identity) -> ExperimentView:
    _operate(tx, experiment_id, operation, caller)
    return _view(tx, experiment_id)


def _operate(tx: Tx, experiment_id: int, operation: str, caller: Identity) -> None:
    _owned(tx, experiment_id, caller)
    if operation == "delete":
        lifecycle.delete(tx, experiment_id)
    elif operation == "retry":
        lifecycle.retry(tx, experiment_id)
    else:
        lifecycle.operate(tx, experiment_id, Operation(operation))


def _edit(tx: Tx, experiment_id: int, changes: dict[str, Any], caller: Identity) -> ExperimentView:
    _owned(tx, experiment_id, caller)
    lifecycle.edit(tx, experiment_id, changes)
    return _view(tx, experiment_id)


def _delete(tx: Tx, experiment_id: int, caller: Identity) -> None:
    _owned(tx, experiment_id, caller)
    lifecycle.delete(tx, experiment_id)


def _move(tx: Tx, experiment_id: int, project_id: int, caller: Identity) -> ExperimentView:
    _owned(tx, experiment_id, caller)
    lifecycle.move(tx, experiment_id, projects.require_takes_experiments(tx, project_id).id)
    return _view(tx, experiment_id)


def _changed(experiment: Experiment, overrides: Sequence[str]) -> ExperimentConfig:
    checked = loading.check(experiment.config, overrides=overrides, to_run=True)
    if checked.config is None:
        raise submitting.refused(checked.problems, checked.what)
    return checked.config


def _continue(tx: Tx, experiment_id: int, config: ExperimentConfig, caller: Identity) -> ExperimentView:
    _owned(tx, experiment_id, caller)
    lifecycle.continue_(tx, experiment_id, config)
    return _view(tx, experiment_id)


def _trials(tx: Tx, experiment_id: int, states: Sequence[str], where: Where) -> Page[TrialView]:
    experiment = experiments.require(tx, experiment_id)
    found = listings.trials(tx, experiment_id, experiment.wanted, states, where)
    items = [trial_of(row, experiment.wanted) for row in found.rows]
    return Page[TrialView](items=items, total=found.total, offset=where.offset, next=found.next)


def _checkpoints(
    tx: Tx,
    experiment_id: int,
    states: Sequence[str],
    sort_by: str | None,
    order: Order | None,
    after: str | None,
    offset: int,
    limit: int,
) -> Page[CheckpointView]:
    experiment = experiments.require(tx, experiment_id)
    where = order_of_checkpoints(sort_by, order, experiment.smaller_is_better, after, offset, limit)
    found = listings.checkpoints(tx, where, experiment_id=experiment_id, states=states)
    items = checkpoint_views(tx, found.rows)
    return Page[CheckpointView](items=items, total=found.total, offset=offset, next=found.next)


def order_of_checkpoints(
    sort_by: str | None, order: Order | None, smaller_is_better: bool, after: str | None, offset: int, limit: int
) -> Where:
    """How checkpoints are sorted: by default the best of the searcher's metric first."""
    descending = order == "desc" if order else (sort_by is None and not smaller_is_better)
    return Where(sort_by or "searcher_metric", descending, after, offset, limit)


def _search_events(tx: Tx, experiment_id: int, after: int, limit: int) -> list[dict[str, Any]]:
    experiments.require(tx, experiment_id)
    return [
        {
            "number": event.number,
            "kind": event.kind,
            "trial": event.trial,
            "told": event.told,
            "actions": event.actions,
            "time": event.time,
        }
        for event in searches.events(tx, experiment_id, first=after + 1, limit=limit)
    ]


def _nothing(tx: Tx) -> None:
    """Marks that a call which is several changes has happened."""


def masked_text(written: str) -> str:
    """A config as it was written; where it has secrets, its comments are the price of masking them."""
    plain = places.read_yaml(written).data
    if not isinstance(plain, dict):
        return written
    masked = mask(plain)
    variables = (plain.get("environment") or {}) if isinstance(plain.get("environment"), dict) else {}
    if isinstance(variables.get("environment_variables"), list):
        listed = {"environment": {"environment_variables": {"cpu": variables["environment_variables"]}}}
        masked["environment"]["environment_variables"] = mask(listed)["environment"]["environment_variables"]["cpu"]
    return written if masked == plain else yaml.safe_dump(masked, sort_keys=False, allow_unicode=True)
