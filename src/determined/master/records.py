"""Frozen rows: what the store keeps, as the rest of the master sees it."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from determined.master.states import ExperimentState, TaskState, TrialState, Wanted
from determined.wire.outcome import Outcome
from determined.wire.reports import StopReason


class AllocationState(str, enum.Enum):
    """Where an allocation is. ASSIGNED: its slots are taken, and its pool has not been seen to run it yet."""

    ASSIGNED = "assigned"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class CheckpointState(str, enum.Enum):
    """Where a checkpoint is. DELETING: its files may be going; it is no longer to be used."""

    COMPLETED = "completed"
    DELETING = "deleting"
    DELETED = "deleted"
    PARTIALLY_DELETED = "partially_deleted"


@dataclasses.dataclass(frozen=True, slots=True)
class User:
    """A person, or a program, that may sign in."""

    id: int
    username: str
    display_name: str
    password_hash: str | None
    admin: bool
    active: bool
    created_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """What a caller shows to be let in; its secret is stored hashed only."""

    id: int
    user_id: int | None
    allocation_id: str | None
    kind: str
    name: str
    hash: str
    scopes: list[str]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Workspace:
    """Holds projects."""

    id: int
    name: str
    archived: bool
    immutable: bool
    user_id: int | None
    created_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class Project:
    """Holds experiments."""

    id: int
    workspace_id: int
    name: str
    description: str
    notes: str
    archived: bool
    immutable: bool
    user_id: int | None
    created_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class Experiment:
    """One submission: a config, the code, a search."""

    id: int
    project_id: int
    user_id: int | None
    name: str
    description: str
    notes: str
    labels: list[str]
    state: ExperimentState
    wanted: Wanted
    archived: bool
    progress: float
    config: dict[str, Any]
    written_config: str
    searcher: str
    metric: str | None
    smaller_is_better: bool
    resource_pool: str
    slots_per_trial: int
    single_node: bool
    priority: int | None
    weight: float
    max_slots: int | None
    max_restarts: int
    seed: int
    context_sha256: str | None
    python: str | None
    parent_id: int | None
    unmanaged: bool
    external_id: str | None
    best_trial_id: int | None
    best_metric: float | None
    trial_count: int
    checkpoint_count: int
    checkpoint_size: int
    source_checkpoint: str | None
    notices: list[str]
    error: str | None
    queued_at: float
    created_at: float
    started_at: float | None
    ended_at: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Search:
    """How the search of an experiment stands. What it knows is in its events, and in a snapshot of them."""

    experiment_id: int
    events: int
    is_over: bool
    unit: str | None
    failure: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class SearchEvent:
    """One thing that a search was told, and what it answered."""

    experiment_id: int
    number: int
    kind: str
    trial: int | None
    told: Any
    actions: list[dict[str, Any]]
    time: float


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """One set of hyperparameters, being trained."""

    id: int
    experiment_id: int
    number: int
    state: TrialState
    wanted: Wanted
    hparams: dict[str, Any]
    seed: int
    target: float | None
    copy_of: int | None
    copy_from_steps: int | None
    steps_completed: int
    progress: float
    status: str
    restarts: int
    losses: int
    retry_at: float | None
    crashes: int
    log_labels: list[str] | None
    excluded_nodes: list[str] | None
    run_epoch: int
    latest_checkpoint: str | None
    source_checkpoint: str | None
    searched_steps: int
    held_steps: int | None
    best_metric: float | None
    best_step: int | None
    exit: str | None
    exit_told: bool
    latest_validation: dict[str, Any] | None
    summary_metrics: dict[str, Any]
    metadata: dict[str, Any]
    error: str | None
    external_id: str | None
    queued_at: float
    created_at: float
    started_at: float | None
    ended_at: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """Anything else that runs on slots."""

    id: str
    kind: str
    name: str
    user_id: int | None
    state: TaskState
    wanted: Wanted
    config: dict[str, Any]
    resource_pool: str
    slots: int
    priority: int | None
    weight: float
    losses: int
    retry_at: float | None
    run_epoch: int
    context_sha256: str | None
    python: str | None
    url: str | None
    error: str | None
    exit_code: int | None
    queued_at: float
    created_at: float
    started_at: float | None
    ended_at: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """One attempt to run a trial or task on a gang of slots."""

    id: str
    task_id: str
    trial_id: int | None
    experiment_id: int | None
    run_epoch: int
    state: AllocationState
    pool: str
    slots: int
    placement: dict[str, list[int]]
    target: float | None
    from_checkpoint: str | None
    stop_reason: StopReason | None
    stop_asked_at: float | None
    early_exit: str | None
    outcome: Outcome | None
    exit_code: int | None
    reason: str
    heard_at: float | None
    created_at: float
    started_at: float | None
    ended_at: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is, or was, complete in its storage."""

    uuid: str
    state: CheckpointState
    trial_id: int | None
    experiment_id: int | None
    task_id: str | None
    allocation_id: str | None
    steps_completed: int
    resources: dict[str, int]
    size: int
    metadata: dict[str, Any]
    storage: dict[str, Any]
    searcher_metric: float | None
    reported_at: float
    deleted_at: float | None
    globs: list[str] | None


@dataclasses.dataclass(frozen=True, slots=True)
class CodeContext:
    """Submitted code, known by the hash of its archive."""

    sha256: str
    size: int
    files: dict[str, int]
    created_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """A registered model."""

    id: int
    name: str
    description: str
    notes: str
    labels: list[str]
    metadata: dict[str, Any]
    archived: bool
    workspace_id: int | None
    user_id: int | None
    created_at: float
    updated_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class ModelVersion:
    """One checkpoint, registered under a model."""

    model_id: int
    version: int
    checkpoint_uuid: str
    name: str
    comment: str
    notes: str
    labels: list[str]
    metadata: dict[str, Any]
    user_id: int | None
    created_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class Template:
    """A piece of configuration that others start from."""

    name: str
    config: dict[str, Any]
    workspace_id: int | None
    user_id: int | None = None
