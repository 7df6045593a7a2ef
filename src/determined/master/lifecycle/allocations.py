"""Allocations: attempts to run a trial or a task, from the decision to start it to its end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from determined.master.lifecycle import retrying
from determined.master.lifecycle import trials as trial_changes
from determined.master.lifecycle.consequences import Turn, task_id_of
from determined.master.lifecycle.orders import order_stop
from determined.master.records import Allocation, AllocationState, Experiment, Task, Trial
from determined.master.scheduling import Placement
from determined.master.states import (
    TaskState,
    TrialState,
    counts_as_restart,
    next_task_state,
    next_trial_state,
    promoted_trial_state,
    wanted_of_trial,
)
from determined.master.store import allocations, checkpoints, experiments, metrics, tasks, trials
from determined.master.store.database import Tx
from determined.wire.outcome import Ending, Outcome
from determined.wire.reports import StopReason

# After so many losses one after another the next attempt waits, each time twice as long.
_PATIENT_LOSSES = 2
_LONGEST_WAIT = 60.0
# As much of what the user's code printed as people are shown.
_DETAIL = 8192


def assign(tx: Tx, request_id: str, placement: Placement, pool: str) -> Allocation | None:
    """Take these slots for the next attempt of a queued trial or task; None if it is no longer queued.

    The attempt has the next run epoch. A trial goes on from its latest checkpoint, and what it reported after that is
    forgotten; one without begins with the weights of its source checkpoint, if it has one.
    """
    if request_id.startswith("trial-"):
        return _assign_trial(tx, trials.require(tx, int(request_id.removeprefix("trial-"))), placement, pool)
    task = tasks.require(tx, request_id)
    if task.state is not TaskState.QUEUED:
        return None
    epoch = task.run_epoch + 1
    tasks.update(tx, task.id, state=TaskState.STARTING, run_epoch=epoch, started_at=task.started_at or tx.now)
    tx.changed("task", task.id, state=TaskState.STARTING.value)
    return _insert(tx, task.id, epoch, pool, task.slots, placement)


def begin_by_hand(tx: Tx, trial: Trial) -> Allocation:
    """An attempt of a trial that no master started; it runs already. An earlier attempt is over."""
    before = allocations.live_of(tx, task_id_of(trial.id))
    if before is not None:
        _end(tx, before, Ending(outcome=Outcome.LOST, exit_code=0, reason="it was started again"))
    epoch = trial.run_epoch + 1
    latest = _rewind(tx, trial)
    trials.update(
        tx,
        trial.id,
        state=TrialState.RUNNING,
        run_epoch=epoch,
        started_at=trial.started_at or tx.now,
        ended_at=None,
        error=None,
    )
    tx.changed("trial", trial.id, trial.experiment_id, state=TrialState.RUNNING.value)
    allocation = _insert(
        tx,
        task_id_of(trial.id),
        epoch,
        "",
        0,
        Placement({}),
        trial_id=trial.id,
        experiment_id=trial.experiment_id,
        from_checkpoint=latest,
    )
    allocations.update(tx, allocation.id, state=AllocationState.RUNNING, started_at=tx.now, heard_at=tx.now)
    return allocations.require(tx, allocation.id)


def record_running(tx: Tx, allocation_id: str) -> Allocation:
    """The pool has been seen to run it."""
    allocation = allocations.require(tx, allocation_id)
    if allocation.state is AllocationState.ENDED or allocation.started_at is not None:
        return allocation
    values: dict[str, Any] = {"started_at": tx.now}
    if allocation.state is AllocationState.ASSIGNED:
        values["state"] = AllocationState.RUNNING
    allocations.update(tx, allocation_id, **values)
    tx.changed("allocation", allocation_id, allocation.experiment_id, state=values.get("state", allocation.state).value)
    if allocation.trial_id is not None:
        trial = trials.require(tx, allocation.trial_id)
        if trial.state is TrialState.STARTING:
            trials.update(tx, trial.id, state=TrialState.RUNNING)
            tx.changed("trial", trial.id, trial.experiment_id, state=TrialState.RUNNING.value)
    else:
        task = tasks.require(tx, allocation.task_id)
        if task.state is TaskState.STARTING:
            tasks.update(tx, task.id, state=TaskState.RUNNING)
            tx.changed("task", task.id, state=TaskState.RUNNING.value)
    return allocations.require(tx, allocation_id)


def ask_stop(tx: Tx, allocation_id: str, reason: StopReason) -> Allocation:
    """It is to save and leave. A reason that is no stronger than the one it was given before changes nothing.

    The row remembers the reason and since when; telling the pool, after the commit, is the engine's.
    """
    allocation = allocations.require(tx, allocation_id)
    if allocation.state is AllocationState.ENDED:
        return allocation
    if allocation.trial_id is not None:
        trial = trials.require(tx, allocation.trial_id)
        if trial.state in (TrialState.STARTING, TrialState.RUNNING):
            trials.update(tx, trial.id, state=TrialState.STOPPING)
            tx.changed("trial", trial.id, trial.experiment_id, state=TrialState.STOPPING.value)
    else:
        task = tasks.require(tx, allocation.task_id)
        if task.state in (TaskState.STARTING, TaskState.RUNNING):
            tasks.update(tx, task.id, state=TaskState.STOPPING)
            tx.changed("task", task.id, state=TaskState.STOPPING.value)
    return order_stop(tx, allocation, reason)


def record_exit(tx: Tx, allocation_id: str, ending: Ending, machines: Collection[str] = ()) -> Allocation:
    """It has been seen to end: its trial or task goes where its outcome leads, and all that follows from that.

    Everything that it reported must have been taken before. The same exit again changes nothing. ``machines`` are
    those of its pool, as far as they are known.
    """
    allocation = allocations.require(tx, allocation_id)
    if allocation.state is AllocationState.ENDED:
        return allocation
    if allocation.early_exit == "invalid_hp" and ending.outcome not in (Outcome.LOST, Outcome.STOPPED):
        ending = ending.model_copy(update={"outcome": Outcome.INVALID_HP})
    _end(tx, allocation, ending)
    if allocation.trial_id is not None:
        trial = trials.require(tx, allocation.trial_id)
        if trial.run_epoch == allocation.run_epoch and trial.state.has_allocation:
            _trial_exited(tx, trial, allocation, ending, machines)
    else:
        task = tasks.require(tx, allocation.task_id)
        if task.run_epoch == allocation.run_epoch and task.state.has_allocation:
            _task_exited(tx, task, ending)
    return allocations.require(tx, allocation_id)


def record_lost(tx: Tx, allocation_id: str, reason: str = "its processes are gone without a trace") -> Allocation:
    """It has gone through no fault of its own, and left no note."""
    return record_exit(tx, allocation_id, Ending(outcome=Outcome.LOST, exit_code=0, reason=reason))


def _assign_trial(tx: Tx, trial: Trial, placement: Placement, pool: str) -> Allocation | None:
    if trial.state is not TrialState.QUEUED or trial.copy_from_steps is not None:
        return None
    experiment = experiments.require(tx, trial.experiment_id)
    epoch = trial.run_epoch + 1
    latest = _rewind(tx, trial)
    trials.update(
        tx, trial.id, state=TrialState.STARTING, run_epoch=epoch, retry_at=None, started_at=trial.started_at or tx.now
    )
    tx.changed("trial", trial.id, experiment.id, state=TrialState.STARTING.value)
    if experiment.started_at is None:
        experiments.update(tx, experiment.id, started_at=tx.now)
        tx.changed("experiment", experiment.id, experiment.id, started_at=tx.now)
    return _insert(
        tx,
        task_id_of(trial.id),
        epoch,
        pool,
        experiment.slots_per_trial,
        placement,
        trial_id=trial.id,
        experiment_id=experiment.id,
        target=trial.target,
        from_checkpoint=latest or trial.source_checkpoint,
    )


def _rewind(tx: Tx, trial: Trial) -> str | None:
    """Back to the trial's latest complete checkpoint, if it has one: nothing that came after it has happened."""
    checkpoint = checkpoints.latest_of_trial(tx, trial.id)
    steps = checkpoint.steps_completed if checkpoint else 0
    summary = metrics.rewind(tx, trial.id, steps)
    trial_changes.rewind_best(tx, trial, steps)
    uuid = checkpoint.uuid if checkpoint else None
    trials.update(tx, trial.id, latest_checkpoint=uuid, steps_completed=steps, summary_metrics=summary)
    if trial.held_steps is not None:
        if trial.held_steps <= steps:
            trial_changes.feed_held(tx, trial.id)
        else:
            trials.update(tx, trial.id, held_steps=None)
    return uuid


