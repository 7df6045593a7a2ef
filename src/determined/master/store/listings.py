"""Lists as people see them: filtered, sorted, and walked page by page.

A page names the place where it ends, by the value it is sorted by and the id: the next one goes on behind it, whatever
was created or deleted meanwhile. Only columns that are listed here can be sorted by. The long columns are not read.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from determined import errors
from determined.master.states import (
    ExperimentState,
    TaskState,
    TrialState,
    Wanted,
    public_experiment_state,
    public_task_state,
    public_trial_state,
    wanted_of_trial,
)
from determined.master.store import series, tables
from determined.master.store.database import Tx
from determined.master.store.metrics import USAGE

Columns = Mapping[str, sa.ColumnElement[Any]]
Row = sa.RowMapping

_experiments, _trials = tables.experiments, tables.trials
_checkpoints, _tasks = tables.checkpoints, tables.tasks
_LONG = ("config", "written_config", "notices")


@dataclasses.dataclass(frozen=True)
class Where:
    """Which part of a list: behind ``after`` (the ``next`` of another page), or from ``offset`` on."""

    sort_by: str
    descending: bool = False
    after: str | None = None
    offset: int = 0
    limit: int = 100


class Listed(NamedTuple):
    """Part of a list; ``total`` counts all of it, ``next`` is the ``after`` of what follows, if anything may."""

    rows: list[Row]
    total: int
    next: str | None


@dataclasses.dataclass(frozen=True)
class ExperimentFilter:
    """Which experiments; what is empty or None does not matter. States are those that people see."""

    ids: Collection[int] = ()
    states: Collection[str] = ()
    labels: Collection[str] = ()
    users: Collection[str] = ()
    name: str | None = None
    search: str | None = None
    project_id: int | None = None
    workspace_id: int | None = None
    archived: bool | None = None


def _name_of(name: sa.ColumnElement[Any], *conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[Any]:
    """The name of something that a row refers to, to sort by: the list itself needs no join."""
    return sa.select(name).where(*conditions).correlate(_experiments, _tasks).scalar_subquery()


_WITH_NAMES = (
    _experiments.join(tables.projects, tables.projects.c.id == _experiments.c.project_id)
    .join(tables.workspaces, tables.workspaces.c.id == tables.projects.c.workspace_id)
    .outerjoin(tables.users, tables.users.c.id == _experiments.c.user_id)
)
_NAMES = (
    tables.projects.c.name.label("project_name"),
    tables.projects.c.workspace_id,
    tables.workspaces.c.name.label("workspace_name"),
    tables.users.c.username,
)
EXPERIMENTS: Columns = {
    **{
        name: _experiments.c[name]
        for name in (
            "id", "name", "description", "state", "progress", "searcher", "metric", "resource_pool", "slots_per_trial",
            "priority", "weight", "best_metric", "trial_count", "checkpoint_count", "checkpoint_size", "project_id",
            "parent_id", "archived", "created_at", "started_at", "ended_at",
        )
    },
    "username": _name_of(tables.users.c.username, tables.users.c.id == _experiments.c.user_id),
    "project_name": _name_of(tables.projects.c.name, tables.projects.c.id == _experiments.c.project_id),
    "workspace_name": _name_of(
        tables.workspaces.c.name,
        tables.workspaces.c.id == tables.projects.c.workspace_id,
        tables.projects.c.id == _experiments.c.project_id,
    ),
}  # fmt: skip
TRIALS: Columns = {
    name: _trials.c[name]
    for name in (
        "id", "number", "state", "steps_completed", "progress", "restarts", "best_metric", "best_step", "created_at",
        "started_at", "ended_at",
    )
}  # fmt: skip
CHECKPOINTS: Columns = {
    name: _checkpoints.c[name]
    for name in ("uuid", "trial_id", "steps_completed", "reported_at", "state", "searcher_metric", "size")
}
TASKS: Columns = {
    **{
        name: _tasks.c[name]
        for name in (
            "id", "kind", "name", "state", "resource_pool", "slots", "priority", "created_at", "started_at", "ended_at",
        )
    },
    "username": _name_of(tables.users.c.username, tables.users.c.id == _tasks.c.user_id),
}  # fmt: skip


def experiments(tx: Tx, which: ExperimentFilter, where: Where, *, with_config: bool = False) -> Listed:
    """Some experiments, with the names of their project, workspace and user."""
    shown = [column for column in _experiments.c if with_config or column.name not in _LONG]
    query = sa.select(*shown, *_NAMES).select_from(_WITH_NAMES)
    return _listed(tx, query, _experiment_conditions(which), EXPERIMENTS, where, _experiments.c.id)


def experiment(tx: Tx, experiment_id: int) -> Row | None:
    """One experiment, with the names of its project, workspace and user; None if there is none."""
    query = sa.select(_experiments, *_NAMES).select_from(_WITH_NAMES).where(_experiments.c.id == experiment_id)
    return tx.execute(query).mappings().one_or_none()


def trials(tx: Tx, experiment_id: int, experiment_wanted: Wanted, states: Collection[str], where: Where) -> Listed:
    """Some trials of an experiment."""
    conditions: list[sa.ColumnElement[bool]] = [_trials.c.experiment_id == experiment_id]
    if states:

        def name_of(state: str, wanted: Wanted) -> str:
            return public_trial_state(TrialState(state), wanted_of_trial(experiment_wanted, wanted))

        conditions.append(_in_states(_trials, [state.value for state in TrialState], states, name_of))
    return _listed(tx, sa.select(_trials), conditions, TRIALS, where, _trials.c.id)


def checkpoints(
    tx: Tx,
    where: Where,
    *,
    experiment_id: int | None = None,
    trial_id: int | None = None,
    states: Collection[str] = (),
) -> Listed:
    """Some checkpoints of an experiment or a trial. ``sort_by`` may be ``metric:`` and the name of a validation
    metric; those without it come last."""
    conditions: list[sa.ColumnElement[bool]] = []
    if experiment_id is not None:
        conditions.append(_checkpoints.c.experiment_id == experiment_id)
    if trial_id is not None:
        conditions.append(_checkpoints.c.trial_id == trial_id)
    if states:
        conditions.append(_checkpoints.c.state.in_([state.lower() for state in states]))
    query = sa.select(_checkpoints)
    if where.sort_by.startswith("metric:"):
        return _by_metric(tx, query.where(*conditions), where)
    return _listed(tx, query, conditions, CHECKPOINTS, where, _checkpoints.c.uuid)


def tasks(
    tx: Tx, where: Where, *, kinds: Collection[str] = (), states: Collection[str] = (), users: Collection[str] = ()
) -> Listed:
    """Some tasks, with the names of their users."""
    query = sa.select(_tasks, tables.users.c.username).select_from(
        _tasks.outerjoin(tables.users, tables.users.c.id == _tasks.c.user_id)
    )
    conditions: list[sa.ColumnElement[bool]] = []
    if kinds:
        conditions.append(_tasks.c.kind.in_([*kinds]))
    if users:
        conditions.append(_tasks.c.user_id.in_(_ids_of_users(users)))
    if states:

        def name_of(state: str, wanted: Wanted) -> str:
            return public_task_state(TaskState(state), wanted)

        conditions.append(_in_states(_tasks, [state.value for state in TaskState], states, name_of))
    return _listed(tx, query, conditions, TASKS, where, _tasks.c.id)


def usernames(tx: Tx, user_ids: Iterable[int | None]) -> dict[int, str]:
    """The names of users."""
    wanted = {user_id for user_id in user_ids if user_id is not None}
    query = sa.select(tables.users.c.id, tables.users.c.username).where(tables.users.c.id.in_(wanted))
    return dict(map(tuple, tx.execute(query)))


def validations_at(tx: Tx, places: Collection[tuple[int, int]]) -> dict[tuple[int, int], dict[str, Any]]:
    """The validation metrics of trials after exactly so many steps, by trial and steps."""
    metrics = tables.metrics
    found: dict[tuple[int, int], dict[str, Any]] = {}
    steps_of: dict[int, list[int]] = {}
    for trial_id, steps in places:
        steps_of.setdefault(trial_id, []).append(steps)
    for trial_id, all_steps in steps_of.items():
        for at in range(0, len(all_steps), 500):
            query = sa.select(metrics.c.steps_completed, metrics.c.metrics).where(
                metrics.c.trial_id == trial_id,
                metrics.c.group == "validation",
                metrics.c.steps_completed.in_(all_steps[at : at + 500]),
            )
            found.update(((trial_id, steps), tables.decode(document)) for steps, document in tx.execute(query))
    return found


def _experiment_conditions(which: ExperimentFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    columns = _experiments.c
    labels = sa.type_coerce(columns.labels, sa.Text)
    if which.ids:
        conditions.append(columns.id.in_([*which.ids]))
    if which.states:
        conditions.append(_experiment_in_states(which.states))
    for label in which.labels:
        # Labels are stored as JSON text: a whole label is one with its quotes around it.
        conditions.append(labels.contains(tables.encode(label), autoescape=True))
    if which.users:
        conditions.append(columns.user_id.in_(_ids_of_users(which.users)))
    if which.name:
        conditions.append(columns.name.icontains(which.name, autoescape=True))
    if which.search:
        texts: list[sa.ColumnElement[Any]] = [columns.name, columns.description, labels]
        anywhere = [text.icontains(which.search, autoescape=True) for text in texts]
        if which.search.isascii() and which.search.isdigit() and len(which.search) < 19:
            anywhere.append(columns.id == int(which.search))
        conditions.append(sa.or_(*anywhere))
    if which.project_id is not None:
        conditions.append(columns.project_id == which.project_id)
    if which.workspace_id is not None:
        within = sa.select(tables.projects.c.id).where(tables.projects.c.workspace_id == which.workspace_id)
        conditions.append(columns.project_id.in_(within))
    if which.archived is not None:
        conditions.append(columns.archived == which.archived)
    return conditions


def _ids_of_users(names: Collection[str]) -> sa.Select[Any]:
    return sa.select(tables.users.c.id).where(tables.users.c.username.in_([*names]))


def _experiment_in_states(wanted: Collection[str]) -> sa.ColumnElement[bool]:
    names = {name.upper() for name in wanted}
    fixed = [state.value for state in ExperimentState if state is not ExperimentState.ACTIVE]
    known = {"ACTIVE", "RUNNING", "STARTING", "QUEUED", "PULLING", "DELETED"}

    def name_of(state: str, wanted: Wanted) -> str:
        return public_experiment_state(ExperimentState(state), wanted)

    conditions = [_in_states(_experiments, fixed, names, name_of, known)]
    active = _experiments.c.state == ExperimentState.ACTIVE.value
    runs = _has_trial(TrialState.RUNNING, TrialState.STOPPING)
    starts = _has_trial(TrialState.STARTING)
    # ACTIVE stands for all that is on its way, however far.
    if "ACTIVE" in names:
        conditions.append(active)
    if "RUNNING" in names:
        conditions.append(active & runs)
    if "STARTING" in names:
        conditions.append(active & ~runs & starts)
    if "QUEUED" in names:
        conditions.append(active & ~runs & ~starts)
    return sa.or_(*conditions)


def _has_trial(*states: TrialState) -> sa.ColumnElement[bool]:
    return sa.exists(
        sa.select(sa.literal(1)).where(
            _trials.c.experiment_id == _experiments.c.id, _trials.c.state.in_([state.value for state in states])
        )
    )


def _in_states(
    table: sa.Table,
    states: Sequence[str],
    wanted: Collection[str],
    name_of: Callable[[str, Wanted], str],
    known: Collection[str] = (),
) -> sa.ColumnElement[bool]:
    """Rows whose public state, which follows from what is and what is wanted, is one of ``wanted``."""
    names = {name.upper() for name in wanted}
    possible = {(state, want): name_of(state, want) for state in states for want in Wanted}
    unknown = names - set(possible.values()) - set(known) - {"ACTIVE", "PULLING", "DELETED", "STOPPING_ERROR"}
    if unknown:
        raise errors.BadRequest(
            f"{min(unknown)!r} is no state; use one of {', '.join(sorted({*possible.values(), *known}))}"
        )
    conditions: list[sa.ColumnElement[bool]] = [sa.false()]
    for state in states:
        matching = [want.value for want in Wanted if possible[state, want] in names]
        if matching:
            conditions.append((table.c.state == state) & table.c.wanted.in_(matching))
    return sa.or_(*conditions)


def _listed(
    tx: Tx,
    query: sa.Select[Any],
    conditions: Sequence[sa.ColumnElement[bool]],
    columns: Columns,
    where: Where,
    last: sa.Column[Any],
) -> Listed:
    """The part of a list that is wanted: first only which rows, then these rows with all that ``query`` shows."""
    if where.sort_by not in columns:
        raise errors.BadRequest(f"cannot sort by {where.sort_by!r}; use one of {', '.join(columns)}")
    total = tx.execute(sa.select(sa.func.count()).select_from(last.table).where(*conditions)).scalar_one()
    column = columns[where.sort_by]
    chosen = sa.select(last, column.label("sorted_by")).where(*conditions)
    if where.after is not None:
        chosen = chosen.where(_behind(column, last, where, *_decode(where)))
    turn = sa.desc if where.descending else sa.asc
    if column is not last:
        chosen = chosen.order_by(turn(column).nulls_last())  # those without a value at the end, in both directions
    offset = where.offset if where.after is None else 0
    places = [(id, value) for id, value in tx.execute(chosen.order_by(turn(last)).offset(offset).limit(where.limit))]
    rows: dict[Any, Row] = {}
    for at in range(0, len(places), 500):
        some = [id for id, _ in places[at : at + 500]]
        rows.update((row[last.name], row) for row in tx.execute(query.where(last.in_(some))).mappings())
    follows = places and len(places) == where.limit
    return Listed([rows[id] for id, _ in places], int(total), _encode(where, *places[-1]) if follows else None)


def _behind(
    column: sa.ColumnElement[Any], last: sa.ColumnElement[Any], where: Where, value: Any, id: Any
) -> sa.ColumnElement[bool]:
    def beyond(one: sa.ColumnElement[Any], other: Any) -> sa.ColumnElement[bool]:
        smaller: sa.ColumnElement[bool] = one < other
        greater: sa.ColumnElement[bool] = one > other
        return smaller if where.descending else greater

    if column is last:
        return beyond(last, id)
    if value is None:
        return column.is_(None) & beyond(last, id)
    return sa.or_(beyond(column, value), (column == value) & beyond(last, id), column.is_(None))


def _encode(where: Where, id: Any, value: Any) -> str:
    place = [where.sort_by, where.descending, value, id]
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def _decode(where: Where) -> tuple[Any, Any]:
    text = where.after or ""
    try:
        place = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True))
        sort_by, descending, value, id = place
        json.dumps(place, ensure_ascii=False).encode()  # half characters cannot be compared with
    except (ValueError, TypeError, RecursionError, binascii.Error):
        raise errors.BadRequest("`after` is not the `next` of another page") from None
    plain = (str, int, float, bool)
    if not isinstance(id, (str, int)) or not (value is None or isinstance(value, plain)) or _is_huge(value, id):
        raise errors.BadRequest("`after` is not the `next` of another page")
    if (sort_by, descending) != (where.sort_by, where.descending):
        raise errors.BadRequest("`after` is of a list in another order; begin anew, or sort as before")
    return value, id


def _is_huge(*numbers: Any) -> bool:
    return any(isinstance(number, int) and not -(2**63) <= number < 2**63 for number in numbers)


def _by_metric(tx: Tx, query: sa.Select[Any], where: Where) -> Listed:
    name = where.sort_by.removeprefix("metric:")
    rows = [*tx.execute(query).mappings()]
    validations = validations_at(tx, {(row["trial_id"], row["steps_completed"]) for row in rows if row["trial_id"]})
    with_value: list[tuple[float, str, Row]] = []
    without: list[tuple[str, Row]] = []
    for row in rows:
        value = validations.get((row["trial_id"], row["steps_completed"]), {}).get(name)
        # What is no number is never better than one that is.
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
            with_value.append((float(value), row["uuid"], row))
        else:
            without.append((row["uuid"], row))
    with_value.sort(key=lambda found: found[:2], reverse=where.descending)
    ordered = [found[-1] for found in with_value] + [found[-1] for found in sorted(without, key=lambda one: one[0])]
    return Listed(ordered[where.offset : where.offset + where.limit], len(ordered), None)


def trial_ids(tx: Tx, experiment_id: int, after: int, limit: int) -> list[int]:
    """The ids of an experiment's trials that are greater than ``after``."""
    query = sa.select(_trials.c.id).where(_trials.c.experiment_id == experiment_id, _trials.c.id > after)
    return [*tx.execute(query.order_by(_trials.c.id).limit(limit)).scalars()]


