"""`det job`: jobs to run, and the queue that everything waits in."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli import logs, render, session, tasks, terms
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

if TYPE_CHECKING:
    from determined.wire.views import QueueEntry

app = noun_app("Jobs and the queue: run, list, why, update.")

JobId = Annotated[str, typer.Argument(metavar="JOB", help="experiment-3, job-5, or the number of an experiment.")]

# How `update-batch` writes a field, and what the master calls it.
_FIELDS = {
    "priority": "priority",
    "weight": "weight",
    "resource-pool": "resource_pool",
    "resource_pool": "resource_pool",
}
_FIELDS |= {"ahead-of": "ahead_of", "ahead_of": "ahead_of", "behind-of": "behind", "behind": "behind"}


@verb(app, "run")
def run(
    context: typer.Context,
    config: Annotated[pathlib.Path, typer.Argument(help="The job's configuration, a YAML file; - for stdin.")],
    folder: Annotated[pathlib.Path | None, typer.Argument(metavar="[DIR]", help="The folder of code to send.")] = None,
    include: terms.Includes = None,
    overrides: terms.Overrides = None,
    template: terms.Template = None,
    paused: Annotated[
        bool, typer.Option("--paused", help="Create it, and let it wait for `det task unpause`.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print its log until it ends.")] = False,
) -> None:
    """Run something on slots that is no training: its `data` reaches the code as context.config_data."""
    start(context, config, folder, include or (), overrides or (), template, paused, follow)


def start(
    context: typer.Context,
    config: pathlib.Path,
    folder: pathlib.Path | None,
    includes: Sequence[pathlib.Path],
    overrides: Sequence[str],
    template: str | None,
    paused: bool,
    follow: bool,
) -> None:
    """Check a job's configuration, send it with the code, and start it."""
    from determined import config as configs
    from determined.cli import submit

    wanted = submit.Submission(config, folder, tuple(includes), tuple(overrides))
    text = submit.read(config)
    if not template:
        found = configs.load_task(text, overrides=overrides, file=wanted.file, to_run=True)
        for notice in found.notices:
            session.tell(f"note: {notice}")
    master = session.master(context)
    made = tasks.start(
        master,
        "job",
        config=text,
        file=wanted.file,
        folder=folder,
        includes=includes,
        overrides=overrides,
        template=template,
        paused=paused,
    )
    print(f"Created job {made.id}", flush=True)
    if follow:
        raise typer.Exit(tasks.follow(master, made.id))
    session.tell(f"Follow it: det task logs -f {made.id}. Stop it: det task kill {made.id}.")


@verb(app, "list", "ls")
@formatted
def list_jobs(
    context: typer.Context,
    pool: Annotated[str | None, typer.Option("--resource-pool", "-p", help="The queue of this pool.")] = None,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show the queue: what runs and what waits, in order, and why."""
    rows = [_row(each, form) for each in session.master(context).jobs(pool)]
    columns = ["position", "job", "name", "state", "slots", "priority", "pool", "owner", "why"]
    render.listing(rows, columns, form, empty="Nothing runs and nothing waits.")


@verb(app, "describe")
@formatted
def describe(context: typer.Context, job: JobId, form: render.Format = render.Format.TABLE) -> None:
    """Show one job of the queue."""
    found = session.master(context).job(_id(job))
    fields = ["job_id", "name", "kind", "state", "pool", "priority", "weight", "slots_held", "slots_wanted"]
    render.record(found.model_dump(), [*fields, "running", "waiting", "position", "why"], form)


@verb(app, "why")
@formatted
def why(context: typer.Context, job: JobId, form: render.Format = render.Format.TABLE) -> None:
    """Say why a job waits, and for what."""
    found = session.master(context).job(_id(job))
    if form is not render.Format.TABLE:
        render.record(found.model_dump(), ["job_id", "state", "why"], form)
    elif found.why:
        print(render.plain(found.why))
    elif found.waiting:
        print(f"{found.job_id} waits for the next pass of the scheduler")
    else:
        print(f"{found.job_id} does not wait: it has {found.slots_held} of {found.slots_wanted} slots")


@verb(app, "update", "u")
def update(
    context: typer.Context,
    job: JobId,
    priority: Annotated[int | None, typer.Option("--priority", "-p", help="1 is served first, 99 last.")] = None,
    weight: Annotated[float | None, typer.Option("--weight", "-w", help="Share under fair-share scheduling.")] = None,
    pool: Annotated[str | None, typer.Option("--resource-pool", help="Move it into this pool.")] = None,
    ahead_of: Annotated[str | None, typer.Option("--ahead-of", help="Put it before this job.")] = None,
    behind: Annotated[str | None, typer.Option("--behind-of", "--behind", help="Put it after this job.")] = None,
) -> None:
    """Change a job's priority, weight, pool or place in the queue."""
    changes = {
        "priority": priority,
        "weight": weight,
        "resource_pool": pool,
        "ahead_of": _id(ahead_of) if ahead_of else None,
        "behind": _id(behind) if behind else None,
    }
    _update(context, _id(job), {name: value for name, value in changes.items() if value is not None})


@verb(app, "update-batch")
def update_batch(
    context: typer.Context,
    changes: Annotated[
        list[str], typer.Argument(metavar="JOB.FIELD=VALUE...", help="For example experiment-3.priority=1")
    ],
) -> None:
    """Change several jobs of the queue."""
    wanted: list[tuple[str, dict[str, Any]]] = []
    for change in changes:
        left, equals, value = change.partition("=")
        job, dot, field = left.rpartition(".")
        if not (job and dot and equals and value and field in _FIELDS):
            fields = "priority, weight, resource-pool, ahead-of, behind-of"
            raise typer.BadParameter(f"{change!r} must be written JOB.FIELD=VALUE, with a field of {fields}")
        name = _FIELDS[field]
        wanted.append((_id(job), {name: _id(value) if name in ("ahead_of", "behind") else value}))
    for job, change_of_job in wanted:
        _update(context, job, change_of_job)


def _update(context: typer.Context, job: str, changes: dict[str, Any]) -> None:
    from determined.wire import requests

    if not changes:
        raise typer.BadParameter("say what to change; --help lists what there is")
    session.master(context).edit_job(job, session.request(requests.EditJob, **changes))
    print(render.plain(f"Job {job} changed: {', '.join(name.replace('_', ' ') for name in changes)}"))


@verb(app, "logs")
def show_logs(
    context: typer.Context,
    task: terms.TaskId,
    follow: terms.Follow = False,
    tail: terms.Tail = None,
) -> None:
    """Print a job's log; `det task logs` can do more."""
    master = session.master(context)
    if follow:
        raise typer.Exit(tasks.follow(master, task, logs.Wanted(tail=tail)))
    logs.show(master, task, logs.Wanted(tail=tail))


@verb(app, "kill")
def kill(
    context: typer.Context, task: Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids, for example job-3.")]
) -> None:
    """End jobs at once."""
    tasks.operate(context, task, "kill", "is being killed")


def _id(job: str) -> str:
    """A bare number is an experiment's: those are what people know the numbers of."""
    return f"experiment-{job}" if job.isdecimal() else job


def _row(entry: QueueEntry, form: render.Format) -> Mapping[str, Any]:
    if form in (render.Format.JSON, render.Format.JSONL, render.Format.YAML):
        return entry.model_dump()
    return {
        **entry.model_dump(),
        "job": entry.job_id,
        "slots": f"{entry.slots_held}/{entry.slots_wanted}",
        "owner": entry.username,
    }
