"""Tasks in every state, and what may be asked of them."""

from __future__ import annotations

import pytest

from determined import errors
from determined.master.lifecycle import allocations, checkpoints, queue, tasks
from determined.master.operations import Operation
from determined.master.records import Task
from determined.master.states import TaskState
from determined.master.store import allocations as allocation_rows
from determined.master.store import tasks as task_rows
from determined.wire.outcome import Ending, Outcome
from determined.wire.reports import CheckpointReport, StopReason
from tests.unit.master.lifecycle.world import HERE, World


def create(world: World, kind: str = "job", **new: object) -> Task:
    return world.do(tasks.create, tasks.NewTask(kind=kind, name="t", config={}, **new))  # type: ignore[arg-type]


def start(world: World, task: Task) -> str:
    allocation = world.do(allocations.assign, task.id, HERE, "local")
    assert allocation is not None
    return world.do(allocations.record_running, allocation.id).id


def end(world: World, allocation_id: str, outcome: Outcome = Outcome.COMPLETED) -> None:
    world.do(allocations.record_exit, allocation_id, Ending(outcome=outcome, exit_code=3, detail="what it said"))


def get(world: World, task: Task) -> Task:
    return world.look(task_rows.require, task.id)


def test_tasks_are_numbered_by_kind_and_no_number_comes_twice(world: World) -> None:
    assert [create(world).id, create(world, "notebook").id, create(world).id] == ["job-1", "notebook-1", "job-2"]
    world.do(tasks.operate, "job-2", Operation.KILL)
    world.do(tasks.delete, "job-2")
    assert create(world).id == "job-3"


def test_a_task_runs_to_its_end(world: World) -> None:
    task = create(world, slots=1)
    assert task.state is TaskState.QUEUED
    allocation_id = start(world, task)
    assert (get(world, task).state, allocation_id) == (TaskState.RUNNING, "job-1.1")
    world.do(tasks.record_url, task.id, "http://there")
    end(world, allocation_id)
    done = get(world, task)
    assert (done.state, done.exit_code, done.url, done.error) == (TaskState.COMPLETED, 3, None, None)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome.COMPLETED, TaskState.COMPLETED),
        (Outcome.STOPPED, TaskState.QUEUED),
        (Outcome.INVALID_HP, TaskState.ERROR),
        (Outcome.FAILED, TaskState.ERROR),
        (Outcome.OUT_OF_MEMORY, TaskState.ERROR),
        (Outcome.LOST, TaskState.QUEUED),
    ],
)
def test_each_outcome_leads_somewhere_once(world: World, outcome: Outcome, state: TaskState) -> None:
    task = create(world)
    allocation_id = start(world, task)
    end(world, allocation_id, outcome)
    once = get(world, task)
    assert once.state is state
    assert once.error == ("what it said" if state is TaskState.ERROR else None)
    end(world, allocation_id, Outcome.FAILED)
    assert get(world, task) == once
    if state is TaskState.QUEUED:
        assert start(world, task) == "job-1.2"


def in_state(world: World, state: str) -> Task:
    task = create(world, paused=state == "paused")
    if state in ("starting",):
        world.do(allocations.assign, task.id, HERE, "local")
    if state in ("running", "stopping", "completed", "error", "canceled"):
        allocation_id = start(world, task)
        match state:
            case "stopping":
                world.do(tasks.operate, task.id, Operation.PAUSE)
            case "completed":
                end(world, allocation_id)
            case "error":
                end(world, allocation_id, Outcome.FAILED)
            case "canceled":
                world.do(tasks.operate, task.id, Operation.KILL)
                end(world, allocation_id, Outcome.FAILED)
    found = get(world, task)
    assert found.state.value == state
    return found


@pytest.mark.parametrize("state", [state.value for state in TaskState])
@pytest.mark.parametrize("operation", [Operation.ACTIVATE, Operation.PAUSE, Operation.CANCEL, Operation.KILL])
def test_in_every_state_every_operation_is_done_once_or_refused(world: World, state: str, operation: Operation) -> None:
    task = in_state(world, state)
    try:
        once = world.do(tasks.operate, task.id, operation)
    except errors.Refused as refused:
        assert task.state.has_ended and task.id in str(refused)
        assert get(world, task) == task
        return
    world.later()
    assert world.do(tasks.operate, task.id, operation) == once
    if task.state.has_ended:
        assert once == task
    elif task.state.has_allocation:
        live = world.look(allocation_rows.live_of, task.id)
        assert live is not None and once.state.has_allocation
        if operation in (Operation.CANCEL, Operation.KILL):
            assert live.stop_reason is StopReason(once.wanted.value)
    else:
        assert once.state is {
            Operation.ACTIVATE: TaskState.QUEUED,
            Operation.PAUSE: TaskState.PAUSED,
        }.get(operation, TaskState.CANCELED)


def test_what_is_paused_while_it_runs_is_paused_when_it_has_left(world: World) -> None:
    task = in_state(world, "stopping")
    end(world, f"{task.id}.1", Outcome.STOPPED)
    assert get(world, task).state is TaskState.PAUSED
    assert world.do(tasks.operate, task.id, Operation.ACTIVATE).state is TaskState.QUEUED


def test_a_task_that_nobody_uses_completes(world: World) -> None:
    task = in_state(world, "running")
    assert world.do(tasks.stop_idle, task.id).state is TaskState.STOPPING
    end(world, f"{task.id}.1", Outcome.STOPPED)
    assert get(world, task).state is TaskState.COMPLETED
    assert world.do(tasks.stop_idle, task.id).state is TaskState.COMPLETED


def test_only_ended_tasks_without_checkpoints_are_deleted(world: World) -> None:
    task = in_state(world, "running")
    allocation = world.look(allocation_rows.live_of, task.id)
    assert allocation is not None
    world.do(checkpoints.record, allocation, CheckpointReport(uuid="abc", steps_completed=1, time=1.0))
    with pytest.raises(errors.Refused, match="kill it first"):
        world.do(tasks.delete, task.id)
    end(world, allocation.id)
    with pytest.raises(errors.Refused, match="has checkpoints"):
        world.do(tasks.delete, task.id)
    world.do(checkpoints.mark_deleting, "abc")
    world.do(checkpoints.record_deleted, "abc")
    world.do(tasks.delete, task.id)
    with pytest.raises(errors.NotFound):
        get(world, task)
    assert world.look(allocation_rows.of_task, task.id) == []


def test_only_jobs_make_room_for_others(world: World) -> None:
    create(world, "job")
    create(world, "notebook")
    found = {request.id: request.preemptible for request in world.look(queue.requests)}
    assert found == {"job-1": True, "notebook-1": False}