def _insert(tx: Tx, task_id: str, epoch: int, pool: str, slots: int, placement: Placement, **values: Any) -> Allocation:
    allocation_id = f"{task_id}.{epoch}"
    allocations.insert(
        tx,
        {
            "id": allocation_id,
            "task_id": task_id,
            "run_epoch": epoch,
            "state": AllocationState.ASSIGNED,
            "pool": pool,
            "slots": slots,
            "placement": {node: [*its_slots] for node, its_slots in placement.items()},
            "created_at": tx.now,
            **values,
        },
    )
    tx.changed("allocation", allocation_id, values.get("experiment_id"), state=AllocationState.ASSIGNED.value)
    return allocations.require(tx, allocation_id)


def _end(tx: Tx, allocation: Allocation, ending: Ending) -> None:
    allocations.update(
        tx,
        allocation.id,
        state=AllocationState.ENDED,
        outcome=ending.outcome,
        exit_code=ending.exit_code,
        reason=ending.reason,
        ended_at=tx.now,
    )
    allocations.revoke_tokens(tx, allocation.id)
    tx.changed("allocation", allocation.id, allocation.experiment_id, state=AllocationState.ENDED.value)


def _trial_exited(tx: Tx, trial: Trial, allocation: Allocation, ending: Ending, machines: Collection[str]) -> None:
    experiment = experiments.require(tx, trial.experiment_id)
    verdict = retrying.judge(experiment, trial, allocation, ending, machines)
    state = _trial_state(experiment, trial, allocation, ending.outcome, bool(verdict.final))
    if trial.held_steps is not None and (state.has_ended or state is TrialState.WAITING):
        # There is no going back behind it any more. The search may extend the trial, or have enough of it.
        trial_changes.feed_held(tx, trial.id)
        trial = trials.require(tx, trial.id)
        experiment = experiments.require(tx, trial.experiment_id)
        state = _trial_state(experiment, trial, allocation, ending.outcome, bool(verdict.final))
    values: dict[str, Any] = _after_loss(tx, trial.losses, ending.outcome)
    values["crashes"] = verdict.crashes
    if ending.policies:
        values.update(log_labels=verdict.labels, excluded_nodes=verdict.excluded_nodes)
    if ending.outcome in (Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.INVALID_HP):
        values["error"] = _explain(ending, trial.error)
    elif state is TrialState.COMPLETED:
        values["error"] = None
    elif state is TrialState.ERROR:
        values["error"] = _explain(ending, None)
    if state is TrialState.ERROR and verdict.final:
        values["error"] = f"It is not started again: {verdict.final}.\n\n{values['error']}"
    if counts_as_restart(ending.outcome) and not state.has_ended:
        values["restarts"] = trial.restarts + 1
    if state is TrialState.COMPLETED:
        values["progress"] = 1.0
    turn = Turn(tx, experiment)
    if state.has_ended:
        invalid = ending.outcome is Outcome.INVALID_HP
        turn.ended(trial, state, trial_changes.exit_of(state, invalid), **{**values, "retry_at": None})
    else:
        turn.moved(trial, state, **values)
        turn.resolve_copies(trial.number)
    turn.settle()


