"""Projects."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from determined.master.api.access import Caller, Db, Id
from determined.master.api.identity import Identity
from determined.master.api.policy import Router, policy
from determined.master.lifecycle import projects as lifecycle
from determined.master.records import Project
from determined.master.store import projects
from determined.master.store.database import Tx
from determined.wire.requests import CreateProject, EditProject
from determined.wire.views import ProjectView

router = Router()


@router.get("/projects", dependencies=[policy("read")])
async def list_projects(
    db: Db, workspace_id: Annotated[int | None, Query(ge=1, le=2**63 - 1, description="Of this workspace only.")] = None
) -> list[ProjectView]:
    """All projects, or those of a workspace."""
    return await db.read(_list, workspace_id)


@router.post("/projects", dependencies=[policy("write")], status_code=201)
async def create_project(asked: CreateProject, caller: Caller, db: Db) -> ProjectView:
    """A new project."""
    return await db.write(_create, asked, caller.user_id)


@router.get("/projects/{id}", dependencies=[policy("read")])
async def get_project(id: Id, db: Db) -> ProjectView:
    """One project."""
    return await db.read(_get, id)


@router.patch("/projects/{id}", dependencies=[policy("write")])
async def edit_project(id: Id, asked: EditProject, caller: Caller, db: Db) -> ProjectView:
    """Change a project, or move it to another workspace."""
    return await db.write(_edit, id, asked, caller)


@router.delete("/projects/{id}", dependencies=[policy("write")], status_code=204)
async def delete_project(id: Id, caller: Caller, db: Db) -> None:
    """Remove a project that holds nothing."""
    await db.write(_delete, id, caller)


@router.post("/projects/{id}/archive", dependencies=[policy("write")])
async def archive_project(id: Id, caller: Caller, db: Db) -> ProjectView:
    """Put a project away: it takes nothing new."""
    return await db.write(_archive, id, True, caller)


@router.post("/projects/{id}/unarchive", dependencies=[policy("write")])
async def unarchive_project(id: Id, caller: Caller, db: Db) -> ProjectView:
    """Bring a project back."""
    return await db.write(_archive, id, False, caller)


def show(project: Project, workspace_name: str, counts: tuple[int, int] = (0, 0)) -> ProjectView:
    """A project as the API shows one."""
    return ProjectView(
        id=project.id,
        workspace_id=project.workspace_id,
        workspace_name=workspace_name,
        name=project.name,
        description=project.description,
        notes=project.notes,
        archived=project.archived,
        immutable=project.immutable,
        user_id=project.user_id,
        created_at=project.created_at,
        experiment_count=counts[0],
        active_experiment_count=counts[1],
    )


def _list(tx: Tx, workspace_id: int | None) -> list[ProjectView]:
    if workspace_id is not None:
        lifecycle.require_workspace(tx, workspace_id)
    names = {workspace.id: workspace.name for workspace in projects.all_workspaces(tx)}
    counts = projects.count_experiments(tx)
    return [
        show(project, names.get(project.workspace_id, ""), counts.get(project.id, (0, 0)))
        for project in projects.of_workspace(tx, workspace_id)
    ]


def _get(tx: Tx, project_id: int) -> ProjectView:
    return _show(tx, lifecycle.require(tx, project_id))


def _create(tx: Tx, asked: CreateProject, user_id: int | None) -> ProjectView:
    return _show(tx, lifecycle.create(tx, asked.workspace_id, asked.name, user_id, asked.description))


def _edit(tx: Tx, project_id: int, asked: EditProject, caller: Identity) -> ProjectView:
    _require_owner(tx, project_id, caller)
    return _show(tx, lifecycle.edit(tx, project_id, **asked.model_dump(exclude_none=True)))


def _archive(tx: Tx, project_id: int, archived: bool, caller: Identity) -> ProjectView:
    _require_owner(tx, project_id, caller)
    return _show(tx, lifecycle.archive(tx, project_id, archived))


def _delete(tx: Tx, project_id: int, caller: Identity) -> None:
    _require_owner(tx, project_id, caller)
    lifecycle.delete(tx, project_id)


def _require_owner(tx: Tx, project_id: int, caller: Identity) -> None:
    project = lifecycle.require(tx, project_id)
    caller.require_owner(project.user_id, f"project {project.name}")


def _show(tx: Tx, project: Project) -> ProjectView:
    workspace = lifecycle.require_workspace(tx, project.workspace_id)
    return show(project, workspace.name, projects.count_experiments(tx, project.id).get(project.id, (0, 0)))
