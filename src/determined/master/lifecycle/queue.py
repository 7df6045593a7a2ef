"""The queue: what scheduling is told, what people are shown, and how they change the order."""

from __future__ import annotations

import dataclasses
from typing import Any

from determined import errors
from determined.master.lifecycle import experiments as experiment_changes
from determined.master.lifecycle.consequences import task_id_of
from determined.master.operations import Operation, refusal, refusal_of_task
from determined.master.records import Experiment, Task
from determined.master.scheduling import Placement, Request
from determined.master.states import (
    ExperimentState,
    TaskState,
    TrialState,
    Wanted,
    public_experiment_state,
    public_task_state,
)
from determined.master.store import experiments, queue, tasks
from determined.master.store.database import Tx

DEFAULT_PRIORITY = 42

# Trials of one experiment stand in line in their order, so close together that no other job comes between them.
_STEP = 1e-6
# Two jobs are at least so far apart after one was put before or behind another.
_GAP = 1.0
_TOO_NARROW = 0.05


@dataclasses.dataclass(frozen=True)
class Entry:
    """A job of the queue as people see it; ``state`` is a public name. Position and reason are the engine's to add."""

    job_id: str
    name: str
    kind: str
    state: str
    user_id: int | None
    pool: str
    priority: int
    weight: float
    slots_wanted: int
    slots_held: int
    waiting: int
    running: int
    queued_at: float
    retry_at: float | None = None  # when the first of it is tried again, if all that waits of it waits for that


def job_id_of(experiment_id: int) -> str:
    """What the queue calls an experiment."""
    return f"experiment-{experiment_id}"


def requests(tx: Tx, pool: str | None = None, default_pool: str = "") -> list[Request]:
    """What scheduling needs to know of all that wants slots or holds them, in ``pool`` or everywhere.

    Who names no pool is in ``default_pool``; who holds slots is where they are. A gang that was lost again and again
    is left out until it may be tried once more, and so is a copy whose checkpoint has not been reported yet.
    """
    holding = queue.holding(tx)
    found = _trial_requests(tx, holding) + _task_requests(tx, holding)
    if pool is None:
        return [request for _, request in found]
    return [request for its_pool, request in found if (its_pool or default_pool) == pool]


def _trial_requests(tx: Tx, holding: dict[str, Any]) -> list[tuple[str, Request]]:
    jobs = {job[0]: job for job in queue.jobs(tx)}
    stopping = TrialState.STOPPING.value
    queued = TrialState.QUEUED.value
    found = []
    for trial_id, number, state, retry_at, experiment_id, excluded in queue.trials(tx):
        job = jobs.get(experiment_id)
        if job is None or (state == queued and retry_at is not None and retry_at > tx.now):
            continue
        _, pool, slots, priority, weight, max_slots, queued_at, single_node = job
        request_id = task_id_of(trial_id)
        placement = None
        if state != queued:
            held = holding.get(request_id)
            if held is None:
                continue
            _, pool, parts, slots = held
            placement = _placement(parts)
        request = Request(
            id=request_id,
            job=job_id_of(experiment_id),
            slots=slots,
            priority=DEFAULT_PRIORITY if priority is None else priority,
            weight=weight,
            queued_at=queued_at + number * _STEP,
            max_slots=max_slots,
            single_node=bool(single_node),
            excluded=frozenset(excluded or ()),
            running=placement,
            stopping=state == stopping,
        )
        found.append((pool, request))
    return found


def _task_requests(tx: Tx, holding: dict[str, Any]) -> list[tuple[str, Request]]:
    found = []
    for task_id, pool, slots, priority, weight, queued_at, state, retry_at, kind in queue.tasks(tx):
        is_queued = state == TaskState.QUEUED.value
        if is_queued and retry_at is not None and retry_at > tx.now:
            continue
        placement = None
        if not is_queued:
            held = holding.get(task_id)
            if held is None:
                continue
            _, pool, parts, slots = held
            placement = _placement(parts)
        request = Request(
            id=task_id,
            job=task_id,
            slots=slots,
            priority=DEFAULT_PRIORITY if priority is None else priority,
            weight=weight,
            queued_at=queued_at,
            # Only a job can go on after it made room: it keeps what it did. The others keep it in memory.
            preemptible=kind == "job",
            running=placement,
            stopping=state == TaskState.STOPPING.value,
        )
        found.append((pool, request))
    return found


def _placement(parts: dict[str, list[int]]) -> Placement:
    return Placement({node: tuple(slots) for node, slots in parts.items()})