def metric_groups(tx: Tx, trial_id: int) -> list[str]:
    """The groups that a trial has reported itself, without what was measured about its machine."""
    return sorted(group for group in series.groups(tx, trial_id) if group != USAGE)


def raw_metrics(tx: Tx, trial_id: int, group: str, after: int, limit: int) -> Sequence[tuple[int, int, float, str]]:
    """Steps, run epoch, time and the metrics as stored, of reports of more than ``after`` steps."""
    metrics = tables.metrics
    columns = (metrics.c.steps_completed, metrics.c.run_epoch, metrics.c.time, metrics.c.metrics)
    chosen = (metrics.c.trial_id == trial_id, metrics.c.group == group, metrics.c.steps_completed > after)
    found = tx.execute(sa.select(*columns).where(*chosen).order_by(metrics.c.steps_completed).limit(limit))
    return [(steps, epoch, time, document) for steps, epoch, time, document in found]


def live_placements(tx: Tx) -> list[tuple[str, str, dict[str, list[int]]]]:
    """Every attempt that holds slots: its id, its pool, and the slots on each machine."""
    table = tables.allocations
    query = sa.select(table.c.id, table.c.pool, table.c.placement).where(table.c.state != "ended")
    return [(allocation_id, pool, placement) for allocation_id, pool, placement in tx.execute(query)]


def job_ids(tx: Tx, request_ids: Collection[str]) -> dict[str, str]:
    """The jobs of the queue that requests belong to: a trial's is its experiment, a task's is itself."""
    trial_of = {int(id.removeprefix("trial-")): id for id in request_ids if id.startswith("trial-")}
    found = {id: id for id in request_ids if not id.startswith("trial-")}
    ids = [*trial_of]
    for at in range(0, len(ids), 500):
        query = sa.select(_trials.c.id, _trials.c.experiment_id).where(_trials.c.id.in_(ids[at : at + 500]))
        found.update(
            (trial_of[trial_id], f"experiment-{experiment_id}") for trial_id, experiment_id in tx.execute(query)
        )
    return found
