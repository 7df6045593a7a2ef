"""Experiments: created, operated, edited, continued and deleted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from determined import errors
from determined.config import ExperimentConfig
from determined.config import load as load_config
from determined.master.lifecycle import searching
from determined.master.lifecycle import trials as trial_changes
from determined.master.lifecycle.consequences import Turn
from determined.master.operations import Operation, refusal, wanted_after
from determined.master.records import CheckpointState, Experiment, Trial
from determined.master.states import ExperimentState, TrialState, Wanted
from determined.master.store import checkpoints, experiments, searches, trials
from determined.master.store.database import Tx
from determined.search.build import default_seed, is_smaller_better, metric_of
from determined.search.method import Exit

# Changes to the config of an experiment that goes on are held against what its search decided.
_MAY_TRAIN_LONGER = ("single", "random", "grid")


@dataclasses.dataclass(frozen=True)
class NewExperiment:
    """What is to be created. ``config`` is merged and checked, ``written`` is the YAML as it was submitted."""

    config: ExperimentConfig
    written: str = ""
    user_id: int | None = None
    project_id: int = 1
    context_sha256: str | None = None
    python: str | None = None
    paused: bool = False
    archived: bool = False
    seed: int | None = None  # absent: the config's, else drawn where the search draws
    notices: Sequence[str] = ()
    parent_id: int | None = None
    unmanaged: bool = False
    external_id: str | None = None
    source_checkpoint: str | None = None  # absent: the config's source_trial_id or source_checkpoint_uuid


def create(tx: Tx, new: NewExperiment) -> Experiment:
    """A new experiment: its search is started, and its first trials are queued. Forks give a ``parent_id``.

    Raises Refused if its project takes none, NotFound or CheckpointNotFound if what it begins with is not there.
    """
    config = new.config
    _require_open_project(tx, new.project_id)
    if new.parent_id is not None:
        experiments.require(tx, new.parent_id)
    source = _source(tx, new)
    seed = new.seed if new.seed is not None else config.reproducibility.experiment_seed
    seed = default_seed(config) if seed is None else seed
    experiment_id = experiments.insert(
        tx,
        {
            "project_id": new.project_id,
            "user_id": new.user_id,
            "state": ExperimentState.ACTIVE.value,
            "wanted": (Wanted.PAUSED if new.paused else Wanted.ACTIVE).value,
            "archived": new.archived,
            "seed": seed,
            "context_sha256": new.context_sha256,
            "python": new.python,
            "parent_id": new.parent_id,
            "unmanaged": new.unmanaged,
            "external_id": new.external_id,
            "source_checkpoint": source,
            "notices": [*new.notices],
            "written_config": new.written,
            "queued_at": tx.now,
            "created_at": tx.now,
            "name": config.name,
            "description": config.description or "",
            "labels": [*config.labels],
            **_from_config(config),
        },
    )
    tx.changed("experiment", experiment_id, experiment_id, state=ExperimentState.ACTIVE.value)
    turn = Turn(tx, experiments.require(tx, experiment_id))
    if new.unmanaged:
        searches.insert(tx, experiment_id, unit=None, is_over=True)
        return turn.experiment
    turn.begin_search(searching.start(tx, experiment_id, config, seed))
    return turn.settle()


def operate(tx: Tx, experiment_id: int, operation: Operation) -> Experiment:
    """Activate, pause, cancel, kill, archive or unarchive. Raises Refused; what is so already stays so."""
    experiment = _allowed(tx, experiment_id, operation)
    if operation in (Operation.ARCHIVE, Operation.UNARCHIVE):
        archived = operation is Operation.ARCHIVE
        if archived != experiment.archived:
            experiments.update(tx, experiment_id, archived=archived)
            tx.changed("experiment", experiment_id, experiment_id, archived=archived)
        return experiments.require(tx, experiment_id)
    if experiment.unmanaged and operation in (Operation.PAUSE, Operation.ACTIVATE):
        raise errors.Refused(
            f"experiment {experiment_id} was started by hand, not by this master, which cannot do that"
        )
    wanted = wanted_after(operation, experiment.wanted, experiment.state.has_ended)
    if wanted is experiment.wanted:
        return experiment
    experiments.update(tx, experiment_id, wanted=wanted)
    tx.changed("experiment", experiment_id, experiment_id, wanted=wanted.value)
    turn = Turn(tx, dataclasses.replace(experiment, wanted=wanted))
    turn.reconsider_all()
    return turn.settle()


def settle(tx: Tx, experiment_id: int) -> Experiment:
    """Where an experiment is, worked out again from what is wanted of it, its search and its trials."""
    return Turn(tx, experiments.require(tx, experiment_id)).settle(whole=True)


def edit(tx: Tx, experiment_id: int, changes: Mapping[str, Any]) -> Experiment:
    """Change what it is called and what it may use and keep: the fields of ``wire.requests.EditExperiment``.

    Raises Refused. What it may use (priority, weight, max_slots, resource_pool) can change until it has ended; trials
    that run keep what they have.
    """
    unknown = changes.keys() - _EDITS - _ADJUSTMENTS - _KEEPS.keys()
    if unknown:
        raise errors.BadRequest(f"{', '.join(sorted(unknown))} of an experiment cannot be edited")
    experiment = _allowed(tx, experiment_id, Operation.EDIT)
    values = {name: value for name, value in changes.items() if name in _EDITS}
    adjustments = {
        name: value for name, value in changes.items() if name in _ADJUSTMENTS and value != getattr(experiment, name)
    }
    if adjustments:
        _allowed(tx, experiment_id, Operation.ADJUST)
        values.update(adjustments)
    kept = {name: value for name, value in changes.items() if name in _KEEPS}
    if kept or values:
        config = {**experiment.config}
        for name, value in {**kept, **{name: values[name] for name in values if name in _IN_CONFIG}}.items():
            section, field = {**_KEEPS, **_IN_CONFIG}[name]
            if section is None:
                config[field] = value
            else:
                config[section] = {**(config.get(section) or {}), field: value}
        experiments.update(tx, experiment_id, config=config, **values)
        tx.changed("experiment", experiment_id, experiment_id, **values)
    return experiments.require(tx, experiment_id)


_EDITS = {"name", "description", "notes", "labels"}
_ADJUSTMENTS = {"priority", "weight", "max_slots", "resource_pool"}
_KEEPS: dict[str, tuple[str | None, str]] = {
    "save_experiment_best": ("checkpoint_storage", "save_experiment_best"),
    "save_trial_best": ("checkpoint_storage", "save_trial_best"),
    "save_trial_latest": ("checkpoint_storage", "save_trial_latest"),
    "log_retention_days": ("retention_policy", "log_retention_days"),
}
_IN_CONFIG: dict[str, tuple[str | None, str]] = {
    "name": (None, "name"),
    "description": (None, "description"),
    "labels": (None, "labels"),
    "priority": ("resources", "priority"),
    "weight": ("resources", "weight"),
    "max_slots": ("resources", "max_slots"),
    "resource_pool": ("resources", "resource_pool"),
}


def move(tx: Tx, experiment_id: int, project_id: int) -> Experiment:
    """Put it into another project. Raises Refused, or NotFound."""
    experiment = _allowed(tx, experiment_id, Operation.MOVE)
    if experiment.project_id != project_id:
        _require_open_project(tx, project_id)
        experiments.update(tx, experiment_id, project_id=project_id)
        tx.changed("experiment", experiment_id, experiment_id, project_id=project_id)
        tx.changed("project", experiment.project_id)
        tx.changed("project", project_id)
    return experiments.require(tx, experiment_id)


def continue_(tx: Tx, experiment_id: int, config: ExperimentConfig | None = None) -> Experiment:
    """Train an ended experiment on, with a changed config or as it was. Raises Refused.

    Trials that were canceled or failed go on from their latest checkpoints, and the search goes on creating. A longer
    ``searcher.max_length`` takes up the completed ones of a single trial, a random search or a grid as well.
    """
    experiment = _allowed(tx, experiment_id, Operation.CONTINUE)
    if experiment.unmanaged:
        trial_changes.reopen(tx, experiment)
    search = searches.require(tx, experiment_id)
    if search.failure is not None:
        raise errors.Refused(f"the search of experiment {experiment_id} failed and cannot go on; fork it instead")
    before = load_config(experiment.config)
    after = before if config is None else config
    _require_same_search(experiment_id, before, after)
    trains_longer = after.searcher.max_length != before.searcher.max_length
    again = [trial for trial in trials.of_experiment(tx, experiment_id) if _goes_on(trial, trains_longer)]
    if not again and search.is_over:
        raise errors.Refused(
            f"experiment {experiment_id} has nothing left to train; give it a longer searcher.max_length, or fork it"
        )
    values: dict[str, Any] = {}
    if after != before:
        searching.go_on_with(tx, experiment, after)
        values = _from_config(after)
    experiments.update(
        tx,
        experiment_id,
        state=ExperimentState.ACTIVE,
        wanted=Wanted.ACTIVE,
        error=None,
        ended_at=None,
        queued_at=tx.now,
        **values,
    )
    tx.changed("experiment", experiment_id, experiment_id, state=ExperimentState.ACTIVE.value)
    for trial in again:
        trial_changes.requeue(tx, trial)
    return settle(tx, experiment_id)


def retry(tx: Tx, experiment_id: int) -> Experiment:
    """Train the failed trials of an experiment again, from their latest checkpoints, with all their restarts.

    Its search, which knows that they failed, hears no more of them. Raises Refused if none has failed.
    """
    experiment = experiments.require(tx, experiment_id)
    failed = [
        trial
        for trial in trials.of_experiment(tx, experiment_id, [TrialState.ERROR])
        if trial.exit != Exit.INVALID_HP.value
    ]
    if not failed:
        raise errors.Refused(f"experiment {experiment_id} has no failed trial to train again")
    trial_changes.reopen(tx, experiment)
    for trial in failed:
        trial_changes.requeue(tx, trial, exit_told=True)
    return settle(tx, experiment_id)


def delete(tx: Tx, experiment_id: int) -> Experiment:
    """Begin to delete an ended experiment; its files go first, then ``record_deleted``. Raises Refused."""
    experiment = experiments.require(tx, experiment_id)
    if experiment.state is ExperimentState.DELETING:
        return experiment
    _allowed(tx, experiment_id, Operation.DELETE)
    for uuid, whose in checkpoints.registered(tx, experiment_id=experiment_id).items():
        raise errors.Refused(
            f"experiment {experiment_id} cannot be deleted: its checkpoint {uuid} is {whose}; delete that version first"
        )
    for uuid, whose in checkpoints.used(tx, experiment_id=experiment_id).items():
        raise errors.Refused(
            f"experiment {experiment_id} cannot be deleted: {whose} begins with its checkpoint {uuid}; wait for it"
        )
    searching.put_away(tx, experiment_id)
    experiments.update(tx, experiment_id, state=ExperimentState.DELETING, error=None)
    tx.changed("experiment", experiment_id, experiment_id, state=ExperimentState.DELETING.value)
    return experiments.require(tx, experiment_id)


def record_deleted(tx: Tx, experiment_id: int) -> None:
    """Its files are gone: so are its rows now."""
    experiment = experiments.get(tx, experiment_id)
    if experiment is None or experiment.state is not ExperimentState.DELETING:
        return
    experiments.delete(tx, experiment_id)
    tx.changed("experiment", experiment_id, experiment_id, state="deleted")


def record_delete_failed(tx: Tx, experiment_id: int, error: str) -> None:
    """Some of its files could not be removed; people may delete it again."""
    experiment = experiments.get(tx, experiment_id)
    if experiment is None or experiment.state is not ExperimentState.DELETING:
        return
    experiments.update(tx, experiment_id, state=ExperimentState.DELETE_FAILED, error=error)
    tx.changed("experiment", experiment_id, experiment_id, state=ExperimentState.DELETE_FAILED.value)


def _allowed(tx: Tx, experiment_id: int, operation: Operation) -> Experiment:
    experiment = experiments.require(tx, experiment_id)
    refused = refusal(
        operation, f"experiment {experiment_id}", experiment.state, experiment.wanted, experiment.archived
    )
    if refused:
        raise errors.Refused(refused)
    return experiment


def _require_open_project(tx: Tx, project_id: int) -> None:
    is_open = experiments.project_is_open(tx, project_id)
    if is_open is None:
        raise errors.NotFound(f"there is no project {project_id}")
    if not is_open:
        raise errors.Refused(f"project {project_id} is archived and takes no experiments; unarchive it first")


def _source(tx: Tx, new: NewExperiment) -> str | None:
    """The checkpoint whose weights the trials begin with."""
    searcher = new.config.searcher
    uuid = new.source_checkpoint or searcher.source_checkpoint_uuid
    if uuid is None and searcher.source_trial_id is not None:
        trial = trials.require(tx, searcher.source_trial_id)
        uuid = trial.latest_checkpoint
        if uuid is None:
            raise errors.CheckpointNotFound(f"trial {trial.id} has no checkpoint to begin with (source_trial_id)")
    if uuid is None:
        return None
    checkpoint = checkpoints.require(tx, uuid)
    if checkpoint.state is not CheckpointState.COMPLETED:
        raise errors.CheckpointNotFound(
            f"checkpoint {checkpoint.uuid} cannot be begun with: it is {checkpoint.state.value.replace('_', ' ')}"
        )
    return checkpoint.uuid


def _from_config(config: ExperimentConfig) -> dict[str, Any]:
    resources, searcher = config.resources, config.searcher
    return {
        "config": config.as_dict(),
        "searcher": searcher.name,
        "metric": metric_of(config),
        "smaller_is_better": is_smaller_better(config),
        "resource_pool": resources.resource_pool,
        "slots_per_trial": resources.slots_per_trial,
        "single_node": bool(resources.is_single_node),
        "priority": resources.priority,
        "weight": resources.weight,
        "max_slots": resources.max_slots,
        "max_restarts": config.max_restarts,
    }


def _require_same_search(experiment_id: int, before: ExperimentConfig, after: ExperimentConfig) -> None:
    """A search that goes on cannot be another one: what it decided rests on what it was."""
    instead = f"fork experiment {experiment_id} instead of continuing it"
    if after.hyperparameters != before.hyperparameters:
        raise errors.Refused(f"the hyperparameters of trials that go on cannot change; {instead}")
    old, new = before.searcher, after.searcher
    if old.name in _MAY_TRAIN_LONGER:
        old = old.model_copy(update={"max_length": new.max_length})
    if old != new:
        what = "nothing but max_length" if old.name in _MAY_TRAIN_LONGER else "nothing"
        raise errors.Refused(f"{what} of the searcher section can change when a search goes on; {instead}")


def _goes_on(trial: Trial, trains_longer: bool) -> bool:
    match trial.state:
        case TrialState.CANCELED:
            return True
        case TrialState.ERROR:
            return trial.exit != Exit.INVALID_HP.value
        case TrialState.COMPLETED:
            return trains_longer
        case _:
            return False
