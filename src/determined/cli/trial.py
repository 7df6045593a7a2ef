"""`det trial`: one set of hyperparameters, being trained."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined import errors
from determined.cli import render, session, terms
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

if TYPE_CHECKING:
    from determined.wire.views import TrialView

app = noun_app("Trials: describe, logs, metrics, stop.")
settings = noun_app("Change a trial.")
app.add("set", settings)


@verb(app, "describe")
@formatted
def describe(
    context: typer.Context,
    trial: terms.TrialId,
    metrics: Annotated[bool, typer.Option("--metrics", help="Every report of metrics too.")] = False,
    summary: Annotated[
        bool, typer.Option("--metrics-summary", help="Last, smallest and largest of each metric.")
    ] = False,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show a trial: its hyperparameters, how it is going, its checkpoints, what went wrong."""
    master = session.master(context)
    view = master.trial(trial)
    rows = [row.model_dump() for row in master.all_trial_metrics(trial)] if metrics else []
    if form is render.Format.CSV:
        render.listing(
            rows or [_row(view)], ["steps_completed", "group", "metrics"] if rows else list(_row(view)), form
        )
        return
    attempts = master.trial_allocations(trial)
    checkpoints = [each for each in master.trial_checkpoints(trial, limit=100).items if each.state != "DELETED"]
    if form is not render.Format.TABLE:
        document = view.model_dump()
        document["allocations"] = [each.model_dump() for each in attempts]
        document["checkpoints"] = [each.model_dump() for each in checkpoints]
        if metrics:
            document["metrics"] = rows
        render.document(document, form)
        return
    render.facts(
        [(name.replace("_", " "), str(value)) for name, value in _row(view).items() if value not in ("", None)]
    )
    if view.hparams:
        print("\nhyperparameters")
        render.facts([(f"  {name}", render.number(value)) for name, value in sorted(view.hparams.items())])
    if summary and view.summary_metrics:
        print("\nmetrics")
        render.document(view.summary_metrics, render.Format.YAML)
    if len(attempts) > 1:
        print()
        starts = [{**each.model_dump(), "outcome": each.outcome or each.state} for each in attempts]
        render.listing(starts, ["id", "outcome", "slots", "reason"], render.Format.TABLE)
    if checkpoints:
        from determined.cli.experiment import print_checkpoints

        print()
        print_checkpoints(checkpoints, form, "")
    if rows:
        print()
        render.listing(rows, ["steps_completed", "group", "metrics"], form)
    if view.error:
        print(f"\n{render.lines(view.error)}")


def _row(view: TrialView) -> dict[str, Any]:
    best = "" if view.best_metric is None else f"{render.number(view.best_metric)} after {view.best_step} batches"
    return {
        "trial": view.id,
        "experiment": view.experiment_id,
        "state": view.state,
        "status": view.status,
        "progress": f"{100 * view.progress:.0f}%",
        "batches": view.steps_completed,
        "best": best,
        "restarts": view.restarts,
        "latest_checkpoint": view.latest_checkpoint,
        "seed": view.seed,
    }


@verb(app, "metrics")
@formatted
def metrics(
    context: typer.Context,
    trial: terms.TrialId,
    group: Annotated[
        str | None, typer.Option("--group", help="training, validation, or one of your own; default: all.")
    ] = None,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Print every report of metrics."""
    rows = [row.model_dump() for row in session.master(context).all_trial_metrics(trial, group)]
    render.listing(
        rows, ["steps_completed", "group", "metrics"], form, empty=f"Trial {trial} has reported nothing yet."
    )


@verb(app, "logs")
@formatted
def show_logs(
    context: typer.Context,
    trial: terms.TrialId,
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
    """Print a trial's log; with -f until it ends."""
    from determined.cli import follow as following
    from determined.cli import logs

    master = session.master(context)
    wanted = logs.Wanted(head, tail, rank, level, grep, regex, since, until, stdtype)
    if follow:
        following.trial(master, trial, wanted, form)
    else:
        logs.show(master, f"trial-{trial}", wanted, form)


@verb(app, "kill")
def kill(context: typer.Context, trial: terms.TrialId) -> None:
    """End a trial at once, without a last checkpoint."""
    session.master(context).operate_trial(trial, "kill")
    print(f"Trial {trial} is being killed")


@verb(app, "cancel")
def cancel(context: typer.Context, trial: terms.TrialId) -> None:
    """Save a last checkpoint of a trial and end it."""
    session.master(context).operate_trial(trial, "cancel")
    print(f"Trial {trial} is being canceled")


@verb(app, "continue")
def continue_trial(
    context: typer.Context,
    trial: terms.TrialId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print its log until it ends.")] = False,
) -> None:
    """Train a trial on that has ended, from its latest checkpoint."""
    master = session.master(context)
    master.operate_trial(trial, "continue")
    print(f"Continued trial {trial}", flush=True)
    if follow:
        from determined.cli import follow as following
        from determined.cli import logs

        following.trial(master, trial, logs.Wanted(tail=1))


@verb(app, "download")
def download(
    context: typer.Context,
    trial: terms.TrialId,
    best: Annotated[bool, typer.Option("--best", help="The best checkpoint (the default).")] = False,
    latest: Annotated[bool, typer.Option("--latest", help="The latest checkpoint.")] = False,
    uuid: Annotated[str | None, typer.Option("--uuid", help="This checkpoint.")] = None,
    output: Annotated[pathlib.Path | None, typer.Option("-o", "--output-dir", help="Where to.")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only where the files are.")] = False,
) -> None:
    """Download a checkpoint of a trial."""
    if best + latest + (uuid is not None) > 1:
        raise typer.BadParameter("choose one of --best, --latest and --uuid")
    from determined.client import download as downloading
    from determined.client.enums import DownloadMode

    master = session.master(context)
    if uuid is not None:
        view = master.checkpoint(uuid)
    else:
        newest_first = {"sort_by": "end_time", "order": "desc"} if latest else {}
        found = master.trial_checkpoints(trial, states=["COMPLETED"], limit=1, **newest_first).items  # type: ignore[arg-type]
        if not found:
            raise errors.CheckpointNotFound(f"trial {trial} has no checkpoint yet")
        view = found[0]
    place = downloading.download(master, view, output or pathlib.Path("checkpoints") / view.uuid, DownloadMode.AUTO)
    print(place if quiet else f"checkpoint {view.uuid} ({view.steps_completed} batches): {place}")


@verb(settings, "log-retention")
def set_log_retention(
    context: typer.Context,
    trial: terms.TrialId,
    days: Annotated[int | None, typer.Option("--days", help="Keep logs so many days.", min=0, max=32767)] = None,
    forever: Annotated[bool, typer.Option("--forever", help="Keep logs for ever.")] = False,
) -> None:
    """Change how long the logs of a trial's experiment are kept."""
    if forever == (days is not None):
        raise typer.BadParameter("give either --days or --forever")
    from determined.wire import requests

    master = session.master(context)
    experiment = master.trial(trial).experiment_id
    master.edit_experiment(
        experiment, session.request(requests.EditExperiment, log_retention_days=-1 if forever else days)
    )
    how_long = "for ever" if forever else f"{days} days"
    print(f"Logs of experiment {experiment}, and so of trial {trial}, are kept {how_long}")
