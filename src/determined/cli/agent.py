"""`det agent`: the machines that things run on."""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli import choose, render, session
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

app = noun_app("Machines: list, enable, disable.")

Agent = Annotated[str, typer.Argument(metavar="AGENT", help="Its id.")]


@verb(app, "list", "ls")
@formatted
def list_agents(context: typer.Context, form: render.Format = render.Format.TABLE) -> None:
    """Show the machines."""
    rows = []
    for each in session.master(context).agents():
        used = sum(slot.allocation_id is not None for slot in each.slots)
        row = {**each.model_dump(), "slots_used": used, "slots_total": len(each.slots)}
        rows.append({**row, "takes_work": each.enabled and not each.draining})
    render.listing(rows, ["id", "pool", "slots_used", "slots_total", "takes_work", "draining"], form)


@verb(app, "describe")
@formatted
def describe(context: typer.Context, agent: Agent, form: render.Format = render.Format.TABLE) -> None:
    """Show one machine and its slots."""
    found = choose.one("agent", agent, session.master(context).agents(), lambda each: (each.id, each.id))
    if form is not render.Format.TABLE:
        render.record(found.model_dump(), ["id", "pool", "enabled", "draining"], form)
        return
    render.record(found.model_dump(), ["id", "pool", "enabled", "draining"], form)
    print()
    render.listing([each.model_dump() for each in found.slots], ["id", "device", "enabled", "allocation_id"], form)


@verb(app, "enable")
def enable(context: typer.Context, agent: Agent) -> None:
    """Let a machine take work again."""
    _edit(context, agent, enabled=True, drain=False)
    print(render.plain(f"Agent {agent} takes work"))


@verb(app, "disable")
def disable(
    context: typer.Context,
    agent: Agent,
    drain: Annotated[bool, typer.Option("--drain", help="Let what runs there finish.")] = False,
) -> None:
    """Keep a machine from taking work; without --drain what runs there is stopped and starts elsewhere."""
    _edit(context, agent, **({"drain": True} if drain else {"enabled": False}))
    print(render.plain(f"Agent {agent} {'finishes what it has and takes no more' if drain else 'takes no work'}"))


def _edit(context: typer.Context, agent: str, **changes: bool) -> None:
    from determined.wire import requests

    master = session.master(context)
    found = choose.one("agent", agent, master.agents(), lambda each: (each.id, each.id))
    master.edit_agent(found.id, session.request(requests.EditAgent, **changes))
