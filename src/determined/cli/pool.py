"""`det resource-pool`: the places that run things."""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli import choose, render, session
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

app = noun_app("Resource pools: list, describe.")

_FIELDS = ["name", "kind", "policy", "slots_used", "slots_total", "agents", "queued", "is_default"]


@verb(app, "list", "ls")
@formatted
def list_pools(context: typer.Context, form: render.Format = render.Format.TABLE) -> None:
    """Show the pools."""
    render.listing([each.model_dump() for each in session.master(context).pools()], _FIELDS, form)


@verb(app, "describe")
@formatted
def describe(
    context: typer.Context,
    pool: Annotated[str, typer.Argument(metavar="POOL", help="Its name.")],
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show one pool."""
    found = choose.one("resource-pool", pool, session.master(context).pools(), lambda each: (each.name, each.name))
    render.record(found.model_dump(), _FIELDS, form)
