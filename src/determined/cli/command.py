"""`det command`: run one command on a slot."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from determined.cli import logs, render, session, tasks, terms
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

app = noun_app("Commands: run one on a slot.")


# What comes after the command is its own, dashes and all.
@verb(app, "run", takes_the_rest=True)
def run(
    context: typer.Context,
    arguments: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The command and its arguments.")],
    config_file: Annotated[
        pathlib.Path | None, typer.Option("--config-file", help="Its configuration, a YAML file.")
    ] = None,
    overrides: terms.Overrides = None,
    folder: Annotated[pathlib.Path | None, typer.Option("--context", "-c", help="The folder of code to send.")] = None,
    include: terms.Includes = None,
    template: terms.Template = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start it, print its id and leave.")] = False,
) -> None:
    """Run a command and print its output; its exit code is ours."""
    from determined.cli import submit

    master = session.master(context)
    made = tasks.start(
        master,
        "command",
        config=submit.read(config_file) if config_file else "",
        file=str(config_file) if config_file else None,
        folder=folder,
        includes=include or (),
        overrides=overrides or (),
        template=template,
        arguments=arguments,
    )
    if detach:
        print(made.id)
        return
    session.tell(f"started {made.id}")
    raise typer.Exit(tasks.follow(master, made.id, stop=f"det cmd kill {made.id}"))


@verb(app, "list", "ls")
@formatted
def list_commands(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Ended ones too.")] = False,
    limit: terms.Limit = 200,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show commands, the newest first."""
    tasks.listing(context, ["command"], everything, limit, form, "No command is running.")


@verb(app, "describe")
@formatted
def describe(context: typer.Context, task: terms.TaskId, form: render.Format = render.Format.TABLE) -> None:
    """Show one command."""
    tasks.describe(context, task, form)


@verb(app, "logs")
def show_logs(
    context: typer.Context,
    task: terms.TaskId,
    follow: terms.Follow = False,
    tail: terms.Tail = None,
) -> None:
    """Print what a command printed; `det task logs` can do more."""
    master = session.master(context)
    if follow:
        raise typer.Exit(tasks.follow(master, task, logs.Wanted(tail=tail)))
    logs.show(master, task, logs.Wanted(tail=tail))


@verb(app, "config")
def show_config(context: typer.Context, task: terms.TaskId) -> None:
    """Print a command's configuration as YAML, secrets masked."""
    render.document(session.master(context).task_config(task), render.Format.YAML)


@verb(app, "kill")
def kill(
    context: typer.Context,
    task: Annotated[list[str], typer.Argument(metavar="TASK...", help="Ids, for example command-3.")],
) -> None:
    """End commands at once."""
    tasks.operate(context, task, "kill", "is being killed")
