"""States of experiments, trials and tasks, and the moves between them. Pure.

What is wanted and what is true are two things: people and the search change what is ``Wanted``; a state changes only
when something has been seen to happen. What people may ask for and when is in ``operations``.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

from determined.wire.outcome import Outcome


class Wanted(str, enum.Enum):
    """What an experiment, a trial or a task is meant to do. ENOUGH is the search's word: no more is needed of it."""

    ACTIVE = "active"
    PAUSED = "paused"
    CANCELED = "canceled"
    KILLED = "killed"
    ENOUGH = "enough"

    @property
    def is_final(self) -> bool:
        """Whether it leads to an end, so that there is no way back to running or pausing."""
        return self in (Wanted.CANCELED, Wanted.KILLED, Wanted.ENOUGH)


class TrialState(str, enum.Enum):
    """Where a trial is. WAITING: it reached the target it was given, and the search has not said how to go on."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    PAUSED = "paused"
    WAITING = "waiting"
    COMPLETED = "completed"
    CANCELED = "canceled"
    ERROR = "error"

    @property
    def has_ended(self) -> bool:
        return self in (TrialState.COMPLETED, TrialState.CANCELED, TrialState.ERROR)

    @property
    def has_allocation(self) -> bool:
        """Whether processes of it may exist."""
        return self in (TrialState.STARTING, TrialState.RUNNING, TrialState.STOPPING)


class TaskState(str, enum.Enum):
    """Where a job, command, notebook or TensorBoard is."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    PAUSED = "paused"
    COMPLETED = "completed"
    CANCELED = "canceled"
    ERROR = "error"

    @property
    def has_ended(self) -> bool:
        return self in (TaskState.COMPLETED, TaskState.CANCELED, TaskState.ERROR)

    @property
    def has_allocation(self) -> bool:
        """Whether processes of it may exist."""
        return self in (TaskState.STARTING, TaskState.RUNNING, TaskState.STOPPING)


class ExperimentState(str, enum.Enum):
    """Where an experiment is. STOPPING: it is to pause or to end, and something of it still runs."""

    ACTIVE = "active"
    STOPPING = "stopping"
    PAUSED = "paused"
    COMPLETED = "completed"
    CANCELED = "canceled"
    ERROR = "error"
    DELETING = "deleting"
    DELETE_FAILED = "delete_failed"

    @property
    def has_ended(self) -> bool:
        return self not in (ExperimentState.ACTIVE, ExperimentState.STOPPING, ExperimentState.PAUSED)


# The strongest first: what is wanted of a trial is the strongest of what is wanted of it and of its experiment.
_STRENGTH = (Wanted.KILLED, Wanted.CANCELED, Wanted.ENOUGH, Wanted.PAUSED, Wanted.ACTIVE)


def wanted_of_trial(experiment: Wanted, trial: Wanted) -> Wanted:
    """What is wanted of a trial, given what is wanted of its experiment and of itself."""
    return min(experiment, trial, key=_STRENGTH.index)


def counts_as_restart(outcome: Outcome) -> bool:
    """Whether going on after this uses up one of ``max_restarts``: only the user's own failures do."""
    return outcome in (Outcome.FAILED, Outcome.OUT_OF_MEMORY)


def next_trial_state(outcome: Outcome, wanted: Wanted, restarts_left: int, reached_target: bool = False) -> TrialState:
    """Where a trial goes when its allocation exits.

    ``reached_target`` says that it trained to where the search had told it to and the search has not decided what
    comes next. ``restarts_left`` is counted before this exit.
    """
    match outcome:
        case Outcome.COMPLETED if not reached_target:
            return TrialState.COMPLETED
        case _ if wanted in (Wanted.CANCELED, Wanted.KILLED):
            return TrialState.CANCELED
        case Outcome.INVALID_HP:
            return TrialState.ERROR
        case _ if wanted is Wanted.ENOUGH:
            return TrialState.COMPLETED
        case Outcome.COMPLETED:
            return TrialState.WAITING
        case Outcome.FAILED | Outcome.OUT_OF_MEMORY if restarts_left <= 0:
            return TrialState.ERROR
        case _ if wanted is Wanted.PAUSED:
            return TrialState.PAUSED
        case _:  # made room for others, lost its machine, or may try again
            return TrialState.QUEUED


