"""Runs that no master started: registered, resumed by their external ids, and brought here after the fact."""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

from determined import errors
from determined.config import loading
from determined.config.experiment import ExperimentConfig
from determined.master.lifecycle import allocations, experiments, projects, users
from determined.master.lifecycle.experiments import NewExperiment
from determined.master.records import Allocation, Experiment, Trial
from determined.master.states import ExperimentState, TrialState, Wanted
from determined.master.store import experiments as experiment_rows
from determined.master.store import projects as project_rows
from determined.master.store import trials as trial_rows
from determined.master.store.database import Tx
from determined.wire.requests import RegisterRun


class Run(NamedTuple):
    """A run that may report now."""

    trial: Trial
    allocation: Allocation


def register(tx: Tx, asked: RegisterRun, user_id: int | None, *, is_admin: bool, token_hash: str) -> Run:
    """Make a run known, or find it again by its external ids, and let it report under a token.

    An attempt that was under way is over: whoever registers last is the run. Raises Forbidden if the run found is
    somebody else's, Refused if the experiment found is none of this kind.
    """
    experiment = _experiment(tx, asked, user_id, is_admin)
    trial = _trial(tx, asked, experiment)
    if experiment.state.has_ended or trial.state.has_ended:
        _reopen(tx, experiment, trial)
    allocation = allocations.begin_by_hand(tx, trial_rows.require(tx, trial.id))
    users.create_allocation_token(tx, allocation.id, token_hash)
    return Run(trial_rows.require(tx, trial.id), allocation)


def _experiment(tx: Tx, asked: RegisterRun, user_id: int | None, is_admin: bool) -> Experiment:
    if asked.external_experiment_id is not None:
        found = experiment_rows.by_external_id(tx, asked.external_experiment_id)
        if found is not None:
            if found.user_id != user_id and not is_admin:
                raise errors.Forbidden(f"the run {asked.external_experiment_id!r} is somebody else's; use another id")
            return found
    config = _config(asked)
    return experiments.create(
        tx,
        NewExperiment(
            config=config,
            user_id=user_id,
            project_id=_project(tx, asked, user_id),
            unmanaged=True,
            external_id=asked.external_experiment_id,
            notices=list(config.notices),
        ),
    )


def _config(asked: RegisterRun) -> ExperimentConfig:
    """The run's own config, with what was said beside it on top."""
    said: dict[str, Any] = {"name": asked.name, "description": asked.description, "labels": asked.labels or None}
    written = {**asked.config, **{name: value for name, value in said.items() if value is not None}}
    # Where it is kept is looked up by us; a config's own names would be looked up again.
    for name in ("workspace", "project"):
        written.pop(name, None)
    if asked.hparams and not written.get("hyperparameters"):
        constants = {name: {"type": "const", "val": value} for name, value in asked.hparams.items()}
        checked = loading.check({**written, "hyperparameters": constants}, name_hint="run")
        # The trial has them in any case; a config cannot hold all that a script may have computed, such as NaN.
        if checked.config is not None:
            return checked.config
    return loading.load(written, name_hint="run", file="the run's config")


def _project(tx: Tx, asked: RegisterRun, user_id: int | None) -> int:
    """The project of these names, made if there is none: a script must not fail for want of a folder."""
    workspace_name = asked.workspace or asked.config.get("workspace")
    project_name = asked.project or asked.config.get("project")
    if not isinstance(project_name, str) or not project_name:
        return projects.ensure_default(tx).id
    name = workspace_name if isinstance(workspace_name, str) and workspace_name else projects.UNCATEGORIZED
    workspace = project_rows.find_workspace(tx, name) or projects.create_workspace(tx, name, user_id)
    project = project_rows.find(tx, workspace.id, project_name)
    if project is None:
        return projects.create(tx, workspace.id, project_name, user_id).id
    return projects.require_takes_experiments(tx, project.id).id


def _trial(tx: Tx, asked: RegisterRun, experiment: Experiment) -> Trial:
    if not experiment.unmanaged:
        raise errors.Refused(f"experiment {experiment.id} belongs to this master; its runs are started by it alone")
    # Without an id of its own a run with an external experiment is that experiment's only one.
    external_id = asked.external_trial_id or asked.external_experiment_id
    if external_id is not None:
        found = trial_rows.by_external_id(tx, experiment.id, external_id)
        if found is not None:
            return found
    number = experiment.trial_count
    trial_id = trial_rows.insert(
        tx,
        {
            "experiment_id": experiment.id,
            "number": number,
            "state": TrialState.PAUSED,
            "wanted": Wanted.ACTIVE,
            "hparams": asked.hparams,
            "seed": secrets.randbelow(2**31),
            "external_id": external_id,
            "summary_metrics": {},
            "metadata": {},
            "queued_at": tx.now,
            "created_at": asked.started_at or tx.now,
        },
    )
    experiment_rows.add(tx, experiment.id, trial_count=1)
    tx.changed("trial", trial_id, experiment.id, state=TrialState.PAUSED.value)
    return trial_rows.require(tx, trial_id)


def _reopen(tx: Tx, experiment: Experiment, trial: Trial) -> None:
    """What had ended goes on."""
    if experiment.state in (ExperimentState.DELETING, ExperimentState.DELETE_FAILED):
        raise errors.Refused(f"experiment {experiment.id} is being deleted")
    if experiment.state.has_ended:
        experiment_rows.update(
            tx, experiment.id, state=ExperimentState.ACTIVE, wanted=Wanted.ACTIVE, error=None, ended_at=None
        )
        tx.changed("experiment", experiment.id, experiment.id, state=ExperimentState.ACTIVE.value)
    if trial.state.has_ended:
        trial_rows.update(
            tx, trial.id, state=TrialState.PAUSED, wanted=Wanted.ACTIVE, error=None, ended_at=None, exit=None
        )
