"""Trials: looked at, ended, continued; their metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import Path, Query, Request
from starlette.responses import Response

from determined.master.api import sending, streaming
from determined.master.api.access import Caller, Db, Id, Limit, Offset
from determined.master.api.experiments import Cursor, MaybeSortBy, Order, States, order_of_checkpoints
from determined.master.api.identity import Identity
from determined.master.api.policy import Router, policy
from determined.master.api.views import allocation_of, checkpoint_views, metrics_of, trial_of
from determined.master.lifecycle import trials as lifecycle
from determined.master.operations import Operation
from determined.master.records import Trial
from determined.master.store import allocations, experiments, listings, metrics, series, trials
from determined.master.store.database import Tx
from determined.wire.views import AllocationView, CheckpointView, MetricNames, MetricsRow, Page, SeriesView, TrialView

router = Router()

Steps = Annotated[int, Query(ge=-1, le=2**63 - 1, description="Reports of more steps than these.")]
Group = Annotated[str, Query(max_length=1000, description="A group of metrics.")]


@router.get("/trials/{id}", dependencies=[policy("read", allocations="any")], response_model=TrialView)
async def get_trial(id: Id, request: Request, db: Db) -> Response:
    """One trial."""
    return sending.answer(request, await db.read(_view, id))


@router.post("/trials/{id}/{operation}", dependencies=[policy("write")], response_model=TrialView)
async def operate_on_trial(
    id: Id,
    operation: Annotated[Literal["kill", "cancel", "continue"], Path(description="What to do with it.")],
    request: Request,
    caller: Caller,
    db: Db,
) -> Response:
    """Kill or cancel it, which its search hears of; or continue it once it has ended."""
    view = await db.write(_operate, id, operation, caller)
    db.wake()
    return sending.answer(request, view)


@router.get("/trials/{id}/metrics", dependencies=[policy("read", allocations="any")], response_model=Page[MetricsRow])
async def get_metrics(
    id: Id,
    request: Request,
    db: Db,
    group: Annotated[str | None, Query(max_length=1000, description="Absent: validation, or all in a stream.")] = None,
    after: Steps = -1,
    limit: Limit = 1000,
    stream: Annotated[bool, Query(description="All of them, one JSON object a line.")] = False,
) -> Response:
    """Reports of a group of more than `after` steps, as they were made."""
    if stream:
        await db.read(trials.require, id)
        return sending.lines(streaming.metrics(db, id, group, sending.takes_constants(request)))
    return sending.answer(request, await db.read(_metrics, id, group or "validation", after, limit))


@router.get("/trials/{id}/metric-names", dependencies=[policy("read", allocations="any")], response_model=MetricNames)
async def get_metric_names(id: Id, request: Request, db: Db) -> Response:
    """The groups of its metrics, and the numeric metrics in each."""
    return sending.answer(request, await db.read(_names, id))


@router.get("/trials/{id}/series", dependencies=[policy("read", allocations="any")], response_model=SeriesView)
async def get_series(
    id: Id,
    request: Request,
    db: Db,
    name: Annotated[str, Query(max_length=10_000, description="A metric; nested ones as outer.inner.")],
    group: Group = "validation",
    points: Annotated[int, Query(ge=1, le=10_000, description="About so many points.")] = 1000,
    first: Annotated[int | None, Query(ge=0, le=2**63 - 1, description="From these steps on.")] = None,
    last: Annotated[int | None, Query(ge=0, le=2**63 - 1, description="Up to these steps.")] = None,
) -> Response:
    """One metric over steps, thinned for a chart: each point has the last, least and greatest value it stands for."""
    return sending.answer(request, await db.read(_series, id, group, name, points, first, last))


@router.get("/trials/{id}/usage", dependencies=[policy("read")], response_model=Page[MetricsRow])
async def get_usage(id: Id, request: Request, db: Db, after: Steps = -1, limit: Limit = 1000) -> Response:
    """What its processes used of their machines; `steps_completed` is a time in milliseconds."""
    return sending.answer(request, await db.read(_metrics, id, metrics.USAGE, after, limit))


@router.get(
    "/trials/{id}/checkpoints",
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


@router.get("/trials/{id}/allocations", dependencies=[policy("read")], response_model=list[AllocationView])
async def list_allocations(id: Id, request: Request, db: Db) -> Response:
    """Every attempt to run it."""
    return sending.several(request, await db.read(_allocations, id))


def _view(tx: Tx, trial_id: int) -> TrialView:
    trial = trials.require(tx, trial_id)
    return trial_of(trial, experiments.require(tx, trial.experiment_id).wanted)


def _operate(tx: Tx, trial_id: int, operation: str, caller: Identity) -> TrialView:
    trial = trials.require(tx, trial_id)
    caller.require_owner(experiments.require(tx, trial.experiment_id).user_id, f"trial {trial_id}")
    lifecycle.operate(tx, trial_id, Operation(operation))
    return _view(tx, trial_id)


def _metrics(tx: Tx, trial_id: int, group: str, after: int, limit: int) -> Page[MetricsRow]:
    trials.require(tx, trial_id)
    rows = [metrics_of(row) for row in metrics.rows(tx, trial_id, group, after, limit)]
    following = str(rows[-1].steps_completed) if rows and len(rows) == limit else None
    return Page[MetricsRow](items=rows, total=metrics.count(tx, trial_id, group), next=following)


def _names(tx: Tx, trial_id: int) -> MetricNames:
    trials.require(tx, trial_id)
    return MetricNames(groups=series.names(tx, trial_id))


def _series(
    tx: Tx, trial_id: int, group: str, name: str, points: int, first: int | None, last: int | None
) -> SeriesView:
    trials.require(tx, trial_id)
    found = series.series(tx, trial_id, group, name, points, first, last)
    return SeriesView(
        trial_id=trial_id,
        group=group,
        name=name,
        total=found.total,
        steps=found.steps,
        last=found.last,
        min=found.min,
        max=found.max,
        time=found.time,
    )


def _checkpoints(
    tx: Tx,
    trial_id: int,
    states: Sequence[str],
    sort_by: str | None,
    order: Order | None,
    after: str | None,
    offset: int,
    limit: int,
) -> Page[CheckpointView]:
    trial: Trial = trials.require(tx, trial_id)
    experiment = experiments.require(tx, trial.experiment_id)
    where = order_of_checkpoints(sort_by, order, experiment.smaller_is_better, after, offset, limit)
    found = listings.checkpoints(tx, where, trial_id=trial_id, states=states)
    return Page[CheckpointView](
        items=checkpoint_views(tx, found.rows), total=found.total, offset=offset, next=found.next
    )


def _allocations(tx: Tx, trial_id: int) -> list[AllocationView]:
    trials.require(tx, trial_id)
    return [allocation_of(allocation) for allocation in allocations.of_task(tx, f"trial-{trial_id}")]
