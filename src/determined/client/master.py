"""Master: every route of the API as one typed method. Bodies are ``wire.requests``, answers ``wire.views``."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

import pydantic

from determined.client.transport import Query, Session, quoted
from determined.wire import reports, requests
from determined.wire.views import (
    AgentView,
    AllocationView,
    Change,
    CheckpointView,
    Created,
    Done,
    ExperimentView,
    LogLine,
    MasterInfo,
    MetricNames,
    MetricsRow,
    ModelVersionView,
    ModelView,
    Page,
    PoolView,
    PreviewView,
    ProjectView,
    QueueEntry,
    RunView,
    SeriesView,
    TaskView,
    TemplateView,
    TokenView,
    TrialView,
    UserView,
    WorkspaceView,
)
from determined.wire.views import (
    Session as SignIn,
)

Order = Literal["asc", "desc"]
ExperimentOperation = Literal["activate", "pause", "cancel", "kill", "archive", "unarchive", "retry"]
TaskOperation = Literal["activate", "pause", "cancel", "kill"]

M = TypeVar("M", bound=pydantic.BaseModel)
K = TypeVar("K")

# A stream is silent between two lines; the master sends something at least this often.
_STREAM_SECONDS = 90.0


class Master:
    """The master at ``url``, for whoever has ``token``.

    Methods are named after what they return or do. Lists take ``offset`` and ``limit``; what may be ``sort_by``\\ ed is
    said by the route. Whatever the master refuses is raised as the class of ``determined.errors`` that it names.
    """

    def __init__(self, url: str, token: str | None = None, *, session: Session | None = None) -> None:
        self.session = session or Session(url, token)

    @property
    def url(self) -> str:
        """Where it is."""
        return self.session.url

    def close(self) -> None:
        """Let go of its connections."""
        self.session.close()

    # The master itself.

    def health(self) -> bool:
        """Whether it serves; raises MasterUnreachable if it does not answer."""
        return self.session.call("GET", "/health").status == 200

    def info(self) -> MasterInfo:
        """What anyone may know about it."""
        return self._get(MasterInfo, "/master")

    def config(self) -> dict[str, Any]:
        """Its settings, secrets masked."""
        return dict(self.session.get("/master/config"))

    def master_logs(self, tail: int | None = None) -> list[str]:
        """The last lines of its own log."""
        return self.session.call("GET", "/master/logs", query={"tail": tail}).body.decode(errors="replace").splitlines()

    def set_message(self, message: str) -> None:
        """Show everybody a sentence; an empty one removes it."""
        self._send("PUT", "/master/message", requests.SetMessage(message=message))

    def stop_master(self) -> None:
        """End the master. What runs goes on, and is found again by the next one."""
        self._send("POST", "/master/stop")

    # Who is who.

    def login(self, username: str, password: str) -> SignIn:
        """Sign in; the answer's token is for a new Master."""
        return self._make(SignIn, "POST", "/auth/login", requests.Login(username=username, password=password))

    def setup(self, body: Mapping[str, Any]) -> SignIn:
        """Set the first password, with the secret that the master showed when it first started."""
        return SignIn.model_validate_json(self.session.call("POST", "/auth/setup", body=dict(body)).body)

    def logout(self) -> None:
        """End this token."""
        self._send("POST", "/auth/logout")

    def me(self) -> UserView:
        """Who this token belongs to."""
        return self._get(UserView, "/me")

    def users(self) -> list[UserView]:
        """Everybody."""
        return self._several(UserView, "/users")

    def user(self, user_id: int) -> UserView:
        """One of them."""
        return self._get(UserView, f"/users/{quoted(user_id)}")

    def create_user(self, body: requests.CreateUser) -> UserView:
        """Make a user."""
        return self._make(UserView, "POST", "/users", body)

    def edit_user(self, user_id: int, body: requests.EditUser) -> UserView:
        """Change a user."""
        return self._make(UserView, "PATCH", f"/users/{quoted(user_id)}", body)

    def change_password(self, user_id: int, body: requests.ChangePassword) -> None:
        """Set a password."""
        self._send("POST", f"/users/{quoted(user_id)}/password", body)

    def tokens(self) -> list[TokenView]:
        """The caller's tokens; an admin sees all."""
        return self._several(TokenView, "/tokens")

    def create_token(self, body: requests.CreateToken) -> TokenView:
        """Make a token; only this answer shows its secret."""
        return self._make(TokenView, "POST", "/tokens", body)

    def revoke_token(self, token_id: int) -> None:
        """End a token."""
        self._send("DELETE", f"/tokens/{quoted(token_id)}")

    # Workspaces and projects.

    def workspaces(self) -> list[WorkspaceView]:
        """All workspaces."""
        return self._several(WorkspaceView, "/workspaces")

    def workspace(self, workspace_id: int) -> WorkspaceView:
        """One workspace."""
        return self._get(WorkspaceView, f"/workspaces/{quoted(workspace_id)}")

    def create_workspace(self, name: str) -> WorkspaceView:
        """Make a workspace."""
        return self._make(WorkspaceView, "POST", "/workspaces", requests.CreateWorkspace(name=name))

    def edit_workspace(self, workspace_id: int, body: requests.EditWorkspace) -> WorkspaceView:
        """Rename a workspace."""
        return self._make(WorkspaceView, "PATCH", f"/workspaces/{quoted(workspace_id)}", body)

    def archive_workspace(self, workspace_id: int, archive: bool = True) -> WorkspaceView:
        """Archive a workspace, or bring it back."""
        verb = "archive" if archive else "unarchive"
        return self._make(WorkspaceView, "POST", f"/workspaces/{quoted(workspace_id)}/{verb}")

    def delete_workspace(self, workspace_id: int) -> None:
        """Delete an empty workspace."""
        self._send("DELETE", f"/workspaces/{quoted(workspace_id)}")

    def projects(self, workspace_id: int | None = None) -> list[ProjectView]:
        """All projects, or those of a workspace."""
        return self._several(ProjectView, "/projects", {"workspace_id": workspace_id})

    def project(self, project_id: int) -> ProjectView:
        """One project."""
        return self._get(ProjectView, f"/projects/{quoted(project_id)}")

    def create_project(self, body: requests.CreateProject) -> ProjectView:
        """Make a project."""
        return self._make(ProjectView, "POST", "/projects", body)

    def edit_project(self, project_id: int, body: requests.EditProject) -> ProjectView:
        """Change or move a project."""
        return self._make(ProjectView, "PATCH", f"/projects/{quoted(project_id)}", body)

    def archive_project(self, project_id: int, archive: bool = True) -> ProjectView:
        """Archive a project, or bring it back."""
        verb = "archive" if archive else "unarchive"
        return self._make(ProjectView, "POST", f"/projects/{quoted(project_id)}/{verb}")

    def delete_project(self, project_id: int) -> None:
        """Delete an empty project."""
        self._send("DELETE", f"/projects/{quoted(project_id)}")

    # Code.

    def has_context(self, sha256: str) -> bool:
        """Whether the master has this code already."""
        from determined import errors

        try:
            return self.session.call("HEAD", f"/contexts/{quoted(sha256)}").status == 200
        except errors.NotFound:
            return False

    def upload_context(self, sha256: str, archive: bytes) -> None:
        """Hand over packed code."""
        headers = {"Content-Type": "application/gzip"}
        path = f"/contexts/{quoted(sha256)}"
        self.session.call("PUT", path, data=archive, headers=headers, timeout=300.0)

    def context(self, sha256: str) -> bytes:
        """Packed code."""
        return self.session.call("GET", f"/contexts/{quoted(sha256)}", timeout=300.0).body

    def context_files(self, sha256: str) -> dict[str, int]:
        """The files in it, with their sizes."""
        return dict(self.session.get(f"/contexts/{quoted(sha256)}/files"))

    def context_file(self, sha256: str, path: str) -> bytes:
        """One of its text files."""
        return self.session.call("GET", f"/contexts/{quoted(sha256)}/files/{_path(path)}").body

    # Experiments.

    def create_experiment(self, body: requests.CreateExperiment) -> Created:
        """Submit an experiment, or only check one."""
        return self._make(Created, "POST", "/experiments", body)

    def experiments(
        self,
        *,
        ids: Sequence[int] | None = None,
        states: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
        users: Sequence[str] | None = None,
        name: str | None = None,
        project_id: int | None = None,
        workspace_id: int | None = None,
        archived: bool | None = None,
        search: str | None = None,
        with_config: bool = False,
        sort_by: str = "id",
        order: Order = "desc",
        offset: int = 0,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[ExperimentView]:
        """Some experiments. ``name`` must be contained; ``search`` looks into name, description, labels and id.

        ``after`` is the ``next`` of the page before: pages joined that way have no gaps and nothing twice, whatever is
        created or deleted meanwhile.
        """
        query = {
            "id": ids,
            "state": states,
            "label": labels,
            "user": users,
            "name": name,
            "project_id": project_id,
            "workspace_id": workspace_id,
            "archived": archived,
            "search": search,
            "with_config": with_config or None,
        }
        return self._page(ExperimentView, "/experiments", query, sort_by, order, offset, after, limit)

    def experiment(self, experiment_id: int) -> ExperimentView:
        """One experiment."""
        return self._get(ExperimentView, f"/experiments/{quoted(experiment_id)}")

    def experiment_config(self, experiment_id: int) -> dict[str, Any]:
        """``written``: the YAML as it was submitted; ``config``: what it became. Secrets masked."""
        return dict(self.session.get(f"/experiments/{quoted(experiment_id)}/config"))

    def edit_experiment(self, experiment_id: int, body: requests.EditExperiment) -> ExperimentView:
        """Change an experiment."""
        return self._make(ExperimentView, "PATCH", f"/experiments/{quoted(experiment_id)}", body)

    def operate_experiment(self, experiment_id: int, operation: ExperimentOperation) -> ExperimentView:
        """Activate, pause, cancel, kill, archive, unarchive, or retry its failed trials."""
        return self._make(ExperimentView, "POST", f"/experiments/{quoted(experiment_id)}/{quoted(operation)}")

    def move_experiment(self, experiment_id: int, project_id: int) -> ExperimentView:
        """Put it into another project."""
        body = requests.Move(to=project_id)
        return self._make(ExperimentView, "POST", f"/experiments/{quoted(experiment_id)}/move", body)

    def continue_experiment(self, experiment_id: int, overrides: Sequence[str] = ()) -> ExperimentView:
        """Train it on from where it ended."""
        body = requests.ContinueExperiment(overrides=list(overrides))
        return self._make(ExperimentView, "POST", f"/experiments/{quoted(experiment_id)}/continue", body)

    def delete_experiment(self, experiment_id: int) -> None:
        """Delete it with all it left; the files go in the background."""
        self._send("DELETE", f"/experiments/{quoted(experiment_id)}")

    def operate_experiments(self, body: requests.Bulk) -> list[Done]:
        """One operation on several experiments."""
        return self._several(Done, "/experiments/bulk", method="POST", body=body)

    def experiment_trials(
        self,
        experiment_id: int,
        *,
        states: Sequence[str] | None = None,
        sort_by: str = "id",
        order: Order = "asc",
        offset: int = 0,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[TrialView]:
        """Some of its trials."""
        path = f"/experiments/{quoted(experiment_id)}/trials"
        return self._page(TrialView, path, {"state": states}, sort_by, order, offset, after, limit)

    def experiment_checkpoints(
        self,
        experiment_id: int,
        *,
        states: Sequence[str] | None = None,
        sort_by: str | None = None,
        order: Order | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> Page[CheckpointView]:
        """Some of its checkpoints; by default the best of the searcher's metric first."""
        path = f"/experiments/{quoted(experiment_id)}/checkpoints"
        return self._page(CheckpointView, path, {"state": states}, sort_by, order, offset, None, limit)

    def experiment_metrics(
        self, experiment_id: int, group: str | None = None, *, after_trial: int | None = None
    ) -> Iterator[MetricsRow]:
        """Every report of every trial, in order of trial, group and steps, as they come."""
        path = f"/experiments/{quoted(experiment_id)}/metrics"
        return self._rows(MetricsRow, path, {"group": group, "after_trial": after_trial})

    def search_events(self, experiment_id: int, after: int = -1, limit: int = 1000) -> list[dict[str, Any]]:
        """What its search was told and what it answered."""
        query = {"after": after, "limit": limit}
        return list(self.session.get(f"/experiments/{quoted(experiment_id)}/search-events", query))

    def best_validation(self, experiment_id: int) -> float | None:
        """The best value so far of the searcher's metric."""
        found = self.session.get(f"/experiments/{quoted(experiment_id)}/best")["value"]
        return None if found is None else float(found)

    def preview_search(self, body: requests.PreviewSearch) -> PreviewView:
        """What a search would do."""
        return self._make(PreviewView, "POST", "/search/preview", body)

    # Trials.

    def trial(self, trial_id: int) -> TrialView:
        """One trial."""
        return self._get(TrialView, f"/trials/{quoted(trial_id)}")

    def operate_trial(self, trial_id: int, operation: Literal["kill", "cancel", "continue"]) -> TrialView:
        """Kill, cancel or continue one trial."""
        return self._make(TrialView, "POST", f"/trials/{quoted(trial_id)}/{quoted(operation)}")

    def trial_metrics(
        self, trial_id: int, group: str | None = None, *, after: int | None = None, limit: int = 1000
    ) -> Page[MetricsRow]:
        """Reports of a group (default: validation) with more than ``after`` steps."""
        query = {"group": group, "after": after, "limit": limit}
        found = self.session.call("GET", f"/trials/{quoted(trial_id)}/metrics", query=query)
        return Page[MetricsRow].model_validate_json(found.body)

    def all_trial_metrics(self, trial_id: int, group: str | None = None) -> Iterator[MetricsRow]:
        """Every report of a trial, of all groups or one, as they come."""
        return self._rows(MetricsRow, f"/trials/{quoted(trial_id)}/metrics", {"group": group, "stream": True})

    def metric_names(self, trial_id: int) -> MetricNames:
        """What it has reported."""
        return self._get(MetricNames, f"/trials/{quoted(trial_id)}/metric-names")

    def series(
        self,
        trial_id: int,
        name: str,
        group: str = "validation",
        *,
        points: int = 1000,
        first: int | None = None,
        last: int | None = None,
    ) -> SeriesView:
        """One metric over steps, thinned to so many points."""
        query = {"group": group, "name": name, "points": points, "first": first, "last": last}
        return self._get(SeriesView, f"/trials/{quoted(trial_id)}/series", query)

    def usage(self, trial_id: int, *, after: int | None = None, limit: int = 1000) -> Page[MetricsRow]:
        """What its processes used of the machine."""
        query = {"after": after, "limit": limit}
        found = self.session.call("GET", f"/trials/{quoted(trial_id)}/usage", query=query)
        return Page[MetricsRow].model_validate_json(found.body)

    def trial_checkpoints(
        self,
        trial_id: int,
        *,
        states: Sequence[str] | None = None,
        sort_by: str | None = None,
        order: Order | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> Page[CheckpointView]:
        """Some of its checkpoints; by default the best of the searcher's metric first."""
        path = f"/trials/{quoted(trial_id)}/checkpoints"
        return self._page(CheckpointView, path, {"state": states}, sort_by, order, offset, None, limit)

    def trial_allocations(self, trial_id: int) -> list[AllocationView]:
        """Every attempt to run it."""
        return self._several(AllocationView, f"/trials/{quoted(trial_id)}/allocations")

    # Logs.

    def trial_logs(self, trial_id: int, **wanted: Any) -> list[LogLine]:
        """Lines of a trial's log; see ``task_logs``."""
        return self.task_logs(f"trial-{trial_id}", **wanted)

    def follow_trial_logs(self, trial_id: int, **wanted: Any) -> Iterator[LogLine]:
        """Lines of a trial's log until it ends; see ``task_logs``."""
        return self.follow_task_logs(f"trial-{trial_id}", **wanted)

    def task_logs(
        self,
        task_id: str,
        *,
        after: int | None = None,
        before: int | None = None,
        limit: int | None = None,
        tail: int | None = None,
        rank: Sequence[int] | None = None,
        level: str | None = None,
        stdtype: Sequence[str] | None = None,
        source: Sequence[str] | None = None,
        search: str | None = None,
        regex: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> list[LogLine]:
        """Lines of a task's log: from the start, after or before a line's id, or the last ``tail``.

        ``level`` is the least severe one wanted; ``search`` is text the line contains, ``regex`` a pattern.
        """
        query: dict[str, Any] = {"after": after, "before": before, "limit": limit, "tail": tail, "rank": rank}
        query |= {"level": level, "stdtype": stdtype, "source": source, "search": search, "regex": regex}
        query |= {"since": since, "until": until}
        return self._several(LogLine, _logs(task_id), query)

    def follow_task_logs(self, task_id: str, **wanted: Any) -> Iterator[LogLine]:
        """The same lines, and those to come until the task ends."""
        return self._rows(LogLine, _logs(task_id), {**wanted, "follow": True})

    # Checkpoints.

    def checkpoint(self, uuid: str) -> CheckpointView:
        """One checkpoint, by its id or an unambiguous start of it."""
        return self._get(CheckpointView, f"/checkpoints/{quoted(uuid)}")

    def edit_checkpoint_metadata(self, uuid: str, body: requests.EditMetadata) -> CheckpointView:
        """Set and remove keys of its metadata."""
        return self._make(CheckpointView, "PATCH", f"/checkpoints/{quoted(uuid)}/metadata", body)

    def delete_checkpoints(self, body: requests.DeleteCheckpoints) -> list[Done]:
        """Delete checkpoints, or some of their files; in the background."""
        return self._several(Done, "/checkpoints/delete", method="POST", body=body)

    def checkpoint_files(self, uuid: str) -> dict[str, int]:
        """Its files, with their sizes."""
        return dict(self.session.get(f"/checkpoints/{quoted(uuid)}/files"))

    def download_checkpoint_file(self, uuid: str, path: str, target: pathlib.Path) -> None:
        """Fetch one file of a checkpoint; what an earlier attempt left in ``target`` is not fetched again."""
        have = target.stat().st_size if target.exists() else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        where = f"/checkpoints/{quoted(uuid)}/files/{_path(path)}"
        with self.session.stream(where, headers=headers) as stream:
            with open(target, "ab" if stream.status == 206 else "wb") as file:
                for piece in stream.pieces():
                    file.write(piece)

    # Tasks.

    def create_task(self, body: requests.CreateTask) -> TaskView:
        """Start a job, a command, a notebook or a TensorBoard."""
        return self._make(TaskView, "POST", "/tasks", body)

    def tasks(
        self,
        *,
        kinds: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        users: Sequence[str] | None = None,
        sort_by: str = "created_at",
        order: Order = "desc",
        offset: int = 0,
        limit: int = 100,
    ) -> Page[TaskView]:
        """Some tasks."""
        query = {"kind": kinds, "state": states, "user": users}
        return self._page(TaskView, "/tasks", query, sort_by, order, offset, None, limit)

    def task(self, task_id: str) -> TaskView:
        """One task."""
        return self._get(TaskView, f"/tasks/{quoted(task_id)}")

    def task_config(self, task_id: str) -> dict[str, Any]:
        """Its config, secrets masked."""
        return dict(self.session.get(f"/tasks/{quoted(task_id)}/config"))

    def task_allocations(self, task_id: str) -> list[AllocationView]:
        """Every attempt to run it."""
        return self._several(AllocationView, f"/tasks/{quoted(task_id)}/allocations")

    def operate_task(self, task_id: str, operation: TaskOperation) -> TaskView:
        """Activate, pause, cancel or kill it."""
        return self._make(TaskView, "POST", f"/tasks/{quoted(task_id)}/{quoted(operation)}")

    def delete_task(self, task_id: str) -> None:
        """Delete one that has ended, with its logs."""
        self._send("DELETE", f"/tasks/{quoted(task_id)}")

    # The queue and the machines.

    def jobs(self, pool: str | None = None) -> list[QueueEntry]:
        """The queue, in its order."""
        return self._several(QueueEntry, "/jobs", {"pool": pool})

    def job(self, job_id: str) -> QueueEntry:
        """One job of it."""
        return self._get(QueueEntry, f"/jobs/{quoted(job_id)}")

    def edit_job(self, job_id: str, body: requests.EditJob) -> QueueEntry:
        """Change a job's priority, weight, pool or place."""
        return self._make(QueueEntry, "PATCH", f"/jobs/{quoted(job_id)}", body)

    def pools(self) -> list[PoolView]:
        """The places that run gangs."""
        return self._several(PoolView, "/pools")

    def agents(self) -> list[AgentView]:
        """The machines."""
        return self._several(AgentView, "/agents")

    def edit_agent(self, agent_id: str, body: requests.EditAgent) -> AgentView:
        """Enable, disable or drain a machine."""
        return self._make(AgentView, "PATCH", f"/agents/{quoted(agent_id)}", body)

    def edit_slot(self, agent_id: str, slot: int, body: requests.EditAgent) -> AgentView:
        """The same for one slot."""
        return self._make(AgentView, "PATCH", f"/agents/{quoted(agent_id)}/slots/{quoted(slot)}", body)

    # The model registry.

    def models(self) -> list[ModelView]:
        """All models."""
        return self._several(ModelView, "/models")

    def model(self, model: Union[str, int]) -> ModelView:
        """One model, by name or id."""
        return self._get(ModelView, f"/models/{quoted(model)}")

    def create_model(self, body: requests.CreateModel) -> ModelView:
        """Register a model."""
        return self._make(ModelView, "POST", "/models", body)

    def edit_model(self, model: Union[str, int], body: requests.EditModel) -> ModelView:
        """Change a model."""
        return self._make(ModelView, "PATCH", f"/models/{quoted(model)}", body)

    def archive_model(self, model: Union[str, int], archive: bool = True) -> ModelView:
        """Archive a model, or bring it back."""
        return self._make(ModelView, "POST", f"/models/{quoted(model)}/{'archive' if archive else 'unarchive'}")

    def delete_model(self, model: Union[str, int]) -> None:
        """Delete a model. Its checkpoints stay."""
        self._send("DELETE", f"/models/{quoted(model)}")

    def model_versions(self, model: Union[str, int]) -> list[ModelVersionView]:
        """Its versions."""
        return self._several(ModelVersionView, f"/models/{quoted(model)}/versions")

    def model_version(self, model: Union[str, int], version: int) -> ModelVersionView:
        """One version."""
        return self._get(ModelVersionView, f"/models/{quoted(model)}/versions/{quoted(version)}")

    def register_version(self, model: Union[str, int], body: requests.RegisterVersion) -> ModelVersionView:
        """Make a checkpoint its next version."""
        return self._make(ModelVersionView, "POST", f"/models/{quoted(model)}/versions", body)

    def edit_version(self, model: Union[str, int], version: int, body: requests.EditVersion) -> ModelVersionView:
        """Change a version."""
        return self._make(ModelVersionView, "PATCH", f"/models/{quoted(model)}/versions/{quoted(version)}", body)

    def delete_version(self, model: Union[str, int], version: int) -> None:
        """Delete a version. Its checkpoint stays."""
        self._send("DELETE", f"/models/{quoted(model)}/versions/{quoted(version)}")

    # Templates.

    def templates(self) -> list[TemplateView]:
        """All templates."""
        return self._several(TemplateView, "/templates")

    def template(self, name: str) -> TemplateView:
        """One template."""
        return self._get(TemplateView, f"/templates/{quoted(name)}")

    def set_template(self, name: str, body: requests.SetTemplate) -> TemplateView:
        """Make or replace a template."""
        return self._make(TemplateView, "PUT", f"/templates/{quoted(name)}", body)

    def delete_template(self, name: str) -> None:
        """Delete a template."""
        self._send("DELETE", f"/templates/{quoted(name)}")

    # Runs that no master started, and what allocations say.

    def register_run(self, body: requests.RegisterRun) -> RunView:
        """Make a run known, or find it again by its external ids."""
        return self._make(RunView, "POST", "/runs", body)

    def allocation(self, allocation_id: str) -> AllocationView:
        """One attempt."""
        return self._get(AllocationView, f"/allocations/{quoted(allocation_id)}")

    def report(self, allocation_id: str, body: reports.ReportBatch) -> reports.ReportReply:
        """Hand over lines of a spool."""
        return self._make(reports.ReportReply, "POST", f"/allocations/{quoted(allocation_id)}/reports", body)

    def report_exit(self, allocation_id: str, body: reports.ExitReport) -> None:
        """Say that an allocation has ended."""
        self._send("POST", f"/allocations/{quoted(allocation_id)}/exit", body)

    def append_logs(self, allocation_id: str, node_rank: int, offset: int, content: bytes) -> int:
        """Append to the log of a node; returns its size, which says what is missing if ``offset`` was not the end."""
        answer = self.session.call(
            "PUT",
            f"/allocations/{quoted(allocation_id)}/logs",
            query={"node_rank": node_rank, "offset": offset},
            data=content,
            headers={"Content-Type": "application/octet-stream"},
        )
        return int(answer.json()["size"])

    # Changes.

    def changes(self, after: int | None = None) -> Iterator[Change]:
        """What changes, as it does; from now on, or from where one was before."""
        headers = {"Accept": "text/event-stream"}
        with self.session.stream(
            "/changes", query={"after": after}, headers=headers, timeout=_STREAM_SECONDS
        ) as stream:
            for line in stream.lines():
                if line.startswith(b"data:"):
                    yield Change.model_validate_json(line[5:].strip())

    # How all of these are done.

    def _get(self, kind: type[M], path: str, query: Query | None = None) -> M:
        return kind.model_validate_json(self.session.call("GET", path, query=query).body)

    def _make(self, kind: type[M], method: str, path: str, body: pydantic.BaseModel | None = None) -> M:
        return kind.model_validate_json(self._send(method, path, body))

    def _send(self, method: str, path: str, body: pydantic.BaseModel | None = None) -> bytes:
        return self.session.call(method, path, body=_body(body)).body

    def _several(
        self,
        kind: type[K],
        path: str,
        query: Query | None = None,
        *,
        method: str = "GET",
        body: pydantic.BaseModel | None = None,
    ) -> list[K]:
        answer = self.session.call(method, path, query=query, body=_body(body))
        return pydantic.TypeAdapter(list[kind]).validate_json(answer.body)  # type: ignore[valid-type]

    def _page(
        self,
        kind: type[M],
        path: str,
        query: Query,
        sort_by: str | None,
        order: str | None,
        offset: int,
        after: str | None,
        limit: int,
    ) -> Page[M]:
        places = {"sort_by": sort_by, "order": order, "offset": offset or None, "after": after, "limit": limit}
        answer = self.session.call("GET", path, query={**query, **places})
        return Page[kind].model_validate_json(answer.body)  # type: ignore[valid-type]

    def _rows(self, kind: type[M], path: str, query: Query) -> Iterator[M]:
        headers = {"Accept": "application/x-ndjson; nan=constants"}
        with self.session.stream(path, query=query, headers=headers, timeout=_STREAM_SECONDS) as stream:
            for line in stream.lines():
                if line:  # an empty one says only that the master is there
                    yield kind.model_validate_json(line)


def _body(body: pydantic.BaseModel | None) -> bytes | None:
    if body is None:
        return None
    # What was not said is not sent: to the master, absent means "as it is".
    return body.model_dump_json(exclude_unset=isinstance(body, requests.Request)).encode()


def _logs(task_id: str) -> str:
    kind, _, number = task_id.partition("-")
    return f"/trials/{quoted(number)}/logs" if kind == "trial" else f"/tasks/{quoted(task_id)}/logs"


def _path(path: str) -> str:
    return "/".join(map(quoted, path.split("/")))
