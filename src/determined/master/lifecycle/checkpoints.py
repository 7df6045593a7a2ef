"""Checkpoints: reported, given up and deleted, and which of them are kept."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping
from typing import Any

from determined import errors
from determined.master.lifecycle.consequences import Turn
from determined.master.lifecycle.trials import feed_held, number
from determined.master.records import Allocation, Checkpoint, CheckpointState, Experiment
from determined.master.store import checkpoints, experiments, trials
from determined.master.store.database import Tx
from determined.storage.retention import Kept, Policy, keep
from determined.wire.reports import CheckpointReport


def record(tx: Tx, allocation: Allocation, report: CheckpointReport) -> Checkpoint:
    """A checkpoint is complete in its storage. It is the trial's cut from now on; the same report again is nothing new.

    Call it after the metrics that were reported before it are stored.
    """
    found = checkpoints.get(tx, report.uuid)
    if found is not None:
        return found
    metric = None
    if allocation.trial_id is not None:
        trial = trials.require(tx, allocation.trial_id)
        experiment = experiments.require(tx, trial.experiment_id)
        if experiment.metric is not None:
            metric = _metric_at(tx, trial.id, report.steps_completed, experiment.metric, trial.latest_validation)
    size = sum(report.resources.values())
    checkpoints.insert(
        tx,
        {
            "uuid": report.uuid,
            "state": CheckpointState.COMPLETED,
            "trial_id": allocation.trial_id,
            "experiment_id": allocation.experiment_id,
            "task_id": allocation.task_id,
            "allocation_id": allocation.id,
            "steps_completed": report.steps_completed,
            "resources": report.resources,
            "size": size,
            "metadata": report.metadata,
            "storage": report.storage or {},
            "searcher_metric": metric,
            "reported_at": report.time,
        },
    )
    tx.changed("checkpoint", report.uuid, allocation.experiment_id, state=CheckpointState.COMPLETED.value)
    if allocation.trial_id is not None:
        steps = max(trial.steps_completed, report.steps_completed)
        latest = checkpoints.latest_of_trial(tx, trial.id)
        assert latest is not None
        trials.update(tx, trial.id, latest_checkpoint=latest.uuid, steps_completed=steps, losses=0)
        experiments.add(tx, experiment.id, checkpoint_count=1, checkpoint_size=size)
        tx.changed("trial", trial.id, experiment.id, latest_checkpoint=latest.uuid, steps_completed=steps)
        Turn(tx, experiment).resolve_copies(trial.number, has_let_go=False)
        feed_held(tx, trial.id, up_to=report.steps_completed)
    return checkpoints.require(tx, report.uuid)


def record_gone(tx: Tx, allocation: Allocation, uuid: str) -> None:
    """The training code has deleted a checkpoint of its own; what it says of others' is not believed."""
    checkpoint = checkpoints.get(tx, uuid)
    if checkpoint is None or checkpoint.task_id != allocation.task_id:
        return
    if checkpoint.state is not CheckpointState.DELETED:
        _remove(tx, checkpoint)


def edit_metadata(tx: Tx, uuid: str, set: Mapping[str, Any], remove: Collection[str] = ()) -> Checkpoint:
    """Replace top-level keys of its metadata, and remove some."""
    checkpoint = checkpoints.require(tx, uuid)
    kept = {key: value for key, value in checkpoint.metadata.items() if key not in remove}
    checkpoints.update(tx, checkpoint.uuid, metadata={**kept, **set})
    tx.changed("checkpoint", checkpoint.uuid, checkpoint.experiment_id)
    return checkpoints.require(tx, checkpoint.uuid)


def mark_deleting(tx: Tx, uuid: str, globs: Collection[str] = ()) -> Checkpoint:
    """Its files, or those that match one of ``globs``, are to be removed; ``record_deleted`` says when they are.

    Raises Refused if a registered model holds it, or if what has not ended goes on from it or begins with it.
    """
    checkpoint = checkpoints.require(tx, uuid)
    if checkpoint.state in (CheckpointState.DELETING, CheckpointState.DELETED):
        return checkpoint
    uuid = checkpoint.uuid
    for whose in checkpoints.registered(tx, uuids=[uuid]).values():
        raise errors.Refused(f"checkpoint {uuid} cannot be deleted: it is {whose}; delete that version first")
    for whose in checkpoints.used(tx, uuids=[uuid]).values():
        raise errors.Refused(f"checkpoint {uuid} cannot be deleted: {whose} needs it and has not ended")
    if globs and not matching(checkpoint, globs):
        raise errors.Refused(f"checkpoint {uuid} has no file that matches {' or '.join(globs)}")
    checkpoints.update(tx, uuid, state=CheckpointState.DELETING, globs=[*globs] or None)
    tx.changed("checkpoint", uuid, checkpoint.experiment_id, state=CheckpointState.DELETING.value)
    _look_for_latest(tx, checkpoint)
    return checkpoints.require(tx, uuid)


