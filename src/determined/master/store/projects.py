"""Workspaces and the projects in them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from determined.master.records import Project, Workspace
from determined.master.store import rows
from determined.master.store.database import Tx
from determined.master.store.tables import experiments, projects, workspaces


def insert_workspace(tx: Tx, name: str, user_id: int | None, immutable: bool = False) -> Workspace:
    """A new workspace."""
    values = {"name": name, "user_id": user_id, "immutable": immutable, "archived": False, "created_at": tx.now}
    found = rows.one(Workspace, tx.execute(sa.insert(workspaces).values(values).returning(workspaces)))
    assert found is not None
    return found


def get_workspace(tx: Tx, workspace_id: int) -> Workspace | None:
    """A workspace by id."""
    return rows.one(Workspace, tx.execute(sa.select(workspaces).where(workspaces.c.id == workspace_id)))


def find_workspace(tx: Tx, name: str) -> Workspace | None:
    """A workspace by name."""
    return rows.one(Workspace, tx.execute(sa.select(workspaces).where(workspaces.c.name == name)))


def all_workspaces(tx: Tx) -> list[Workspace]:
    """All workspaces, by id."""
    return rows.several(Workspace, tx.execute(sa.select(workspaces).order_by(workspaces.c.id)))


def update_workspace(tx: Tx, workspace_id: int, **values: Any) -> None:
    """Change columns of a workspace."""
    tx.execute(sa.update(workspaces).where(workspaces.c.id == workspace_id).values(values))


def delete_workspace(tx: Tx, workspace_id: int) -> None:
    """Remove a workspace."""
    tx.execute(sa.delete(workspaces).where(workspaces.c.id == workspace_id))


def count_projects(tx: Tx) -> dict[int, int]:
    """How many projects each workspace has; those without any are absent."""
    query = sa.select(projects.c.workspace_id, sa.func.count()).group_by(projects.c.workspace_id)
    return {row[0]: row[1] for row in tx.execute(query)}


# Projects.


def insert(
    tx: Tx, workspace_id: int, name: str, user_id: int | None, description: str = "", immutable: bool = False
) -> Project:
    """A new project."""
    values = {
        "workspace_id": workspace_id,
        "name": name,
        "description": description,
        "notes": "",
        "user_id": user_id,
        "immutable": immutable,
        "archived": False,
        "created_at": tx.now,
    }
    found = rows.one(Project, tx.execute(sa.insert(projects).values(values).returning(projects)))
    assert found is not None
    return found


def get(tx: Tx, project_id: int) -> Project | None:
    """A project by id."""
    return rows.one(Project, tx.execute(sa.select(projects).where(projects.c.id == project_id)))


def find(tx: Tx, workspace_id: int, name: str) -> Project | None:
    """A project by name in its workspace."""
    chosen = (projects.c.workspace_id == workspace_id, projects.c.name == name)
    return rows.one(Project, tx.execute(sa.select(projects).where(*chosen)))


def of_workspace(tx: Tx, workspace_id: int | None) -> list[Project]:
    """The projects of a workspace, or all, by id."""
    query = sa.select(projects).order_by(projects.c.id)
    if workspace_id is not None:
        query = query.where(projects.c.workspace_id == workspace_id)
    return rows.several(Project, tx.execute(query))


def update(tx: Tx, project_id: int, **values: Any) -> None:
    """Change columns of a project."""
    tx.execute(sa.update(projects).where(projects.c.id == project_id).values(values))


def delete(tx: Tx, project_id: int) -> None:
    """Remove a project."""
    tx.execute(sa.delete(projects).where(projects.c.id == project_id))


def count_experiments(tx: Tx, project_id: int | None = None) -> dict[int, tuple[int, int]]:
    """How many experiments each project has, and how many of them have not ended; those without any are absent."""
    ended = experiments.c.ended_at.is_not(None)
    query = sa.select(experiments.c.project_id, sa.func.count(), sa.func.sum(sa.case((ended, 0), else_=1))).group_by(
        experiments.c.project_id
    )
    if project_id is not None:
        query = query.where(experiments.c.project_id == project_id)
    return {row[0]: (row[1], int(row[2])) for row in tx.execute(query)}
