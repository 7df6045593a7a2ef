"""`det task`: everything that runs on slots and is no trial."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from determined.cli import logs, render, session, tasks, terms
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

app = noun_app("Everything that runs and is no trial: list, logs, stop.")

TaskIds = Annotated[list[str], typer.Argument(metavar="TASK...", help="Ids, for example job-3.")]


@verb(app, "list", "ls")
@formatted
def list_tasks(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Ended ones too.")] = False,
    kind: Annotated[list[str] | None, typer.Option("--kind", help="job, command, notebook or tensorboard.")] = None,
    limit: terms.Limit = 200,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show tasks, the newest first."""
    tasks.listing(context, kind or None, everything, limit, form, "No task is running.")


@verb(app, "describe")
@formatted
def describe(context: typer.Context, task: terms.TaskId, form: render.Format = render.Format.TABLE) -> None:
    """Show one task."""
    tasks.describe(context, task, form)


@verb(app, "create")
def create(
    context: typer.Context,
    config: Annotated[pathlib.Path, typer.Argument(help="The task's configuration, a YAML file; - for stdin.")],
    folder: Annotated[pathlib.Path | None, typer.Argument(metavar="[DIR]", help="The folder of code to send.")] = None,
    include: terms.Includes = None,
    overrides: terms.Overrides = None,
    template: terms.Template = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create it, and let it wait for `unpause`.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print its log until it ends.")] = False,
) -> None:
    """Start a job; the same as `det job run`."""
    from determined.cli import job

    job.start(context, config, folder, include or (), overrides or (), template, paused, follow)


@verb(app, "logs")
@formatted
def show_logs(
    context: typer.Context,
    task: terms.TaskId,
    follow: terms.Follow = False,
    head: terms.Head = None,
    tail: terms.Tail = None,
    rank: terms.Rank = None,
    level: terms.Level = None,
    grep: terms.Grep = None,
    regex: terms.Regex = None,
    since: terms.Since = None,
    until: terms.Until = None,
    stdtype: terms.Stream = None,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Print a task's log; with -f until it ends."""
    master = session.master(context)
    wanted = logs.Wanted(head, tail, rank, level, grep, regex, since, until, stdtype)
    if follow:
        raise typer.Exit(tasks.follow(master, task, wanted))
    logs.show(master, task, wanted, form)


@verb(app, "config")
def show_config(context: typer.Context, task: terms.TaskId) -> None:
    """Print a task's configuration as YAML, secrets masked."""
    render.document(session.master(context).task_config(task), render.Format.YAML)


@verb(app, "pause")
def pause(context: typer.Context, task: TaskIds) -> None:
    """Stop tasks for now; `unpause` starts them again."""
    tasks.operate(context, task, "pause", "paused")


@verb(app, "unpause", "activate")
def unpause(context: typer.Context, task: TaskIds) -> None:
    """Let paused tasks go on."""
    tasks.operate(context, task, "activate", "activated")


@verb(app, "cancel")
def cancel(context: typer.Context, task: TaskIds) -> None:
    """Ask tasks to end."""
    tasks.operate(context, task, "cancel", "is being canceled")


@verb(app, "kill")
def kill(context: typer.Context, task: TaskIds) -> None:
    """End tasks at once."""
    tasks.operate(context, task, "kill", "is being killed")


@verb(app, "delete")
def delete(context: typer.Context, task: TaskIds, yes: terms.Yes = False) -> None:
    """Delete ended tasks with their logs."""
    if not yes:
        typer.confirm(render.plain(f"Delete {', '.join(task)} with their logs?"), abort=True, err=True)
    master = session.master(context)
    for each in task:
        master.delete_task(each)
        print(render.plain(f"Deleted task {each}"))
