"""`det project`: projects, which hold experiments."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from determined.cli import choose, render, session, terms
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

if TYPE_CHECKING:
    from determined.client.master import Master
    from determined.wire.views import ProjectView

app = noun_app("Projects, which hold experiments.")

Workspace = Annotated[str, typer.Argument(metavar="WORKSPACE", help="The workspace's name or id.")]
Project = Annotated[str, typer.Argument(metavar="PROJECT", help="The project's name or id.")]


def find(master: Master, workspace: str, project: str) -> ProjectView:
    """A project by the names or ids of its workspace and of itself."""
    place = choose.one("workspace", workspace, master.workspaces(), choose.by_id_and_name)
    return choose.one("project", project, master.projects(place.id), choose.by_id_and_name)


@verb(app, "list", "ls")
@formatted
def list_projects(
    context: typer.Context,
    workspace: Annotated[str | None, typer.Argument(help="Of this workspace only.")] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Archived ones too.")] = False,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show the projects."""
    master = session.master(context)
    place = choose.one("workspace", workspace, master.workspaces(), choose.by_id_and_name) if workspace else None
    rows = [
        {**each.model_dump(), "workspace": each.workspace_name, "experiments": each.experiment_count}
        for each in master.projects(place.id if place else None)
        if everything or not each.archived
    ]
    render.listing(rows, ["id", "workspace", "name", "description", "experiments", "archived"], form)


@verb(app, "list-experiments")
@formatted
def list_experiments(
    context: typer.Context,
    workspace: Workspace,
    project: Project,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Archived ones too.")] = False,
    limit: terms.Limit = 200,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show the experiments of a project."""
    master = session.master(context)
    found = find(master, workspace, project)
    page = master.experiments(project_id=found.id, archived=None if everything else False, limit=limit)
    rows = [
        {
            **each.model_dump(),
            "progress": f"{100 * each.progress:.0f}%",
            "best": each.best_metric,
            "owner": each.username,
        }
        for each in page.items
    ]
    render.listing(rows, ["id", "name", "state", "progress", "best", "owner"], form, empty="No experiments in it yet.")


@verb(app, "create")
def create(
    context: typer.Context,
    workspace: Workspace,
    name: str,
    description: Annotated[str, typer.Option("--description", help="A sentence about it.")] = "",
) -> None:
    """Make a project in a workspace."""
    from determined.wire import requests

    master = session.master(context)
    place = choose.one("workspace", workspace, master.workspaces(), choose.by_id_and_name)
    made = master.create_project(requests.CreateProject(workspace_id=place.id, name=name, description=description))
    print(render.plain(f"Created project {place.name} / {made.name} ({made.id})"))


@verb(app, "describe")
@formatted
def describe(
    context: typer.Context, workspace: Workspace, project: Project, form: render.Format = render.Format.TABLE
) -> None:
    """Show one project."""
    found = find(session.master(context), workspace, project)
    fields = ["id", "workspace_name", "name", "description", "notes", "experiment_count", "active_experiment_count"]
    render.record(found.model_dump(), [*fields, "archived"], form)


@verb(app, "edit")
def edit(
    context: typer.Context,
    workspace: Workspace,
    project: Project,
    name: Annotated[str | None, typer.Option("--name", "--new-name", help="Its new name.")] = None,
    description: Annotated[str | None, typer.Option("--description", help="A sentence about it.")] = None,
    notes: Annotated[str | None, typer.Option("--notes", help="Notes, in Markdown; - reads them from stdin.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="Move it into this workspace.")] = None,
) -> None:
    """Change a project, or move it into another workspace."""
    from determined.wire import requests

    master = session.master(context)
    found = find(master, workspace, project)
    place = choose.one("workspace", to, master.workspaces(), choose.by_id_and_name) if to else None
    notes = sys.stdin.read() if notes == "-" else notes
    changes = {"name": name, "description": description, "notes": notes, "workspace_id": place.id if place else None}
    given = {field: value for field, value in changes.items() if value is not None}
    if not given:
        raise typer.BadParameter("say what to change; --help lists what there is")
    master.edit_project(found.id, session.request(requests.EditProject, **given))
    print(render.plain(f"Project {found.name} changed"))


@verb(app, "archive")
def archive(context: typer.Context, workspace: Workspace, project: Project) -> None:
    """Hide a project with its experiments."""
    _archive(context, workspace, project, True)


@verb(app, "unarchive")
def unarchive(context: typer.Context, workspace: Workspace, project: Project) -> None:
    """Show an archived project again."""
    _archive(context, workspace, project, False)


def _archive(context: typer.Context, workspace: str, project: str, wanted: bool) -> None:
    master = session.master(context)
    found = find(master, workspace, project)
    master.archive_project(found.id, wanted)
    print(render.plain(f"Project {found.name} {'archived' if wanted else 'unarchived'}"))


@verb(app, "delete")
def delete(context: typer.Context, workspace: Workspace, project: Project, yes: terms.Yes = False) -> None:
    """Delete an empty project."""
    master = session.master(context)
    found = find(master, workspace, project)
    if not yes:
        typer.confirm(render.plain(f"Delete project {found.name}?"), abort=True, err=True)
    master.delete_project(found.id)
    print(render.plain(f"Deleted project {found.name}"))
