"""`det template`: pieces of configuration that others start from."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from determined import errors
from determined.cli import choose, render, session, terms
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

app = noun_app("Pieces of configuration that others start from.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The template's name.")]
File = Annotated[pathlib.Path, typer.Argument(metavar="FILE", help="A YAML file; - for stdin.")]


@verb(app, "list", "ls")
@formatted
def list_templates(context: typer.Context, form: render.Format = render.Format.TABLE) -> None:
    """Show the templates."""
    rows = [{**each.model_dump(), "fields": ", ".join(each.config)} for each in session.master(context).templates()]
    render.listing(rows, ["name", "fields"], form, empty="No templates yet.")


@verb(app, "describe")
@formatted
def describe(context: typer.Context, name: Name, form: render.Format = render.Format.TABLE) -> None:
    """Print a template as YAML."""
    master = session.master(context)
    found = choose.one("template", name, master.templates(), lambda each: (each.name, each.name))
    render.document(found.config, render.Format.YAML if form is render.Format.TABLE else form)


@verb(app, "create")
def create(context: typer.Context, name: Name, file: File) -> None:
    """Make a template."""
    if any(each.name == name for each in session.master(context).templates()):
        raise errors.Refused(f"there is a template {name} already; 'det template set' replaces it")
    _set(context, name, file)


@verb(app, "set")
def replace(context: typer.Context, name: Name, file: File) -> None:
    """Make a template, or replace one."""
    _set(context, name, file)


@verb(app, "remove", "rm")
def remove(context: typer.Context, name: Name, yes: terms.Yes = False) -> None:
    """Remove a template. Experiments that were made with it stay as they are."""
    if not yes:
        typer.confirm(render.plain(f"Remove template {name}?"), abort=True, err=True)
    session.master(context).delete_template(name)
    print(render.plain(f"Removed template {name}"))


def _set(context: typer.Context, name: str, file: pathlib.Path) -> None:
    from determined.cli import submit
    from determined.wire import requests

    session.master(context).set_template(name, requests.SetTemplate(config=submit.read(file)))
    print(render.plain(f"Template {name} is set"))
