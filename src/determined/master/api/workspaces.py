"""Workspaces."""

from __future__ import annotations

from determined.master.api.access import Caller, Db, Id
from determined.master.api.identity import Identity
from determined.master.api.policy import Router, policy
from determined.master.lifecycle import projects as lifecycle
from determined.master.records import Workspace
from determined.master.store import projects
from determined.master.store.database import Tx
from determined.wire.requests import CreateWorkspace, EditWorkspace
from determined.wire.views import WorkspaceView

router = Router()


@router.get("/workspaces", dependencies=[policy("read")])
async def list_workspaces(db: Db) -> list[WorkspaceView]:
    """All workspaces."""
    return await db.read(_list)


@router.post("/workspaces", dependencies=[policy("write")], status_code=201)
async def create_workspace(asked: CreateWorkspace, caller: Caller, db: Db) -> WorkspaceView:
    """A new workspace."""
    return await db.write(_create, asked.name, caller.user_id)


@router.get("/workspaces/{id}", dependencies=[policy("read")])
async def get_workspace(id: Id, db: Db) -> WorkspaceView:
    """One workspace."""
    return await db.read(_get, id)


@router.patch("/workspaces/{id}", dependencies=[policy("write")])
async def edit_workspace(id: Id, asked: EditWorkspace, caller: Caller, db: Db) -> WorkspaceView:
    """Give a workspace another name."""
    return await db.write(_edit, id, asked, caller)


@router.delete("/workspaces/{id}", dependencies=[policy("write")], status_code=204)
async def delete_workspace(id: Id, caller: Caller, db: Db) -> None:
    """Remove a workspace that holds nothing."""
    await db.write(_delete, id, caller)


@router.post("/workspaces/{id}/archive", dependencies=[policy("write")])
async def archive_workspace(id: Id, caller: Caller, db: Db) -> WorkspaceView:
    """Put a workspace away, with its projects: it takes nothing new."""
    return await db.write(_archive, id, True, caller)


@router.post("/workspaces/{id}/unarchive", dependencies=[policy("write")])
async def unarchive_workspace(id: Id, caller: Caller, db: Db) -> WorkspaceView:
    """Bring a workspace back."""
    return await db.write(_archive, id, False, caller)


def show(workspace: Workspace, project_count: int) -> WorkspaceView:
    """A workspace as the API shows one."""
    return WorkspaceView(
        id=workspace.id,
        name=workspace.name,
        archived=workspace.archived,
        immutable=workspace.immutable,
        user_id=workspace.user_id,
        created_at=workspace.created_at,
        project_count=project_count,
    )


def _list(tx: Tx) -> list[WorkspaceView]:
    counts = projects.count_projects(tx)
    return [show(workspace, counts.get(workspace.id, 0)) for workspace in projects.all_workspaces(tx)]


def _get(tx: Tx, workspace_id: int) -> WorkspaceView:
    return _show(tx, lifecycle.require_workspace(tx, workspace_id))


def _create(tx: Tx, name: str, user_id: int | None) -> WorkspaceView:
    return show(lifecycle.create_workspace(tx, name, user_id), 0)


def _edit(tx: Tx, workspace_id: int, asked: EditWorkspace, caller: Identity) -> WorkspaceView:
    _require_owner(tx, workspace_id, caller)
    return _show(tx, lifecycle.edit_workspace(tx, workspace_id, asked.name))


def _archive(tx: Tx, workspace_id: int, archived: bool, caller: Identity) -> WorkspaceView:
    _require_owner(tx, workspace_id, caller)
    return _show(tx, lifecycle.archive_workspace(tx, workspace_id, archived))


def _delete(tx: Tx, workspace_id: int, caller: Identity) -> None:
    _require_owner(tx, workspace_id, caller)
    lifecycle.delete_workspace(tx, workspace_id)


def _require_owner(tx: Tx, workspace_id: int, caller: Identity) -> None:
    workspace = lifecycle.require_workspace(tx, workspace_id)
    caller.require_owner(workspace.user_id, f"workspace {workspace.name}")


def _show(tx: Tx, workspace: Workspace) -> WorkspaceView:
    return show(workspace, projects.count_projects(tx).get(workspace.id, 0))