def _trial_state(
    experiment: Experiment, trial: Trial, allocation: Allocation, outcome: Outcome, is_final: bool
) -> TrialState:
    wanted = wanted_of_trial(experiment.wanted, trial.wanted)
    if experiment.unmanaged:
        return _unmanaged_state(outcome)
    reached_target = allocation.target is not None
    restarts_left = 0 if is_final else experiment.max_restarts - trial.restarts
    if is_final and outcome is Outcome.LOST:
        outcome = Outcome.FAILED
    state = next_trial_state(outcome, wanted, restarts_left, reached_target)
    was_extended = trial.target is None or (allocation.target is not None and trial.target > allocation.target)
    if state is TrialState.WAITING and was_extended:
        return promoted_trial_state(wanted)
    return state


def _unmanaged_state(outcome: Outcome) -> TrialState:
    """Nobody but the one who started it can start it again."""
    match outcome:
        case Outcome.COMPLETED:
            return TrialState.COMPLETED
        case Outcome.STOPPED:
            return TrialState.CANCELED
        case _:
            return TrialState.ERROR


def _task_exited(tx: Tx, task: Task, ending: Ending) -> None:
    state = next_task_state(ending.outcome, task.wanted)
    values: dict[str, Any] = _after_loss(tx, task.losses, ending.outcome)
    if state.has_ended:
        values.update(ended_at=tx.now, exit_code=ending.exit_code, url=None, retry_at=None)
    if state is TaskState.ERROR:
        values["error"] = _explain(ending, None)
    tasks.update(tx, task.id, state=state, **values)
    tx.changed("task", task.id, state=state.value)


def _after_loss(tx: Tx, losses: int, outcome: Outcome) -> dict[str, Any]:
    """Where gangs are lost again and again, the next attempt waits: nothing is gained by trying without a pause."""
    if outcome is not Outcome.LOST:
        return {"losses": 0, "retry_at": None}
    patience = losses - _PATIENT_LOSSES
    wait = min(2.0**patience, _LONGEST_WAIT) if patience >= 0 else None
    return {"losses": losses + 1, "retry_at": None if wait is None else tx.now + wait}


def _explain(ending: Ending, said_before: str | None) -> str:
    """What people should read about it: what the user's own code said, else what the node process saw."""
    text = ending.detail.strip() or (said_before if ending.outcome is Outcome.INVALID_HP else None) or ending.reason
    return (text or f"it ended with exit code {ending.exit_code}")[-_DETAIL:]