def matching(checkpoint: Checkpoint, globs: Collection[str]) -> list[str]:
    """Its files that match one of these patterns, in which ``*`` stands for any text, ``/`` too."""
    return [path for path in checkpoint.resources if any(fnmatch.fnmatchcase(path, glob) for glob in globs)]


def record_deleted(tx: Tx, uuid: str, resources: Mapping[str, int] | None = None) -> None:
    """Its files are gone, but for ``resources`` (size by path) if only some were to be removed."""
    checkpoint = checkpoints.get(tx, uuid)
    if checkpoint is None or checkpoint.state is not CheckpointState.DELETING:
        return
    if not resources:
        _remove(tx, checkpoint)
        return
    size = sum(resources.values())
    checkpoints.update(
        tx, uuid, state=CheckpointState.PARTIALLY_DELETED, resources=dict(resources), size=size, globs=None
    )
    if checkpoint.experiment_id is not None:
        experiments.add(tx, checkpoint.experiment_id, checkpoint_size=size - checkpoint.size)
    tx.changed("checkpoint", uuid, checkpoint.experiment_id, state=CheckpointState.PARTIALLY_DELETED.value)


def deletable(tx: Tx, experiment_id: int, trial_id: int | None = None) -> list[str]:
    """The complete checkpoints of an experiment, or of one of its trials, that its policy does not keep.

    None that is referenced is among them: registered, or needed by what has not ended, in this experiment or another.
    """
    experiment = experiments.require(tx, experiment_id)
    policy = policy_of(experiment)
    found = [Kept(*row) for row in checkpoints.usable(tx, experiment_id=experiment_id, trial_id=trial_id)]
    if not found:
        return []
    referenced = {
        *checkpoints.registered(tx, experiment_id=experiment_id),
        *checkpoints.used(tx, experiment_id=experiment_id, trial_id=trial_id),
    }
    if trial_id is not None:
        # Of the whole experiment only the best matter, and there is an index of them.
        best = checkpoints.best_of_experiment(
            tx, experiment_id, policy.save_experiment_best, experiment.smaller_is_better
        )
        referenced |= {row[0] for row in best}
        policy = Policy(0, policy.save_trial_best, policy.save_trial_latest)
    if not experiment.state.has_ended and _may_copy(experiment):
        referenced |= checkpoints.latest_of_experiment(tx, experiment_id)
    kept = keep(found, policy, experiment.smaller_is_better, referenced)
    return sorted(checkpoint.uuid for checkpoint in found if checkpoint.uuid not in kept)


def _may_copy(experiment: Experiment) -> bool:
    """Whether its search may still start a trial from the latest checkpoint of another, even of one that has ended."""
    return experiment.searcher == "pbt" or ":" in experiment.searcher


def policy_of(experiment: Experiment) -> Policy:
    """How many checkpoints an experiment keeps, by its config."""
    storage = experiment.config.get("checkpoint_storage") or {}
    return Policy(
        save_experiment_best=storage.get("save_experiment_best", 0),
        save_trial_best=storage.get("save_trial_best", 1),
        save_trial_latest=storage.get("save_trial_latest", 1),
    )


def _remove(tx: Tx, checkpoint: Checkpoint) -> None:
    checkpoints.update(
        tx, checkpoint.uuid, state=CheckpointState.DELETED, deleted_at=tx.now, resources={}, size=0, globs=None
    )
    if checkpoint.experiment_id is not None:
        experiments.add(tx, checkpoint.experiment_id, checkpoint_count=-1, checkpoint_size=-checkpoint.size)
    tx.changed("checkpoint", checkpoint.uuid, checkpoint.experiment_id, state=CheckpointState.DELETED.value)
    _look_for_latest(tx, checkpoint)


def _look_for_latest(tx: Tx, checkpoint: Checkpoint) -> None:
    """If it was the latest of its trial, another one is now."""
    if checkpoint.trial_id is None:
        return
    trial = trials.require(tx, checkpoint.trial_id)
    if trial.latest_checkpoint == checkpoint.uuid:
        latest = checkpoints.latest_of_trial(tx, trial.id)
        trials.update(tx, trial.id, latest_checkpoint=latest.uuid if latest else None)
        tx.changed("trial", trial.id, trial.experiment_id)


def _metric_at(tx: Tx, trial_id: int, steps: int, metric: str, latest: Mapping[str, Any] | None) -> float | None:
    """The searcher's metric of a trial's validation after exactly so many steps."""
    if latest is not None and latest.get("batches") == steps:
        return number(latest.get(metric))
    return next((number(metrics.get(metric)) for at, metrics in trials.validations(tx, trial_id, at=steps)), None)
