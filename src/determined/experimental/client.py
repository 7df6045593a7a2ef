"""A master, from Python: submit experiments, wait for them, read what they left.

>>> from determined.experimental import client
>>> client.ExperimentState.COMPLETED.value
'COMPLETED'

``login`` is optional: the first call that needs a master finds it by ``DET_MASTER``, or else uses the one of this
machine, which it starts if there is none. For several masters at once make objects of the class ``Determined``, which
has every function of this module as a method::

    experiment = client.create_experiment("grid.yaml", "code")
    experiment.wait()
    best = experiment.list_checkpoints(max_results=1)[0]
    print(best.training.hparams, best.download())
    frame = experiment.metrics_to_pandas("validation")
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Union

from determined.client.checkpoint import Checkpoint as Checkpoint
from determined.client.enums import CheckpointSortBy as CheckpointSortBy
from determined.client.enums import CheckpointState as CheckpointState
from determined.client.enums import DownloadMode as DownloadMode
from determined.client.enums import ExperimentSortBy as ExperimentSortBy
from determined.client.enums import ExperimentState as ExperimentState
from determined.client.enums import LogLevel as LogLevel
from determined.client.enums import ModelSortBy as ModelSortBy
from determined.client.enums import OrderBy as OrderBy
from determined.client.enums import TrialSortBy as TrialSortBy
from determined.client.enums import TrialState as TrialState
from determined.client.experiment import Experiment as Experiment
from determined.client.metrics import TrialMetrics as TrialMetrics
from determined.client.model import Model as Model
from determined.client.model import ModelVersion as ModelVersion
from determined.client.sdk import Config, Determined
from determined.client.trial import Trial as Trial
from determined.client.workspace import Project as Project
from determined.client.workspace import ResourcePool as ResourcePool
from determined.client.workspace import User as User
from determined.client.workspace import Workspace as Workspace

__all__ = [
    "Checkpoint",
    "CheckpointSortBy",
    "CheckpointState",
    "Determined",
    "DownloadMode",
    "Experiment",
    "ExperimentSortBy",
    "ExperimentState",
    "LogLevel",
    "Model",
    "ModelSortBy",
    "ModelVersion",
    "OrderBy",
    "Project",
    "ResourcePool",
    "Trial",
    "TrialMetrics",
    "TrialSortBy",
    "TrialState",
    "User",
    "Workspace",
    "create_experiment",
    "create_model",
    "create_user",
    "create_workspace",
    "delete_workspace",
    "get_checkpoint",
    "get_experiment",
    "get_model",
    "get_model_by_id",
    "get_model_labels",
    "get_models",
    "get_project",
    "get_session_username",
    "get_trial",
    "get_user_by_id",
    "get_user_by_name",
    "get_workspace",
    "iter_experiments",
    "iter_trials_metrics",
    "list_experiments",
    "list_models",
    "list_projects",
    "list_resource_pools",
    "list_users",
    "list_workspaces",
    "login",
    "logout",
    "stream_trials_metrics",
    "whoami",
]

_determined: Determined | None = None


def login(
    master: str | None = None,
    user: str | None = None,
    password: str | None = None,
    cert_path: str | None = None,
    cert_name: str | None = None,
    noverify: bool = False,
) -> None:
    """Choose the master and the user of all functions here; see ``Determined`` for the defaults.

    Raises ValueError when it was chosen already.
    """
    global _determined
    if _determined is not None:
        raise ValueError(
            f"already signed in to {_determined.master.url}; call logout() first, or use Determined(...) for another"
        )
    _determined = Determined(master, user, password, cert_path, cert_name, noverify)


def logout() -> None:
    """End the session. The next call chooses a master anew."""
    global _determined
    if _determined is not None:
        leaving, _determined = _determined, None
        leaving.logout()


def _here() -> Determined:
    global _determined
    if _determined is None:
        _determined = Determined()
    return _determined


def create_experiment(
    config: Config,
    model_dir: Union[str, os.PathLike[str], None] = None,
    includes: Sequence[Union[str, os.PathLike[str]]] = (),
    parent_id: int | None = None,
    project_id: int | None = None,
    template: str | None = None,
) -> Experiment:
    """Submit an experiment: a config (a file or a map), and the folder of its code."""
    return _here().create_experiment(config, model_dir, includes, parent_id, project_id, template)


def get_experiment(experiment_id: int) -> Experiment:
    """An experiment by its number."""
    return _here().get_experiment(experiment_id)


def list_experiments(
    sort_by: ExperimentSortBy | None = None,
    order_by: OrderBy | None = None,
    experiment_ids: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
    users: Sequence[str] | None = None,
    states: Sequence[ExperimentState] | None = None,
    name: str | None = None,
    project_id: int | None = None,
) -> list[Experiment]:
    """The experiments that fit all that is given; the newest first unless told otherwise."""
    return _here().list_experiments(sort_by, order_by, experiment_ids, labels, users, states, name, project_id)


def iter_experiments(*args: Any, **kwargs: Any) -> Iterator[Experiment]:
    """``list_experiments`` by another name."""
    return iter(list_experiments(*args, **kwargs))


def get_trial(trial_id: int) -> Trial:
    """A trial by its number."""
    return _here().get_trial(trial_id)


def get_checkpoint(uuid: str) -> Checkpoint:
    """A checkpoint by its id, or an unambiguous beginning of it."""
    return _here().get_checkpoint(uuid)


def iter_trials_metrics(trial_ids: Sequence[int], group: str | None = None) -> Iterator[TrialMetrics]:
    """Every report of metrics of several trials, in order of trial, group and steps."""
    return _here().iter_trials_metrics(trial_ids, group)


def stream_trials_metrics(trial_ids: Sequence[int], group: str | None = None) -> Iterator[TrialMetrics]:
    """``iter_trials_metrics`` by its older name."""
    return _here().iter_trials_metrics(trial_ids, group)


def create_model(
    name: str,
    description: str | None = "",
    metadata: Mapping[str, Any] | None = None,
    labels: Sequence[str] | None = None,
    workspace_name: str | None = None,
) -> Model:
    """Register a model under a name."""
    return _here().create_model(name, description, metadata, labels, workspace_name)


def get_model(identifier: Union[str, int]) -> Model:
    """A model by its name or number."""
    return _here().get_model(identifier)


def get_model_by_id(model_id: int) -> Model:
    """A model by its number."""
    return _here().get_model(model_id)


def list_models(
    sort_by: ModelSortBy = ModelSortBy.NAME,
    order_by: OrderBy = OrderBy.ASCENDING,
    name: str | None = None,
    description: str | None = None,
    model_id: int | None = None,
    workspace_names: Sequence[str] | None = None,
    workspace_ids: Sequence[int] | None = None,
) -> list[Model]:
    """The models that fit all that is given; ``name`` and ``description`` need only be contained."""
    return _here().list_models(sort_by, order_by, name, description, model_id, workspace_names, workspace_ids)


def get_models(*args: Any, **kwargs: Any) -> list[Model]:
    """``list_models`` by its older name."""
    return list_models(*args, **kwargs)


def get_model_labels() -> list[str]:
    """The labels of all models, the most used first."""
    return _here().get_model_labels()


def create_workspace(name: str) -> Workspace:
    """A new workspace."""
    return _here().create_workspace(name)


def get_workspace(name: str) -> Workspace:
    """A workspace by its name."""
    return _here().get_workspace(name)


def list_workspaces() -> list[Workspace]:
    """All workspaces."""
    return _here().list_workspaces()


def delete_workspace(name: str) -> None:
    """Delete a workspace; it must be empty."""
    _here().delete_workspace(name)


def get_project(project_id: int) -> Project:
    """A project by its number."""
    return _here().get_project(project_id)


def list_projects(workspace_id: int | None = None) -> list[Project]:
    """All projects, or those of a workspace."""
    return _here().list_projects(workspace_id)


def create_user(username: str, admin: bool, password: str | None = None, remote: Literal[False] = False) -> User:
    """A new user."""
    return _here().create_user(username, admin, password, remote)


def get_user_by_id(user_id: int) -> User:
    """A user by number."""
    return _here().get_user_by_id(user_id)


def get_user_by_name(user_name: str) -> User:
    """A user by name."""
    return _here().get_user_by_name(user_name)


def whoami() -> User:
    """Who this is."""
    return _here().whoami()


def get_session_username() -> str:
    """The name of who this is."""
    return _here().get_session_username()


def list_users(active: bool | None = None) -> list[User]:
    """All users, or only those who may sign in, or who may not."""
    return _here().list_users(active)


def list_resource_pools() -> list[ResourcePool]:
    """The places that run gangs."""
    return _here().list_resource_pools()
