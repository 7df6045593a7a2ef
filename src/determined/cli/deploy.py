"""`det deploy local`: the commands that other clusters need for what `det master up` does here."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from determined.cli import master, session
from determined.cli.nouns import noun_app, verb

app = noun_app("Start and stop a master on this machine, as `det deploy local`.")
local = noun_app("This machine: cluster-up, cluster-down, logs.")
app.add("local", local)

_IGNORED = "No containers are used here: has no effect."


@verb(local, "cluster-up")
def cluster_up(
    context: typer.Context,
    master_port: Annotated[int | None, typer.Option("--master-port", help="Port to listen on; default: 8080.")] = None,
    cluster_name: Annotated[str | None, typer.Option("--cluster-name", help="What people call it.")] = None,
    config: Annotated[
        pathlib.Path | None, typer.Option("--master-config-path", help="The master's settings, a YAML file.")
    ] = None,
    folder: Annotated[
        pathlib.Path | None, typer.Option("--storage-host-path", help="Folder for all it keeps, checkpoints included.")
    ] = None,
    agents: Annotated[int, typer.Option("--agents", help="This machine is one agent; more are refused.")] = 1,
    no_gpu: Annotated[bool, typer.Option("--no-gpu", help=_IGNORED, hidden=True)] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help=_IGNORED, hidden=True)] = False,
) -> None:
    """Start a master that runs everything on this machine: the same as `det master up`."""
    if agents != 1:
        raise typer.BadParameter("this machine is one agent here; its slots are its GPUs, else its cores")
    master.start(context, port=master_port, folder=folder, config=config, cluster_name=cluster_name)


@verb(local, "cluster-down")
def cluster_down(context: typer.Context) -> None:
    """Stop this machine's master: the same as `det master down`."""
    master.stop(context)


@verb(local, "master-up")
def master_up(
    context: typer.Context,
    master_port: Annotated[int | None, typer.Option("--master-port", help="Port to listen on; default: 8080.")] = None,
) -> None:
    """Start a master: here the same as cluster-up, since the master runs what it is given on this machine."""
    master.start(context, port=master_port)


@verb(local, "master-down")
def master_down(context: typer.Context) -> None:
    """Stop this machine's master: the same as cluster-down."""
    master.stop(context)


@verb(local, "agent-up")
def agent_up() -> None:
    """Say why no agent is needed: a master runs things on its own machine by itself."""
    session.tell("nothing to start: the master runs trials on its own machine by itself ('det agent list' shows it)")


@verb(local, "agent-down")
def agent_down() -> None:
    """Say how to keep the master from running things here: there is no agent to stop."""
    session.tell("there is no agent to stop; 'det agent disable' keeps the master from starting more on this machine")


@verb(local, "logs")
def logs(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more comes.")] = False,
    tail: Annotated[int, typer.Option("--tail", help="The last so many lines.", min=1)] = 200,
) -> None:
    """Print the master's log: the same as `det master logs`."""
    master.show_logs(context, follow, tail)
