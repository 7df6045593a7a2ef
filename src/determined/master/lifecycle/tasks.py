"""Tasks: jobs, commands, notebooks and TensorBoards."""

from __future__ import annotations

import dataclasses
from typing import Any

from determined import errors
from determined.master.lifecycle.orders import REASONS, order_stop
from determined.master.operations import Operation, refusal_of_task, wanted_after
from determined.master.records import CheckpointState, Task
from determined.master.states import TaskState, Wanted, settled_task_state
from determined.master.store import allocations, checkpoints, tasks
from determined.master.store.database import Tx


@dataclasses.dataclass(frozen=True)
class NewTask:
    """What is to be created; ``config`` as it is stored, ``kind`` is job, command, notebook or tensorboard."""

    kind: str
    name: str
    config: dict[str, Any]
    user_id: int | None = None
    resource_pool: str = ""
    slots: int = 0
    priority: int | None = None
    weight: float = 1.0
    context_sha256: str | None = None
    python: str | None = None
    paused: bool = False


def create(tx: Tx, new: NewTask) -> Task:
    """A new task, queued; its id says its kind and its number among them."""
    task_id = f"{new.kind}-{tasks.next_number(tx, new.kind)}"
    values = {field.name: getattr(new, field.name) for field in dataclasses.fields(new) if field.name != "paused"}
    state = TaskState.PAUSED if new.paused else TaskState.QUEUED
    tasks.insert(
        tx,
        {
            "id": task_id,
            "state": state,
            "wanted": Wanted.PAUSED if new.paused else Wanted.ACTIVE,
            "queued_at": tx.now,
            "created_at": tx.now,
            **values,
        },
    )
    tx.changed("task", task_id, state=state.value)
    return tasks.require(tx, task_id)


def operate(tx: Tx, task_id: str, operation: Operation) -> Task:
    """Activate, pause, cancel or kill. Raises Refused; what is so already stays so."""
    task = _allowed(tx, task_id, operation)
    return _want(tx, task, wanted_after(operation, task.wanted, task.state.has_ended))


def stop_idle(tx: Tx, task_id: str) -> Task:
    """Nobody has used it for too long: it is to end."""
    task = tasks.require(tx, task_id)
    return task if task.state.has_ended or task.wanted.is_final else _want(tx, task, Wanted.ENOUGH)


def record_url(tx: Tx, task_id: str, url: str | None) -> Task:
    """It answers at this address now."""
    task = tasks.require(tx, task_id)
    if task.url != url and not task.state.has_ended:
        tasks.update(tx, task_id, url=url)
        tx.changed("task", task_id, url=url)
    return tasks.require(tx, task_id)


def delete(tx: Tx, task_id: str) -> Task:
    """Remove an ended task from the database; its folders are the caller's to remove, after the commit."""
    task = _allowed(tx, task_id, Operation.DELETE)
    there = [state for state in CheckpointState if state is not CheckpointState.DELETED]
    if checkpoints.all_of(tx, task_id=task_id, states=there):
        raise errors.Refused(f"{_name(task)} has checkpoints; delete these first")
    allocations.delete_of(tx, task_id)
    tasks.delete(tx, task_id)
    tx.changed("task", task_id, state="deleted")
    return task


def _want(tx: Tx, task: Task, wanted: Wanted) -> Task:
    if wanted is task.wanted:
        return task
    state = settled_task_state(task.state, wanted)
    values: dict[str, Any] = {"wanted": wanted, "state": state}
    if state.has_ended:
        values["ended_at"] = tx.now
    tasks.update(tx, task.id, **values)
    tx.changed("task", task.id, state=state.value, wanted=wanted.value)
    if state is TaskState.STOPPING and wanted in REASONS:
        allocation = allocations.live_of(tx, task.id)
        if allocation is not None:
            order_stop(tx, allocation, REASONS[wanted])
    return tasks.require(tx, task.id)


def _allowed(tx: Tx, task_id: str, operation: Operation) -> Task:
    task = tasks.require(tx, task_id)
    refused = refusal_of_task(operation, _name(task), task.state, task.wanted)
    if refused:
        raise errors.Refused(refused)
    return task


def _name(task: Task) -> str:
    return f"task {task.id}"