def settled_trial_state(state: TrialState, wanted: Wanted) -> TrialState:
    """Where a trial goes at once when what is wanted of it has changed, or has been found changed.

    One that holds no slots goes there directly; one that runs begins to stop, and its exit decides. A trial that is
    stopping goes on stopping even if it is wanted again: it will be queued when it has let go.
    """
    if state.has_ended:
        return state
    if state.has_allocation:
        return state if wanted is Wanted.ACTIVE else TrialState.STOPPING
    match wanted:
        case Wanted.CANCELED | Wanted.KILLED:
            return TrialState.CANCELED
        case Wanted.ENOUGH:
            return TrialState.COMPLETED
        case _ if state is TrialState.WAITING:
            return state
        case Wanted.PAUSED:
            return TrialState.PAUSED
        case Wanted.ACTIVE:
            return TrialState.QUEUED


def promoted_trial_state(wanted: Wanted) -> TrialState:
    """Where a WAITING trial goes when the search has given it a further target."""
    return settled_trial_state(TrialState.QUEUED, wanted)


def next_task_state(outcome: Outcome, wanted: Wanted, restarts_left: int = 0) -> TaskState:
    """Where a task goes when its allocation exits. ENOUGH is said of one that nobody has used for too long."""
    if outcome is Outcome.INVALID_HP:
        return next_task_state(Outcome.FAILED, wanted)
    return TaskState(next_trial_state(outcome, wanted, restarts_left).value)


def settled_task_state(state: TaskState, wanted: Wanted) -> TaskState:
    """Where a task goes at once when what is wanted of it has changed."""
    return TaskState(settled_trial_state(TrialState(state.value), wanted).value)


def experiment_state(
    wanted: Wanted, trials: Collection[TrialState], search_is_over: bool, search_failed: bool = False
) -> ExperimentState:
    """Where an experiment is, given what is wanted of it, its trials, and whether the search will create no more.

    One that has ended stays so: do not ask again, except after ``operations.Operation.CONTINUE``.
    """
    if all(state.has_ended for state in trials) and (search_is_over or search_failed or wanted.is_final):
        return _end(wanted, trials, search_is_over, search_failed)
    if wanted is Wanted.ACTIVE and not search_failed:
        return ExperimentState.ACTIVE
    if wanted is Wanted.PAUSED and not search_failed and not any(state.has_allocation for state in trials):
        return ExperimentState.PAUSED
    return ExperimentState.STOPPING


def _end(wanted: Wanted, trials: Collection[TrialState], search_is_over: bool, search_failed: bool) -> ExperimentState:
    was_cut_short = TrialState.CANCELED in trials or not search_is_over
    if wanted in (Wanted.CANCELED, Wanted.KILLED) and was_cut_short:
        return ExperimentState.CANCELED
    if search_failed:
        return ExperimentState.ERROR
    if TrialState.COMPLETED in trials:
        return ExperimentState.COMPLETED
    if TrialState.CANCELED in trials and TrialState.ERROR not in trials:
        return ExperimentState.CANCELED
    return ExperimentState.ERROR


def public_trial_state(state: TrialState, wanted: Wanted) -> str:
    """The name that the API, the SDK and the command line show: those of ``client.TrialState``."""
    if state is TrialState.STOPPING:
        return _public_stopping(wanted)
    if state is TrialState.WAITING:
        return "PAUSED"
    return state.name


def public_task_state(state: TaskState, wanted: Wanted) -> str:
    """The name that the API, the SDK and the command line show."""
    return public_trial_state(TrialState(state.value), wanted)


def public_experiment_state(state: ExperimentState, wanted: Wanted, trials: Collection[TrialState] = ()) -> str:
    """The name that the API, the SDK and the command line show: those of ``client.ExperimentState``.

    An active experiment is as far as the furthest of its ``trials``.
    """
    if state is ExperimentState.STOPPING:
        return _public_stopping(wanted) if wanted is not Wanted.ACTIVE else "STOPPING_ERROR"
    if state is not ExperimentState.ACTIVE:
        return state.name
    if TrialState.RUNNING in trials or TrialState.STOPPING in trials:
        return "RUNNING"
    if TrialState.STARTING in trials:
        return "STARTING"
    return "QUEUED" if trials else "ACTIVE"


def _public_stopping(wanted: Wanted) -> str:
    match wanted:
        case Wanted.KILLED:
            return "STOPPING_KILLED"
        case Wanted.CANCELED:
            return "STOPPING_CANCELED"
        case Wanted.ENOUGH:
            return "STOPPING_COMPLETED"
        case Wanted.PAUSED:
            return "PAUSED"
        case Wanted.ACTIVE:  # makes room for another and will be queued again
            return "RUNNING"
