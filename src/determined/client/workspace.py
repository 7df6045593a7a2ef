"""Workspace, Project, User and ResourcePool: handles on where things are kept, who keeps them, and where they run."""

from __future__ import annotations

from determined import errors
from determined.client.master import Master
from determined.wire import requests
from determined.wire.views import PoolView, ProjectView, UserView, WorkspaceView


class Project:
    """Holds experiments."""

    def __init__(self, master: Master, view: ProjectView) -> None:
        self._master = master
        self._view = view

    @property
    def id(self) -> int:
        """Its number."""
        return self._view.id

    @property
    def name(self) -> str:
        """What it is called."""
        return self._view.name

    @property
    def description(self) -> str:
        """A sentence about it."""
        return self._view.description

    @property
    def notes(self) -> str:
        """What people wrote about it."""
        return self._view.notes

    @property
    def archived(self) -> bool:
        """Whether it was put away."""
        return self._view.archived

    @property
    def workspace_id(self) -> int:
        """The workspace it is in."""
        return self._view.workspace_id

    @property
    def n_experiments(self) -> int:
        """How many experiments it holds."""
        return self._view.experiment_count

    @property
    def n_active_experiments(self) -> int:
        """How many of them have not ended."""
        return self._view.active_experiment_count

    def set_name(self, name: str) -> None:
        """Call it something else."""
        self._view = self._master.edit_project(self.id, requests.EditProject(name=name))

    def set_description(self, description: str) -> None:
        """Say a sentence about it."""
        self._view = self._master.edit_project(self.id, requests.EditProject(description=description))

    def set_notes(self, notes: str) -> None:
        """Write about it."""
        self._view = self._master.edit_project(self.id, requests.EditProject(notes=notes))

    def archive(self) -> None:
        """Put it away: it takes no experiments until it is brought back."""
        self._view = self._master.archive_project(self.id)

    def unarchive(self) -> None:
        """Bring it back."""
        self._view = self._master.archive_project(self.id, archive=False)

    def delete(self) -> None:
        """Delete it; it must be empty."""
        self._master.delete_project(self.id)

    def reload(self) -> None:
        """Fetch it again."""
        self._view = self._master.project(self.id)

    def __repr__(self) -> str:
        return f"Project(id={self.id}, name={self.name!r})"


class Workspace:
    """Holds projects."""

    def __init__(self, master: Master, view: WorkspaceView) -> None:
        self._master = master
        self._view = view

    @property
    def id(self) -> int:
        """Its number."""
        return self._view.id

    @property
    def name(self) -> str:
        """What it is called."""
        return self._view.name

    @property
    def archived(self) -> bool:
        """Whether it was put away."""
        return self._view.archived

    def list_projects(self) -> list[Project]:
        """Its projects."""
        return [Project(self._master, view) for view in self._master.projects(self.id)]

    def get_project(self, name: str) -> Project:
        """One of its projects, by name."""
        for project in self.list_projects():
            if project.name == name:
                return project
        raise errors.NotFound(f"there is no project {name} in workspace {self.name}")

    def create_project(self, name: str, description: str = "") -> Project:
        """A new project in it."""
        body = requests.CreateProject(workspace_id=self.id, name=name, description=description)
        return Project(self._master, self._master.create_project(body))

    def delete_project(self, name: str) -> None:
        """Delete one of its projects; it must be empty."""
        self.get_project(name).delete()

    def set_name(self, name: str) -> None:
        """Call it something else."""
        self._view = self._master.edit_workspace(self.id, requests.EditWorkspace(name=name))

    def archive(self) -> None:
        """Put it away."""
        self._view = self._master.archive_workspace(self.id)

    def unarchive(self) -> None:
        """Bring it back."""
        self._view = self._master.archive_workspace(self.id, archive=False)

    def delete(self) -> None:
        """Delete it; it must be empty."""
        self._master.delete_workspace(self.id)

    def reload(self) -> None:
        """Fetch it again."""
        self._view = self._master.workspace(self.id)

    def __repr__(self) -> str:
        return f"Workspace(id={self.id}, name={self.name!r})"


def find_workspace(master: Master, name: str) -> Workspace:
    """A workspace by name; raises NotFound."""
    for view in master.workspaces():
        if view.name == name:
            return Workspace(master, view)
    raise errors.NotFound(f"there is no workspace {name}")


class User:
    """A person, or a program, that may sign in."""

    def __init__(self, master: Master, view: UserView) -> None:
        self._master = master
        self._view = view

    @property
    def user_id(self) -> int:
        """Its number."""
        return self._view.id

    @property
    def username(self) -> str:
        """The name to sign in with."""
        return self._view.username

    @property
    def display_name(self) -> str:
        """The name that is shown."""
        return self._view.display_name

    @property
    def admin(self) -> bool:
        """Whether administration is allowed."""
        return self._view.admin

    @property
    def active(self) -> bool:
        """Whether signing in is allowed."""
        return self._view.active

    def rename(self, new_username: str) -> None:
        """Another name to sign in with."""
        self._view = self._master.edit_user(self.user_id, requests.EditUser(username=new_username))

    def change_display_name(self, display_name: str) -> None:
        """Another name to show."""
        self._view = self._master.edit_user(self.user_id, requests.EditUser(display_name=display_name))

    def change_password(self, new_password: str, current: str | None = None) -> None:
        """Another password; ``current`` is needed for one's own."""
        body = requests.ChangePassword(password=new_password, current=current)
        self._master.change_password(self.user_id, body)

    def activate(self) -> None:
        """Allow signing in."""
        self._view = self._master.edit_user(self.user_id, requests.EditUser(active=True))

    def deactivate(self) -> None:
        """Forbid signing in; sessions and access tokens end."""
        self._view = self._master.edit_user(self.user_id, requests.EditUser(active=False))

    def reload(self) -> None:
        """Fetch it again."""
        self._view = self._master.user(self.user_id)

    def __repr__(self) -> str:
        return f"User(id={self.user_id}, username={self.username!r})"


class ResourcePool:
    """A place that runs gangs."""

    def __init__(self, view: PoolView) -> None:
        self._view = view

    @property
    def name(self) -> str:
        """What it is called."""
        return self._view.name

    @property
    def slots_total(self) -> int:
        """How many slots it has."""
        return self._view.slots_total

    @property
    def slots_used(self) -> int:
        """How many of them are taken."""
        return self._view.slots_used

    def __repr__(self) -> str:
        return f"ResourcePool(name={self.name!r})"