def entries(tx: Tx) -> list[Entry]:
    """The jobs of the queue, in order of priority and place in line."""
    holding = queue.holding(tx)
    rows = {row[0]: row for row in queue.experiments_in_line(tx)}
    states: dict[int, dict[TrialState, int]] = {experiment_id: {} for experiment_id in rows}
    for experiment_id, state, count in queue.trial_states(tx, rows):
        states[experiment_id][TrialState(state)] = count
    held: dict[int, int] = dict.fromkeys(rows, 0)
    retries: dict[int, list[float]] = {}
    for trial_id, _, state, retry_at, experiment_id, _ in queue.trials(tx):
        if state == TrialState.QUEUED.value and retry_at is not None and retry_at > tx.now:
            retries.setdefault(experiment_id, []).append(retry_at)
        if experiment_id in held and (row := holding.get(task_id_of(trial_id))) is not None:
            held[experiment_id] += row[3]
    found = []
    for experiment_id, name, user_id, state, wanted, pool, priority, weight, slots, queued_at in rows.values():
        its_states = states[experiment_id]
        waiting = its_states.get(TrialState.QUEUED, 0)
        pauses = retries.get(experiment_id, [])
        found.append(
            Entry(
                job_id=job_id_of(experiment_id),
                name=name,
                kind="experiment",
                state=public_experiment_state(ExperimentState(state), Wanted(wanted), its_states),
                user_id=user_id,
                pool=pool,
                priority=DEFAULT_PRIORITY if priority is None else priority,
                weight=weight,
                slots_wanted=slots * waiting + held[experiment_id],
                slots_held=held[experiment_id],
                waiting=waiting,
                running=sum(count for state, count in its_states.items() if state.has_allocation),
                queued_at=queued_at,
                retry_at=min(pauses) if len(pauses) == waiting and pauses else None,
            )
        )
    pauses_of_tasks = {row[0]: row[7] for row in queue.tasks(tx) if row[7] is not None and row[7] > tx.now}
    for task_id, name, kind, user_id, state, wanted, pool, priority, weight, slots, queued_at in queue.tasks_in_line(
        tx
    ):
        its_state = TaskState(state)
        found.append(
            Entry(
                job_id=task_id,
                name=name,
                kind=kind,
                state=public_task_state(its_state, Wanted(wanted)),
                user_id=user_id,
                pool=pool,
                priority=DEFAULT_PRIORITY if priority is None else priority,
                weight=weight,
                slots_wanted=slots,
                slots_held=slots if task_id in holding else 0,
                waiting=int(its_state is TaskState.QUEUED),
                running=int(its_state.has_allocation),
                queued_at=queued_at,
                retry_at=pauses_of_tasks.get(task_id),
            )
        )
    return sorted(found, key=lambda entry: (entry.priority, entry.queued_at, entry.job_id))


def edit_job(
    tx: Tx,
    job_id: str,
    *,
    priority: int | None = None,
    weight: float | None = None,
    resource_pool: str | None = None,
    ahead_of: str | None = None,
    behind: str | None = None,
) -> None:
    """Change what decides when a job's turn comes. Raises Refused, NotFound or BadRequest.

    Put ``ahead_of`` or ``behind`` another job it gets that one's priority, too.
    """
    if ahead_of is not None and behind is not None:
        raise errors.BadRequest("ahead_of and behind exclude each other; give one")
    _require_adjustable(tx, job_id)
    values: dict[str, Any] = {
        name: value
        for name, value in (("priority", priority), ("weight", weight), ("resource_pool", resource_pool))
        if value is not None
    }
    anchor = ahead_of or behind
    if anchor is not None:
        if anchor == job_id:
            raise errors.BadRequest(f"{job_id} cannot stand before or behind itself")
        values.update(_place(tx, job_id, anchor, is_ahead=ahead_of is not None))
    _set(tx, job_id, values)


def _place(tx: Tx, job_id: str, anchor_id: str, is_ahead: bool) -> dict[str, Any]:
    """The priority and the place in line right before, or right behind, another job."""
    line = [entry for entry in entries(tx) if entry.job_id != job_id]
    at = next((index for index, entry in enumerate(line) if entry.job_id == anchor_id), None)
    if at is None:
        raise errors.NotFound(f"there is no job {anchor_id} in the queue")
    anchor = line[at]
    others = [entry for entry in line if entry.priority == anchor.priority]
    at = others.index(anchor)
    before = others[at - 1].queued_at if at > 0 else None
    after = others[at + 1].queued_at if at + 1 < len(others) else None
    low, high = (before, anchor.queued_at) if is_ahead else (anchor.queued_at, after)
    if low is None:
        assert high is not None
        return {"priority": anchor.priority, "queued_at": high - _GAP}
    if high is None:
        return {"priority": anchor.priority, "queued_at": low + _GAP}
    if high - low > _TOO_NARROW:
        return {"priority": anchor.priority, "queued_at": (low + high) / 2}
    # No room between the two: everybody from the later one on takes two steps back.
    first = at if is_ahead else at + 1
    for entry in others[first:]:
        _set(tx, entry.job_id, {"queued_at": entry.queued_at + 2 * _GAP})
    return {"priority": anchor.priority, "queued_at": low + _GAP}


def _set(tx: Tx, job_id: str, values: dict[str, Any]) -> None:
    if not values:
        return
    experiment_id = _experiment_id(job_id)
    if experiment_id is None:
        tasks.update(tx, job_id, **values)
        tx.changed("task", job_id, **values)
        return
    if "queued_at" in values:
        experiments.update(tx, experiment_id, queued_at=values["queued_at"])
    experiment_changes.edit(tx, experiment_id, {name: value for name, value in values.items() if name != "queued_at"})
    tx.changed("experiment", experiment_id, experiment_id, **values)


def require_job(tx: Tx, job_id: str) -> Experiment | Task:
    """What a job of the queue is; raises NotFound."""
    experiment_id = _experiment_id(job_id)
    return tasks.require(tx, job_id) if experiment_id is None else experiments.require(tx, experiment_id)


def _require_adjustable(tx: Tx, job_id: str) -> None:
    job = require_job(tx, job_id)
    if isinstance(job, Experiment):
        refused = refusal(Operation.ADJUST, f"experiment {job.id}", job.state, job.wanted, job.archived)
    else:
        refused = refusal_of_task(Operation.ADJUST, f"task {job.id}", job.state, job.wanted)
    if refused:
        raise errors.Refused(refused)


def _experiment_id(job_id: str) -> int | None:
    kind, _, number = job_id.partition("-")
    return int(number) if kind == "experiment" and number.isdecimal() else None
