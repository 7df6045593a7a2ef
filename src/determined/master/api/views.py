"""From records and rows to the views that the API shows. Secrets are masked here, and nowhere else for these nouns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Union

from determined.config.masking import mask
from determined.master.records import Allocation, Checkpoint, Experiment, Task, Trial
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
from determined.master.store import experiments, listings, rows
from determined.master.store.database import Tx
from determined.wire.views import AllocationView, CheckpointView, ExperimentView, MetricsRow, TaskView, TrialView

Row = Union[listings.Row, Mapping[str, Any]]

# Parts of a checkpoint storage that say where it is; keys are none of them.
_PLACES = ("type", "host_path", "storage_path", "container_path", "bucket", "prefix", "container", "endpoint_url")


def experiment_view(tx: Tx, experiment_id: int) -> ExperimentView | None:
    """One experiment, its config included; None if there is none."""
    row = listings.experiment(tx, experiment_id)
    if row is None:
        return None
    counts = experiments.trial_counts(tx, [experiment_id])
    return experiment_of(row, counts[experiment_id], with_config=True, seconds_left=_seconds_left(tx, row))


def experiment_of(
    row: Row,
    counts: Mapping[TrialState, int],
    *,
    with_config: bool = False,
    seconds_left: float | None = None,
) -> ExperimentView:
    """One experiment of a list; ``counts`` are its trials by state."""
    wanted = Wanted(row["wanted"])
    public: dict[str, int] = {}
    for state, count in counts.items():
        name = public_trial_state(state, wanted)
        public[name] = public.get(name, 0) + count
    return ExperimentView(
        id=row["id"],
        name=row["name"],
        description=row["description"],
        notes=row["notes"],
        labels=row["labels"],
        state=public_experiment_state(ExperimentState(row["state"]), wanted, counts.keys()),
        wanted=wanted.value,
        archived=row["archived"],
        progress=row["progress"],
        project_id=row["project_id"],
        project_name=row["project_name"],
        workspace_id=row["workspace_id"],
        workspace_name=row["workspace_name"],
        user_id=row["user_id"],
        username=row["username"] or "",
        config=mask(row["config"]) if with_config else {},
        searcher=row["searcher"],
        metric=row["metric"],
        smaller_is_better=row["smaller_is_better"],
        resource_pool=row["resource_pool"],
        slots_per_trial=row["slots_per_trial"],
        priority=row["priority"],
        weight=row["weight"],
        max_slots=row["max_slots"],
        trial_count=row["trial_count"],
        trial_counts=public,
        best_trial_id=row["best_trial_id"],
        best_metric=row["best_metric"],
        parent_id=row["parent_id"],
        unmanaged=row["unmanaged"],
        external_id=row["external_id"],
        error=row["error"],
        notices=row.get("notices") or [],
        checkpoint_count=row["checkpoint_count"],
        checkpoint_size=row["checkpoint_size"],
        seconds_left=seconds_left,
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


def trial_of(trial: Row | Trial, experiment_wanted: Wanted) -> TrialView:
    """One trial."""
    row = rows.values(trial) if isinstance(trial, Trial) else trial
    wanted = wanted_of_trial(experiment_wanted, Wanted(row["wanted"]))
    return TrialView(
        id=row["id"],
        experiment_id=row["experiment_id"],
        number=row["number"],
        state=public_trial_state(TrialState(row["state"]), wanted),
        wanted=wanted.value,
        hparams=row["hparams"],
        seed=row["seed"],
        steps_completed=row["steps_completed"],
        target=row["target"],
        progress=row["progress"],
        status=row["status"],
        restarts=row["restarts"],
        log_labels=row["log_labels"] or [],
        run_epoch=row["run_epoch"],
        latest_checkpoint=row["latest_checkpoint"],
        source_checkpoint=row["source_checkpoint"],
        best_metric=row["best_metric"],
        best_step=row["best_step"],
        latest_validation=row["latest_validation"],
        summary_metrics=row["summary_metrics"],
        metadata=row["metadata"],
        error=row["error"],
        external_id=row["external_id"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


def allocation_of(allocation: Allocation) -> AllocationView:
    """One attempt."""
    return AllocationView(
        id=allocation.id,
        task_id=allocation.task_id,
        trial_id=allocation.trial_id,
        run_epoch=allocation.run_epoch,
        state=allocation.state.name,
        pool=allocation.pool,
        slots=allocation.slots,
        placement=allocation.placement,
        outcome=None if allocation.outcome is None else allocation.outcome.value,
        exit_code=allocation.exit_code,
        reason=allocation.reason,
        created_at=allocation.created_at,
        started_at=allocation.started_at,
        ended_at=allocation.ended_at,
    )


def checkpoint_of(
    checkpoint: Row | Checkpoint,
    validation: Mapping[str, Any] | None = None,
    experiment: Experiment | None = None,
    trial: Trial | None = None,
) -> CheckpointView:
    """One checkpoint; its experiment and trial are told where a single one is asked for."""
    row = rows.values(checkpoint) if isinstance(checkpoint, Checkpoint) else checkpoint
    return CheckpointView(
        uuid=row["uuid"],
        state=_checkpoint_state(row["state"]),
        trial_id=row["trial_id"],
        experiment_id=row["experiment_id"],
        task_id=row["task_id"],
        steps_completed=row["steps_completed"],
        resources=row["resources"],
        size=row["size"],
        metadata=row["metadata"],
        storage={name: row["storage"][name] for name in _PLACES if row["storage"].get(name) is not None},
        experiment_config=None if experiment is None else mask(experiment.config),
        hparams=None if trial is None else trial.hparams,
        validation_metrics=None if validation is None else dict(validation),
        searcher_metric=row["searcher_metric"],
        reported_at=row["reported_at"],
    )


def checkpoint_views(tx: Tx, found: Collection[Row]) -> list[CheckpointView]:
    """Checkpoints of a list, each with the validation of exactly its step."""
    places = {(row["trial_id"], row["steps_completed"]) for row in found if row["trial_id"] is not None}
    validations = listings.validations_at(tx, places)
    return [checkpoint_of(row, validations.get((row["trial_id"], row["steps_completed"]))) for row in found]


def task_of(task: Row | Task, username: str = "") -> TaskView:
    """One task."""
    row = rows.values(task) if isinstance(task, Task) else task
    wanted = Wanted(row["wanted"])
    return TaskView(
        id=row["id"],
        kind=row["kind"],
        name=row["name"],
        state=public_task_state(TaskState(row["state"]), wanted),
        wanted=wanted.value,
        user_id=row["user_id"],
        username=row.get("username") or username,
        config=mask(row["config"]),
        resource_pool=row["resource_pool"],
        slots=row["slots"],
        priority=row["priority"],
        url=row["url"],
        error=row["error"],
        exit_code=row["exit_code"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


def metrics_of(row: Any) -> MetricsRow:
    """One report of metrics."""
    return MetricsRow(
        trial_id=row.trial_id,
        group=row.group,
        steps_completed=row.steps_completed,
        metrics=row.metrics,
        time=row.time,
        run_epoch=row.run_epoch,
    )


def _checkpoint_state(state: str) -> str:
    # To people, one whose files are going is gone.
    return "DELETED" if state == "deleting" else state.upper()


def _seconds_left(tx: Tx, row: Row) -> float | None:
    progress, started_at = row["progress"], row["started_at"]
    if row["state"] != ExperimentState.ACTIVE.value or started_at is None or not 0.01 <= progress < 1:
        return None
    return float((tx.now - started_at) * (1 - progress) / progress)
