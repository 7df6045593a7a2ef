"""Workspaces and projects: where experiments are kept. There is always one of each, for whatever names none."""

from __future__ import annotations

from typing import Any

from determined import errors
from determined.master.records import Project, Workspace
from determined.master.store import projects
from determined.master.store.database import Tx

UNCATEGORIZED = "Uncategorized"
_LONGEST_NAME = 200


def ensure_default(tx: Tx) -> Project:
    """The workspace and the project of experiments that name none; made when a master is first started."""
    workspace = projects.find_workspace(tx, UNCATEGORIZED) or projects.insert_workspace(
        tx, UNCATEGORIZED, None, immutable=True
    )
    return projects.find(tx, workspace.id, UNCATEGORIZED) or projects.insert(
        tx, workspace.id, UNCATEGORIZED, None, immutable=True
    )


def create_workspace(tx: Tx, name: str, user_id: int | None) -> Workspace:
    """A new workspace."""
    name = check_name(name, "a workspace")
    if projects.find_workspace(tx, name) is not None:
        raise errors.Refused(f"there is a workspace {name} already")
    workspace = projects.insert_workspace(tx, name, user_id)
    tx.changed("workspace", workspace.id)
    return workspace


def edit_workspace(tx: Tx, workspace_id: int, name: str | None) -> Workspace:
    """Give a workspace another name."""
    workspace = require_workspace(tx, workspace_id)
    _require_open(workspace, f"workspace {workspace.name}", "edited")
    if name is not None and (name := check_name(name, "a workspace")) != workspace.name:
        if projects.find_workspace(tx, name) is not None:
            raise errors.Refused(f"there is a workspace {name} already")
        projects.update_workspace(tx, workspace_id, name=name)
        tx.changed("workspace", workspace_id)
    return require_workspace(tx, workspace_id)


def archive_workspace(tx: Tx, workspace_id: int, archived: bool) -> Workspace:
    """Put a workspace away with all its projects, or bring it back."""
    workspace = require_workspace(tx, workspace_id)
    _require_own(workspace, f"workspace {workspace.name}", "archived")
    if workspace.archived != archived:
        projects.update_workspace(tx, workspace_id, archived=archived)
        tx.changed("workspace", workspace_id, archived=archived)
    return require_workspace(tx, workspace_id)


def delete_workspace(tx: Tx, workspace_id: int) -> None:
    """Remove a workspace that holds nothing."""
    workspace = require_workspace(tx, workspace_id)
    _require_own(workspace, f"workspace {workspace.name}", "deleted")
    count = len(projects.of_workspace(tx, workspace_id))
    if count:
        raise errors.Refused(f"workspace {workspace.name} holds {count} projects; delete or move them first")
    projects.delete_workspace(tx, workspace_id)
    tx.changed("workspace", workspace_id, deleted=True)


def require_workspace(tx: Tx, workspace_id: int) -> Workspace:
    """The workspace; raises NotFound."""
    workspace = projects.get_workspace(tx, workspace_id)
    if workspace is None:
        raise errors.NotFound(f"there is no workspace {workspace_id}")
    return workspace


# Projects.


def create(tx: Tx, workspace_id: int, name: str, user_id: int | None, description: str = "") -> Project:
    """A new project."""
    name = check_name(name, "a project")
    workspace = require_workspace(tx, workspace_id)
    if workspace.archived:
        raise errors.Refused(f"workspace {workspace.name} is archived and takes no projects; unarchive it first")
    if projects.find(tx, workspace_id, name) is not None:
        raise errors.Refused(f"there is a project {name} in workspace {workspace.name} already")
    project = projects.insert(tx, workspace_id, name, user_id, description)
    tx.changed("project", project.id)
    return project


def edit(
    tx: Tx,
    project_id: int,
    *,
    name: str | None = None,
    description: str | None = None,
    notes: str | None = None,
    workspace_id: int | None = None,
) -> Project:
    """Change a project, or move it to another workspace."""
    project = require(tx, project_id)
    _require_open(project, f"project {project.name}", "edited")
    values: dict[str, Any] = {}
    if description is not None:
        values["description"] = description
    if notes is not None:
        values["notes"] = notes
    if name is not None:
        values["name"] = check_name(name, "a project")
    if workspace_id is not None and workspace_id != project.workspace_id:
        workspace = require_workspace(tx, workspace_id)
        if workspace.archived:
            raise errors.Refused(f"workspace {workspace.name} is archived and takes no projects; unarchive it first")
        values["workspace_id"] = workspace_id
    if "name" in values or "workspace_id" in values:
        there = projects.find(tx, values.get("workspace_id", project.workspace_id), values.get("name", project.name))
        if there is not None and there.id != project_id:
            raise errors.Refused(f"there is a project {there.name} in that workspace already")
    if values:
        projects.update(tx, project_id, **values)
        tx.changed("project", project_id)
    return require(tx, project_id)


def archive(tx: Tx, project_id: int, archived: bool) -> Project:
    """Put a project away, or bring it back."""
    project = require(tx, project_id)
    _require_own(project, f"project {project.name}", "archived")
    if project.archived != archived:
        projects.update(tx, project_id, archived=archived)
        tx.changed("project", project_id, archived=archived)
    return require(tx, project_id)


def delete(tx: Tx, project_id: int) -> None:
    """Remove a project that holds nothing."""
    project = require(tx, project_id)
    _require_own(project, f"project {project.name}", "deleted")
    count, _ = projects.count_experiments(tx, project_id).get(project_id, (0, 0))
    if count:
        raise errors.Refused(f"project {project.name} holds {count} experiments; delete or move them first")
    projects.delete(tx, project_id)
    tx.changed("project", project_id, deleted=True)


def require(tx: Tx, project_id: int) -> Project:
    """The project; raises NotFound."""
    project = projects.get(tx, project_id)
    if project is None:
        raise errors.NotFound(f"there is no project {project_id}")
    return project


def require_takes_experiments(tx: Tx, project_id: int) -> Project:
    """The project, if experiments may be put into it; raises NotFound or Refused."""
    project = require(tx, project_id)
    workspace = require_workspace(tx, project.workspace_id)
    for thing, what in ((project, "project"), (workspace, "workspace")):
        if thing.archived:
            raise errors.Refused(f"{what} {thing.name} is archived and takes no experiments; unarchive it first")
    return project


def resolve(tx: Tx, workspace: str | None, project: str | None) -> Project:
    """The project of these names, as configs write them; raises NotFound. Without names: the default one."""
    if project is None:
        return ensure_default(tx)
    name = workspace or UNCATEGORIZED
    found_workspace = projects.find_workspace(tx, name)
    if found_workspace is None:
        raise errors.NotFound(f"there is no workspace {name}; create it: det workspace create {name!r}")
    found = projects.find(tx, found_workspace.id, project)
    if found is None:
        raise errors.NotFound(
            f"there is no project {project} in workspace {name}; create it: det project create {name!r} {project!r}"
        )
    return require_takes_experiments(tx, found.id)


def check_name(name: str, what: str) -> str:
    """The name without spaces around it; raises BadRequest for what cannot be one."""
    name = name.strip()
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise errors.BadRequest(f"the name of {what} has 1 to {_LONGEST_NAME} printable characters")
    return name


def _require_own(thing: Workspace | Project, name: str, done: str) -> None:
    if thing.immutable:
        raise errors.Refused(f"{name} is always there and cannot be {done}")


def _require_open(thing: Workspace | Project, name: str, done: str) -> None:
    _require_own(thing, name, done)
    if thing.archived:
        raise errors.Refused(f"{name} is archived and cannot be {done}; unarchive it first")
