"""States of experiments, trials and tasks, the moves between them, and what follows an outcome. Pure.

What people and the search want (``Wanted``) and what is true (the states) are two things: an operation changes what is
wanted, and a state changes only when something has been seen to happen.
"""

from __future__ import annotations

import enum


class Wanted(str, enum.Enum):
    """What an experiment, a trial or a task is meant to do. ENOUGH is the search's word: it is good as it is."""

    ACTIVE = "active"
    PAUSED = "paused"
    CANCELED = "canceled"
    KILLED = "killed"
    ENOUGH = "enough"


class TrialState(str, enum.Enum):
    """Where a trial is. WAITING: it reached the target it was given and the search has not said how to go on."""

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


class ExperimentState(str, enum.Enum):
    """Where an experiment is. STOPPING: something other than running on is wanted, and a trial still holds slots."""

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
