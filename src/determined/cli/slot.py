"""`det slot`: the GPUs, or shares of the CPU cores, of the machines."""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli import render, session
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

app = noun_app("Slots of machines: list, enable, disable.")

Agent = Annotated[str, typer.Argument(metavar="AGENT", help="The machine's id.")]
Slot = Annotated[int, typer.Argument(metavar="SLOT", help="The slot's number.", min=0)]


@verb(app, "list", "ls")
@formatted
def list_slots(context: typer.Context, form: render.Format = render.Format.TABLE) -> None:
    """Show every slot, and what has it."""
    rows = []
    for agent in session.master(context).agents():
        for slot in agent.slots:
            row = {**slot.model_dump(), "agent": agent.id, "pool": agent.pool, "slot": slot.id}
            rows.append({**row, "used_by": slot.allocation_id})
    render.listing(rows, ["agent", "slot", "device", "pool", "enabled", "used_by"], form, empty="There are no slots.")


@verb(app, "enable")
def enable(context: typer.Context, agent: Agent, slot: Slot) -> None:
    """Let a slot take work again."""
    _edit(context, agent, slot, True)


@verb(app, "disable")
def disable(context: typer.Context, agent: Agent, slot: Slot) -> None:
    """Keep a slot from taking work; what has it now is not stopped."""
    _edit(context, agent, slot, False)


def _edit(context: typer.Context, agent: str, slot: int, enabled: bool) -> None:
    from determined.wire import requests

    session.master(context).edit_slot(agent, slot, requests.EditAgent(enabled=enabled))
    print(render.plain(f"Slot {slot} of {agent} {'takes work' if enabled else 'takes no work'}"))
