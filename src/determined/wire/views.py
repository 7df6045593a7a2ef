"""What the master's API shows: one model for each thing that has an address.

Times are seconds since 1970 in UTC. Secrets in configs are masked.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import pydantic


class View(pydantic.BaseModel):
    """Base of all; a client may be older than its master, so unknown fields are ignored."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")


T = TypeVar("T")


class Page(View, Generic[T]):
    """Some of the things asked for; ``total`` counts all of them, and ``next`` asks for those that follow."""

    items: list[T]
    total: int
    offset: int = 0
    next: str | None = None


class MasterInfo(View):
    """What anyone may know about a master."""

    version: str
    cluster_id: str
    cluster_name: str = ""
    message: str = ""


class UserView(View):
    """A person, or a program, that may sign in."""

    id: int
    username: str
    display_name: str = ""
    admin: bool = False
    active: bool = True
    created_at: float = 0.0


class TokenView(View):
    """A token, without its secret; ``token`` is shown once, by the call that made it."""

    id: int
    user_id: int | None
    name: str = ""
    kind: str
    scopes: list[str] = []
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None
    token: str | None = None


class Session(View):
    """A sign-in."""

    token: str
    expires_at: float | None
    user: UserView


class WorkspaceView(View):
    """Holds projects."""

    id: int
    name: str
    archived: bool = False
    immutable: bool = False
    user_id: int | None = None
    created_at: float = 0.0
    project_count: int = 0


class ProjectView(View):
    """Holds experiments."""

    id: int
    workspace_id: int
    workspace_name: str = ""
    name: str
    description: str = ""
    notes: str = ""
    archived: bool = False
    immutable: bool = False
    user_id: int | None = None
    created_at: float = 0.0
    experiment_count: int = 0
    active_experiment_count: int = 0


class ExperimentView(View):
    """One submission: what it asked for, and how it is going."""

    id: int
    name: str
    description: str = ""
    notes: str = ""
    labels: list[str] = []
    state: str
    wanted: str
    archived: bool = False
    progress: float = 0.0
    project_id: int
    project_name: str = ""
    workspace_id: int
    workspace_name: str = ""
    user_id: int | None = None
    username: str = ""
    config: dict[str, Any] = {}  # empty in lists, unless asked for
    searcher: str = ""  # the method's name
    metric: str | None = None
    smaller_is_better: bool = True
    resource_pool: str = ""
    slots_per_trial: int = 1
    priority: int | None = None
    weight: float = 1.0
    max_slots: int | None = None
    trial_count: int = 0
    trial_counts: dict[str, int] = {}  # by state
    best_trial_id: int | None = None
    best_metric: float | None = None
    parent_id: int | None = None
    unmanaged: bool = False
    external_id: str | None = None
    error: str | None = None
    notices: list[str] = []
    checkpoint_count: int = 0
    checkpoint_size: int = 0
    seconds_left: float | None = None
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def what_is_missing(self) -> str | None:
        """A sentence about a search that has ended well and knows no best trial."""
        if self.state != "COMPLETED" or self.metric is None or self.best_metric is not None or self.unmanaged:
            return None
        return (
            f"no trial reported a number as validation metric {self.metric} (searcher.metric), so none is the best; "
            "report_validation_metrics() takes it"
        )


class TrialView(View):
    """One set of hyperparameters, being trained."""

    id: int
    experiment_id: int
    number: int
    state: str
    wanted: str
    hparams: dict[str, Any]
    seed: int
    steps_completed: int = 0
    target: float | None = None
    progress: float = 0.0
    status: str = ""
    restarts: int = 0
    log_labels: list[str] = []  # the log policies whose patterns were found
    run_epoch: int = 0
    latest_checkpoint: str | None = None
    source_checkpoint: str | None = None
    best_metric: float | None = None  # of the searcher's metric
    best_step: int | None = None
    latest_validation: dict[str, Any] | None = None
    summary_metrics: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    error: str | None = None
    external_id: str | None = None
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None


class AllocationView(View):
    """One attempt to run a trial or task."""

    id: str
    task_id: str
    trial_id: int | None = None
    run_epoch: int
    state: str
    pool: str
    slots: int
    placement: dict[str, list[int]] = {}
    outcome: str | None = None
    exit_code: int | None = None
    reason: str = ""
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None


class CheckpointView(View):
    """A checkpoint, and what is known about it."""

    uuid: str
    state: str
    trial_id: int | None = None
    experiment_id: int | None = None
    task_id: str | None = None
    steps_completed: int = 0
    resources: dict[str, int] = {}
    size: int = 0
    metadata: dict[str, Any] = {}
    storage: dict[str, Any] | None = None
    experiment_config: dict[str, Any] | None = None  # when a single one is asked for
    hparams: dict[str, Any] | None = None
    validation_metrics: dict[str, Any] | None = None
    searcher_metric: float | None = None
    reported_at: float


