"""Determined: everything scripts do with a master. ``determined.experimental.client`` has the same as functions."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Union

import yaml

from determined import errors
from determined.client import autostart
from determined.client.checkpoint import Checkpoint
from determined.client.context import pack
from determined.client.credentials import Credentials, Surroundings
from determined.client.enums import ExperimentSortBy, ExperimentState, ModelSortBy, OrderBy
from determined.client.experiment import Experiment
from determined.client.master import Master, Order
from determined.client.metrics import TrialMetrics, as_trial_metrics
from determined.client.model import Model
from determined.client.paging import every
from determined.client.transport import Session
from determined.client.trial import Trial
from determined.client.workspace import Project, ResourcePool, User, Workspace, find_workspace
from determined.wire import requests

Config = Union[str, "os.PathLike[str]", Mapping[str, Any]]


class Determined:
    """A master, for one user.

    Without ``master`` it is the one of ``DET_MASTER``, else the one of this machine, which is started if there is none.
    Without ``user`` it is whoever is signed in there; on this machine, its owner. ``cert_path`` is a file of
    certificates to trust, ``cert_name`` the name the master's certificate is for; ``noverify`` trusts any.
    """

    def __init__(
        self,
        master: str | None = None,
        user: str | None = None,
        password: str | None = None,
        cert_path: str | None = None,
        cert_name: str | None = None,
        noverify: bool = False,
        *,
        environ: Mapping[str, str] = os.environ,
        say: Callable[[str], None] = lambda sentence: print(sentence, file=sys.stderr),
    ) -> None:
        around = Surroundings.of(environ)
        url = master or around.master
        token: str | None = around.token if master is None and around.master else None
        moved: Callable[[], str | None] | None = None
        if url is None:
            local = autostart.find_or_start(around, environ, say)
            url, owner_token = local.url, local.token
            moved = autostart.whereabouts(around.state_folder)
        else:
            found = autostart.find(around.state_folder)
            owner_token = found.token if found is not None and _same(found.url, url) else None
        verify: Union[str, bool] = False if noverify else cert_path or True
        self._session = Session(url, verify=verify, server_name=cert_name, moved=moved)
        self.master = Master(self._session.url, session=self._session)
        self._credentials = Credentials(around.config_folder)
        user, password = user or around.user, password or (around.password if user in (None, around.user) else None)
        try:
            self._session.token = token or self._token(user, password, owner_token)
        except BaseException:
            self._session.close()
            raise

    def logout(self) -> None:
        """End the session, if one was begun here or before; this object is of no use after that."""
        self.master.logout()
        self._credentials.forget(self.master.url)
        self._session.token = None

    # Experiments, trials, checkpoints.

    def create_experiment(
        self,
        config: Config,
        model_dir: Union[str, os.PathLike[str], None] = None,
        includes: Sequence[Union[str, os.PathLike[str]]] = (),
        parent_id: int | None = None,
        project_id: int | None = None,
        template: str | None = None,
    ) -> Experiment:
        """Submit an experiment: a config (a file or a map), and the folder of its code.

        Raises InvalidConfigurationException that lists every mistake of the config.
        """
        text, file, hint = _written(config)
        packed = pack(model_dir, tuple(includes)) if model_dir is not None or includes else None
        if packed is not None and not self.master.has_context(packed.sha256):
            self.master.upload_context(packed.sha256, packed.content)
        body = requests.CreateExperiment(
            config=text,
            file=file,
            name_hint=hint or (pathlib.Path(model_dir).resolve().name if model_dir is not None else None),
            template=template,
            context_sha256=None if packed is None else packed.sha256,
            python=sys.executable,
            project_id=project_id,
            parent_id=parent_id,
        )
        created = self.master.create_experiment(body)
        assert created.experiment is not None
        return Experiment(self.master, created.experiment)

    def get_experiment(self, experiment_id: int) -> Experiment:
        """An experiment by its number."""
        return Experiment(self.master, self.master.experiment(experiment_id))

    def list_experiments(
        self,
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
        by = ExperimentSortBy(sort_by or ExperimentSortBy.ID).value
        order: Order = "asc" if order_by is not None and OrderBy(order_by) is OrderBy.ASCENDING else "desc"
        pages = every(
            lambda after, size: self.master.experiments(
                ids=experiment_ids,
                labels=labels,
                users=users,
                states=None if states is None else [ExperimentState(state).value for state in states],
                name=name,
                project_id=project_id,
                with_config=True,
                sort_by=by,
                order=order,
                after=after,
                limit=size,
            )
        )
        return [Experiment(self.master, view) for view in pages]

    def iter_experiments(self, *args: Any, **kwargs: Any) -> Iterator[Experiment]:
        """``list_experiments`` by another name."""
        return iter(self.list_experiments(*args, **kwargs))

    def get_trial(self, trial_id: int) -> Trial:
        """A trial by its number."""
        return Trial(self.master, self.master.trial(trial_id))

    def get_checkpoint(self, uuid: str) -> Checkpoint:
        """A checkpoint by its id, or an unambiguous beginning of it."""
        return Checkpoint(self.master, self.master.checkpoint(uuid))

    def iter_trials_metrics(self, trial_ids: Sequence[int], group: str | None = None) -> Iterator[TrialMetrics]:
        """Every report of metrics of several trials, in order of trial, group and steps."""
        for trial_id in trial_ids:
            yield from map(as_trial_metrics, self.master.all_trial_metrics(trial_id, group))

    def stream_trials_metrics(self, trial_ids: Sequence[int], group: str | None = None) -> Iterator[TrialMetrics]:
        """``iter_trials_metrics`` by its older name."""
        return self.iter_trials_metrics(trial_ids, group)

    # The model registry.

    def create_model(
        self,
        name: str,
        description: str | None = "",
        metadata: Mapping[str, Any] | None = None,
        labels: Sequence[str] | None = None,
        workspace_name: str | None = None,
    ) -> Model:
        """Register a model under a name."""
        workspace_id = None if workspace_name is None else find_workspace(self.master, workspace_name).id
        body = requests.CreateModel(
            name=name,
            description=description or "",
            metadata=dict(metadata or {}),
            labels=list(labels or ()),
            workspace_id=workspace_id,
        )
        return Model(self.master, self.master.create_model(body))

    def get_model(self, identifier: Union[str, int]) -> Model:
        """A model by its name or number."""
        return Model(self.master, self.master.model(identifier))

    def get_model_by_id(self, model_id: int) -> Model:
        """A model by its number."""
        return self.get_model(model_id)

    def list_models(
        self,
        sort_by: ModelSortBy = ModelSortBy.NAME,
        order_by: OrderBy = OrderBy.ASCENDING,
        name: str | None = None,
        description: str | None = None,
        model_id: int | None = None,
        workspace_names: Sequence[str] | None = None,
        workspace_ids: Sequence[int] | None = None,
    ) -> list[Model]:
        """The models that fit all that is given; ``name`` and ``description`` need only be contained."""
        within = None if workspace_ids is None else set(workspace_ids)
        if workspace_names is not None:
            within = (within or set()) | {find_workspace(self.master, one).id for one in workspace_names}
        views = [
            view
            for view in self.master.models()
            if (name or "").lower() in view.name.lower()
            and (description or "").lower() in view.description.lower()
            and model_id in (None, view.id)
            and (within is None or view.workspace_id in within)
        ]
        by = ModelSortBy(sort_by).value
        views = sorted(
            (view for view in views if getattr(view, by) is not None), key=lambda view: getattr(view, by)
        ) + [view for view in views if getattr(view, by) is None]
        if OrderBy(order_by) is OrderBy.DESCENDING:
            views.reverse()
        return [Model(self.master, view) for view in views]

    def get_models(self, *args: Any, **kwargs: Any) -> list[Model]:
        """``list_models`` by its older name."""
        return self.list_models(*args, **kwargs)

    def get_model_labels(self) -> list[str]:
        """The labels of all models, the most used first."""
        counts: dict[str, int] = {}
        for view in self.master.models():
            for label in view.labels:
                counts[label] = counts.get(label, 0) + 1
        return sorted(counts, key=lambda label: (-counts[label], label))

    # Workspaces, projects, users, pools.

    def create_workspace(self, name: str) -> Workspace:
        """A new workspace."""
        return Workspace(self.master, self.master.create_workspace(name))

    def get_workspace(self, name: str) -> Workspace:
        """A workspace by its name."""
        return find_workspace(self.master, name)

    def list_workspaces(self) -> list[Workspace]:
        """All workspaces."""
        return [Workspace(self.master, view) for view in self.master.workspaces()]

    def delete_workspace(self, name: str) -> None:
        """Delete a workspace; it must be empty."""
        find_workspace(self.master, name).delete()

    def get_project(self, project_id: int) -> Project:
        """A project by its number."""
        return Project(self.master, self.master.project(project_id))

    def list_projects(self, workspace_id: int | None = None) -> list[Project]:
        """All projects, or those of a workspace."""
        return [Project(self.master, view) for view in self.master.projects(workspace_id)]

    def create_user(
        self, username: str, admin: bool, password: str | None = None, remote: Literal[False] = False
    ) -> User:
        """A new user. ``remote`` users, who sign in elsewhere, do not exist here."""
        if remote:
            raise errors.Refused("users who sign in elsewhere do not exist here; give a password")
        body = requests.CreateUser(username=username, admin=admin, password=password)
        return User(self.master, self.master.create_user(body))

    def get_user_by_id(self, user_id: int) -> User:
        """A user by number."""
        return User(self.master, self.master.user(user_id))

    def get_user_by_name(self, user_name: str) -> User:
        """A user by name."""
        for view in self.master.users():
            if view.username == user_name:
                return User(self.master, view)
        raise errors.NotFound(f"there is no user {user_name}")

    def whoami(self) -> User:
        """Who this is."""
        return User(self.master, self.master.me())

    def get_session_username(self) -> str:
        """The name of who this is."""
        return self.whoami().username

    def list_users(self, active: bool | None = None) -> list[User]:
        """All users, or only those who may sign in, or who may not."""
        return [User(self.master, view) for view in self.master.users() if active in (None, view.active)]

    def list_resource_pools(self) -> list[ResourcePool]:
        """The places that run gangs."""
        return [ResourcePool(view) for view in self.master.pools()]

    def _token(self, user: str | None, password: str | None, owner_token: str | None) -> str | None:
        url = self.master.url
        if user is not None and password is not None:
            session = self.master.login(user, password)
            self._credentials.remember(url, user, session.token)
            return session.token
        remembered = self._credentials.token(url, user)
        if remembered is not None:
            return remembered
        if owner_token is not None and user is None:
            return owner_token
        who = f" as {user}" if user else ""
        raise errors.Unauthenticated(
            f"nobody is signed in{who} to the master at {url}; sign in with `det user login`, or give user and password"
        )


def _written(config: Config) -> tuple[str, str | None, str | None]:
    """The config as text, what messages call it, and what names an experiment whose config does not."""
    if isinstance(config, Mapping):
        return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True), None, None
    path = pathlib.Path(config)
    try:
        return path.read_text(encoding="utf-8-sig"), os.fspath(config), path.resolve().parent.name
    except OSError as error:
        raise errors.InvalidConfigurationException(f"{path} cannot be read: {error.strerror}") from None


def _same(one: str, other: str) -> bool:
    return _plain(one) == _plain(other)


def _plain(url: str) -> str:
    full = url if "://" in url else f"http://{url}"
    return full.rstrip("/").replace("//localhost", "//127.0.0.1")
