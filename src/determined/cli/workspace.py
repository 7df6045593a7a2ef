"""`det workspace`: workspaces, which hold projects."""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli import choose, render, session, terms
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

app = noun_app("Workspaces, which hold projects.")

Workspace = Annotated[str, typer.Argument(metavar="WORKSPACE", help="Its name or id.")]


@verb(app, "list", "ls")
@formatted
def list_workspaces(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Archived ones too.")] = False,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show the workspaces."""
    found = session.master(context).workspaces()
    rows = [{**each.model_dump(), "projects": each.project_count} for each in found if everything or not each.archived]
    render.listing(rows, ["id", "name", "projects", "archived"], form)


@verb(app, "list-projects")
@formatted
def list_projects(context: typer.Context, workspace: Workspace, form: render.Format = render.Format.TABLE) -> None:
    """Show the projects of a workspace."""
    master = session.master(context)
    found = choose.one("workspace", workspace, master.workspaces(), choose.by_id_and_name)
    rows = [{**each.model_dump(), "experiments": each.experiment_count} for each in master.projects(found.id)]
    render.listing(rows, ["id", "name", "description", "experiments", "archived"], form, empty="No projects in it.")


@verb(app, "create")
def create(context: typer.Context, name: str) -> None:
    """Make a workspace."""
    made = session.master(context).create_workspace(name)
    print(render.plain(f"Created workspace {made.name} ({made.id})"))


@verb(app, "describe")
@formatted
def describe(context: typer.Context, workspace: Workspace, form: render.Format = render.Format.TABLE) -> None:
    """Show one workspace."""
    master = session.master(context)
    found = choose.one("workspace", workspace, master.workspaces(), choose.by_id_and_name)
    render.record(found.model_dump(), ["id", "name", "project_count", "archived", "immutable"], form)


@verb(app, "edit")
def edit(context: typer.Context, workspace: Workspace, name: str) -> None:
    """Rename a workspace."""
    from determined.wire import requests

    master = session.master(context)
    found = choose.one("workspace", workspace, master.workspaces(), choose.by_id_and_name)
    master.edit_workspace(found.id, requests.EditWorkspace(name=name))
    print(render.plain(f"Workspace {found.id} is called {name} now"))


@verb(app, "archive")
def archive(context: typer.Context, workspace: Workspace) -> None:
    """Hide a workspace with all that is in it."""
    _archive(context, workspace, True)


@verb(app, "unarchive")
def unarchive(context: typer.Context, workspace: Workspace) -> None:
    """Show an archived workspace again."""
    _archive(context, workspace, False)


def _archive(context: typer.Context, workspace: str, wanted: bool) -> None:
    master = session.master(context)
    found = choose.one("workspace", workspace, master.workspaces(), choose.by_id_and_name)
    master.archive_workspace(found.id, wanted)
    print(render.plain(f"Workspace {found.name} {'archived' if wanted else 'unarchived'}"))


@verb(app, "delete")
def delete(context: typer.Context, workspace: Workspace, yes: terms.Yes = False) -> None:
    """Delete an empty workspace."""
    master = session.master(context)
    found = choose.one("workspace", workspace, master.workspaces(), choose.by_id_and_name)
    if not yes:
        typer.confirm(render.plain(f"Delete workspace {found.name}?"), abort=True, err=True)
    master.delete_workspace(found.id)
    print(render.plain(f"Deleted workspace {found.name}"))