class MetricsRow(View):
    """One report of metrics."""

    trial_id: int
    group: str
    steps_completed: int
    metrics: dict[str, Any]
    time: float
    run_epoch: int = 0


class SeriesView(View):
    """One metric over steps, thinned to what a page can show: each point stands for ``count`` reports."""

    trial_id: int
    group: str
    name: str
    total: int
    steps: list[int]
    last: list[float | None]
    min: list[float | None]
    max: list[float | None]
    time: list[float] = []


class LogLine(View):
    """A line that a rank, or the node process, printed."""

    id: int  # of the task's log: grows along it
    time: float
    rank: int | None = None
    node_rank: int = 0
    allocation_id: str = ""
    stdtype: str = "stdout"
    level: str | None = None
    source: str = "task"
    text: str


class TaskView(View):
    """A job, a command, a notebook or a TensorBoard."""

    id: str
    kind: str
    name: str
    state: str
    wanted: str
    user_id: int | None = None
    username: str = ""
    config: dict[str, Any] = {}
    resource_pool: str = ""
    slots: int = 0
    priority: int | None = None
    url: str | None = None
    error: str | None = None
    exit_code: int | None = None
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None


class QueueEntry(View):
    """A job of the queue: an experiment or a task, what it has and what it waits for."""

    job_id: str  # "experiment-3", or a task's id
    name: str
    kind: str
    state: str
    username: str = ""
    pool: str
    priority: int
    weight: float
    slots_wanted: int
    slots_held: int
    waiting: int
    running: int
    position: int | None = None
    why: str = ""
    queued_at: float


class SlotView(View):
    """A GPU, or a share of the CPU cores."""

    id: int
    device: str
    enabled: bool = True
    allocation_id: str | None = None


class AgentView(View):
    """One machine of a pool."""

    id: str
    pool: str
    enabled: bool = True
    draining: bool = False
    slots: list[SlotView] = []


class PoolView(View):
    """A place that runs gangs."""

    name: str
    kind: str
    policy: str
    slots_total: int
    slots_used: int
    agents: int
    queued: int
    is_default: bool = False


class ModelView(View):
    """A registered model."""

    id: int
    name: str
    description: str = ""
    notes: str = ""
    labels: list[str] = []
    metadata: dict[str, Any] = {}
    archived: bool = False
    workspace_id: int | None = None
    user_id: int | None = None
    version_count: int = 0
    created_at: float = 0.0
    updated_at: float = 0.0


class ModelVersionView(View):
    """One checkpoint, registered under a model."""

    model_id: int
    model_name: str = ""
    version: int
    checkpoint_uuid: str
    name: str = ""
    comment: str = ""
    notes: str = ""
    labels: list[str] = []
    metadata: dict[str, Any] = {}
    created_at: float = 0.0


class TemplateView(View):
    """A piece of configuration that others start from."""

    name: str
    config: dict[str, Any]
    workspace_id: int | None = None
    user_id: int | None = None


class ContextView(View):
    """Submitted code, known by the hash of its archive."""

    sha256: str
    size: int
    file_count: int = 0
    created_at: float = 0.0


class Created(View):
    """An experiment that was created, or would be: ``experiment`` is None when only a check was asked for."""

    experiment: ExperimentView | None = None
    config: dict[str, Any] = {}  # merged, with defaults; secrets masked
    notices: list[str] = []


class RunView(View):
    """What a run that no master started needs to report to this one."""

    experiment_id: int
    trial_id: int
    allocation_id: str
    run_epoch: int
    session_token: str
    cluster_id: str
    latest_checkpoint: str | None = None
    steps_completed: int = 0


class Done(View):
    """How one of several operations went."""

    id: str
    error: str | None = None


class MetricNames(View):
    """The groups of a trial's metrics, and the numeric metrics in each."""

    groups: dict[str, list[str]] = {}


class PreviewRow(View):
    """So many trials train for so long."""

    trials: int
    target: float | None = None
    unit: str = ""


class PreviewView(View):
    """What a search will do: how many trials for how long, and what they cost."""

    trials: int
    rows: list[PreviewRow] = []
    total: float = 0.0  # of all trials together, in the unit of the rows
    examples: list[dict[str, Any]] = []  # hyperparameters of the first trials
    notices: list[str] = []


class Change(View):
    """Something that changed: fetch it again if you show it."""

    seq: int
    time: float
    noun: str  # experiment, trial, checkpoint, task, allocation, project, ...
    id: str
    experiment_id: int | None = None
    fields: dict[str, Any] = {}  # what it is now, where that is short: state, progress, steps_completed


class Problem(View):
    """An error, as the API says it."""

    code: str
    message: str
    details: list[Any] = []
