"""`det model`: registered models and their versions."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from determined.cli import choose, render, session, terms
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

app = noun_app("Registered models and their versions.")

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Its name or id.")]
Version = Annotated[int, typer.Argument(metavar="VERSION", help="Its number.", min=1)]
Labels = Annotated[list[str] | None, typer.Option("--label", help="A label; may be given several times.")]
Notes = Annotated[str | None, typer.Option("--notes", help="Notes, in Markdown; - reads them from stdin.")]


@verb(app, "list", "ls")
@formatted
def list_models(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Archived ones too.")] = False,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show the models."""
    found = session.master(context).models()
    rows = [{**each.model_dump(), "versions": each.version_count} for each in found if everything or not each.archived]
    render.listing(rows, ["id", "name", "description", "versions", "labels"], form, empty="No models yet.")


@verb(app, "create")
def create(
    context: typer.Context,
    name: str,
    description: Annotated[str, typer.Option("--description", help="A sentence about it.")] = "",
    label: Labels = None,
    workspace: Annotated[str | None, typer.Option("--workspace", help="The workspace it belongs to.")] = None,
) -> None:
    """Register a model; its versions come with register-version."""
    from determined.wire import requests

    master = session.master(context)
    place = choose.one("workspace", workspace, master.workspaces(), choose.by_id_and_name) if workspace else None
    body = session.request(
        requests.CreateModel,
        name=name,
        description=description,
        labels=label or [],
        workspace_id=place.id if place else None,
    )
    made = master.create_model(body)
    print(render.plain(f"Created model {made.name} ({made.id})"))


@verb(app, "describe")
@formatted
def describe(
    context: typer.Context,
    model: Model,
    version: Annotated[int | None, typer.Option("--version", help="One version of it.", min=1)] = None,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show a model, or one version of it."""
    master = session.master(context)
    if version is not None:
        found = master.model_version(model, version)
        fields = ["model_name", "version", "checkpoint_uuid", "name", "comment", "notes", "labels", "metadata"]
        render.record(found.model_dump(), fields, form)
        return
    view = master.model(model)
    fields = ["id", "name", "description", "notes", "labels", "metadata", "archived", "version_count"]
    render.record(view.model_dump(), fields, form)


@verb(app, "register-version")
def register_version(
    context: typer.Context,
    model: Model,
    uuid: Annotated[str, typer.Argument(metavar="UUID", help="The checkpoint, by its id or a start of it.")],
    name: Annotated[str, typer.Option("--name", help="What to call this version.")] = "",
    comment: Annotated[str, typer.Option("--comment", help="A sentence about it.")] = "",
) -> None:
    """Make a checkpoint the next version of a model. It is not deleted any more by retention."""
    from determined.wire import requests

    master = session.master(context)
    checkpoint = master.checkpoint(uuid).uuid
    body = requests.RegisterVersion(checkpoint_uuid=checkpoint, name=name, comment=comment)
    made = master.register_version(model, body)
    print(render.plain(f"Checkpoint {checkpoint} is version {made.version} of {made.model_name or model}"))


@verb(app, "list-versions")
@formatted
def list_versions(context: typer.Context, model: Model, form: render.Format = render.Format.TABLE) -> None:
    """Show a model's versions."""
    rows = [
        {**each.model_dump(), "checkpoint": each.checkpoint_uuid}
        for each in session.master(context).model_versions(model)
    ]
    render.listing(rows, ["version", "name", "checkpoint", "comment", "labels"], form, empty="No versions yet.")


@verb(app, "edit")
def edit(
    context: typer.Context,
    model: Model,
    name: Annotated[str | None, typer.Option("--name", help="Its new name.")] = None,
    description: Annotated[str | None, typer.Option("--description", help="A sentence about it.")] = None,
    notes: Notes = None,
    label: Labels = None,
) -> None:
    """Change a model; --label replaces all its labels."""
    changes = {"name": name, "description": description, "notes": _text(notes), "labels": label}
    _edit(context, model, **changes)


@verb(app, "edit-version")
def edit_version(
    context: typer.Context,
    model: Model,
    version: Version,
    name: Annotated[str | None, typer.Option("--name", help="What to call it.")] = None,
    comment: Annotated[str | None, typer.Option("--comment", help="A sentence about it.")] = None,
    notes: Notes = None,
    label: Labels = None,
) -> None:
    """Change a version of a model."""
    from determined.wire import requests

    changes = {"name": name, "comment": comment, "notes": _text(notes), "labels": label}
    given = {field: value for field, value in changes.items() if value is not None}
    if not given:
        raise typer.BadParameter("say what to change; --help lists what there is")
    session.master(context).edit_version(model, version, session.request(requests.EditVersion, **given))
    print(render.plain(f"Version {version} of {model} changed"))


@verb(app, "move")
def move(context: typer.Context, model: Model, workspace: str) -> None:
    """Move a model into another workspace."""
    master = session.master(context)
    _edit(
        context, model, workspace_id=choose.one("workspace", workspace, master.workspaces(), choose.by_id_and_name).id
    )


@verb(app, "archive")
def archive(context: typer.Context, model: Model) -> None:
    """Hide a model from lists."""
    session.master(context).archive_model(model)
    print(render.plain(f"Model {model} archived"))


@verb(app, "unarchive")
def unarchive(context: typer.Context, model: Model) -> None:
    """Show an archived model in lists again."""
    session.master(context).archive_model(model, False)
    print(render.plain(f"Model {model} unarchived"))


@verb(app, "delete")
def delete(context: typer.Context, model: Model, yes: terms.Yes = False) -> None:
    """Delete a model and its versions. Their checkpoints stay."""
    if not yes:
        typer.confirm(render.plain(f"Delete model {model} and its versions?"), abort=True, err=True)
    session.master(context).delete_model(model)
    print(render.plain(f"Deleted model {model}"))


@verb(app, "delete-version")
def delete_version(context: typer.Context, model: Model, version: Version, yes: terms.Yes = False) -> None:
    """Delete a version. Its checkpoint stays."""
    if not yes:
        typer.confirm(render.plain(f"Delete version {version} of {model}?"), abort=True, err=True)
    session.master(context).delete_version(model, version)
    print(render.plain(f"Deleted version {version} of {model}"))


def _edit(context: typer.Context, model: str, **changes: Any) -> None:
    from determined.wire import requests

    given = {field: value for field, value in changes.items() if value is not None}
    if not given:
        raise typer.BadParameter("say what to change; --help lists what there is")
    session.master(context).edit_model(model, session.request(requests.EditModel, **given))
    print(render.plain(f"Model {model} changed"))


def _text(notes: str | None) -> str | None:
    return sys.stdin.read() if notes == "-" else notes
