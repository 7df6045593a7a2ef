"""What people ask the master for: one model for each body that the API takes.

Unknown fields are refused, so that a slip is told instead of ignored. A field that is absent in an Edit stays as it is.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic

Scope = Literal["read", "write", "admin"]

Id = Annotated[int, pydantic.Field(ge=1, le=2**63 - 1)]

MONTH_SECONDS = 30 * 86400.0


class Request(pydantic.BaseModel):
    """Base of all."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Login(Request):
    """Sign in with a password. A browser asks for a cookie, which no script can read, instead of a token."""

    username: str
    password: str
    cookie: bool = False


class Setup(Request):
    """The owner's first password, by the secret that the master's log told when it was first started."""

    secret: str
    password: str
    cookie: bool = False


class CreateUser(Request):
    """A new user; without a password they cannot sign in until one is set."""

    username: str
    display_name: str = ""
    password: str | None = None
    admin: bool = False


class EditUser(Request):
    """Changes to a user."""

    username: str | None = None
    display_name: str | None = None
    admin: bool | None = None
    active: bool | None = None


class ChangePassword(Request):
    """A new password; ``current`` is needed for one's own. All other sessions and access tokens of that user end."""

    password: str
    current: str | None = None


class CreateToken(Request):
    """A token for a program. It may do no more than its maker, and no more than its scopes."""

    name: str = ""
    scopes: list[Scope] = ["read", "write"]
    expires_in_seconds: float | None = MONTH_SECONDS
    user_id: Id | None = None  # an admin may make one for somebody else


class CreateWorkspace(Request):
    """A new workspace."""

    name: str


class EditWorkspace(Request):
    """Changes to a workspace."""

    name: str | None = None


class CreateProject(Request):
    """A new project in a workspace."""

    workspace_id: Id
    name: str
    description: str = ""


class EditProject(Request):
    """Changes to a project; ``workspace_id`` moves it."""

    name: str | None = None
    description: str | None = None
    notes: str | None = None
    workspace_id: Id | None = None


class CreateExperiment(Request):
    """A submission. ``config`` is the YAML as it was written; ``file`` is what messages call it."""

    config: str
    file: str | None = None
    overrides: list[str] = []
    name_hint: str | None = None  # names an experiment whose config does not: the folder's name
    template: str | None = None
    context_sha256: str | None = None  # uploaded before, by PUT /contexts/{sha256}
    python: str | None = None  # the submitter's interpreter, used by pools on the same machine
    project_id: Id | None = None
    paused: bool = False
    check_only: bool = False  # say what is wrong, or what it would become, and create nothing
    test: bool = False  # one batch of one trial, archived
    parent_id: Id | None = None  # the experiment it was forked from


class ContinueExperiment(Request):
    """Train an ended experiment's trials on, with changes to its config (``a.b=c``)."""

    overrides: list[str] = []


class EditExperiment(Request):
    """Changes to an experiment: what it is called, and what it may use and keep."""

    name: str | None = None
    description: str | None = None
    notes: str | None = None
    labels: list[str] | None = None
    priority: int | None = pydantic.Field(None, ge=1, le=99)
    weight: float | None = pydantic.Field(None, gt=0)
    max_slots: int | None = pydantic.Field(None, ge=0, le=2**31 - 1)
    resource_pool: str | None = None
    save_experiment_best: int | None = pydantic.Field(None, ge=0, le=2**31 - 1)
    save_trial_best: int | None = pydantic.Field(None, ge=0, le=2**31 - 1)
    save_trial_latest: int | None = pydantic.Field(None, ge=0, le=2**31 - 1)
    log_retention_days: int | None = pydantic.Field(None, ge=-1, le=32767)


class Move(Request):
    """Put an experiment into another project, or a model or project into another workspace."""

    to: Id


class Bulk(Request):
    """One operation on several experiments; each answers for itself."""

    ids: list[Id]
    operation: Literal["activate", "pause", "cancel", "kill", "delete", "archive", "unarchive"]


class PreviewSearch(Request):
    """What a search would do, before anything is spent."""

    config: str
    file: str | None = None
    overrides: list[str] = []
    seed: int | None = pydantic.Field(None, ge=0, le=2**31 - 1)


class CreateTask(Request):
    """A job, a command, a notebook or a TensorBoard. ``config`` is YAML, laid over by ``overrides``."""

    kind: Literal["job", "command", "notebook", "tensorboard"]
    config: str = ""
    file: str | None = None
    overrides: list[str] = []
    template: str | None = None
    arguments: list[str] = []  # of a command; ids of experiments for a TensorBoard
    context_sha256: str | None = None
    python: str | None = None
    paused: bool = False


class EditJob(Request):
    """Changes to a job of the queue (an experiment or a task)."""

    priority: int | None = pydantic.Field(None, ge=1, le=99)
    weight: float | None = pydantic.Field(None, gt=0)
    resource_pool: str | None = None
    ahead_of: str | None = None  # another job's id
    behind: str | None = None


class EditAgent(Request):
    """Whether a machine, or one of its slots, takes work; a draining one finishes what it has."""

    enabled: bool | None = None
    drain: bool | None = None


class EditMetadata(Request):
    """Changes to the metadata of a checkpoint or model: top-level keys are replaced whole, or removed."""

    set: dict[str, Any] = {}
    remove: list[str] = []


class DeleteCheckpoints(Request):
    """Delete checkpoints, or only those of their files that match one of ``globs``."""

    uuids: list[str]
    globs: list[str] = []


class CreateModel(Request):
    """A new registered model."""

    name: str
    description: str = ""
    labels: list[str] = []
    metadata: dict[str, Any] = {}
    workspace_id: Id | None = None


class EditModel(Request):
    """Changes to a registered model."""

    name: str | None = None
    description: str | None = None
    notes: str | None = None
    labels: list[str] | None = None
    metadata: dict[str, Any] | None = None
    workspace_id: Id | None = None


class RegisterVersion(Request):
    """A checkpoint becomes the next version of a model."""

    checkpoint_uuid: str
    name: str = ""
    comment: str = ""
    notes: str = ""
    labels: list[str] = []
    metadata: dict[str, Any] = {}


class EditVersion(Request):
    """Changes to a version."""

    name: str | None = None
    comment: str | None = None
    notes: str | None = None
    labels: list[str] | None = None
    metadata: dict[str, Any] | None = None


class SetTemplate(Request):
    """A piece of configuration that others start from, as YAML."""

    config: str
    workspace_id: Id | None = None


class RegisterRun(Request):
    """A run that no master started reports to this one. The same external ids are the same run, resumed."""

    name: str | None = None
    config: dict[str, Any] = {}
    hparams: dict[str, Any] = {}
    description: str | None = None
    labels: list[str] = []
    workspace: str | None = None
    project: str | None = None
    external_experiment_id: str | None = None
    external_trial_id: str | None = None
    # A run that was trained before, and is only brought here: what it is to be shown as.
    state: Literal["active", "completed", "error"] = "active"
    started_at: float | None = None


class SetMessage(Request):
    """A sentence that everybody sees: maintenance at nine."""

    message: str
