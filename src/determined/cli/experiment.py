"""`det experiment`: make experiments, look at them, and say what is to become of them."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined import errors
from determined.cli import choose, render, session, terms
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

if TYPE_CHECKING:
    from determined.wire.views import CheckpointView, ExperimentView, TrialView

app = noun_app("Experiments: create, follow, stop, continue, compare.")
labels = noun_app("Labels of an experiment: add, remove.")
settings = noun_app("Change an experiment: its name, notes, limits, what it keeps.")
app.add("label", labels)
app.add("set", settings)

_ALL = 10_000


@verb(app, "create")
def create(
    context: typer.Context,
    config: Annotated[pathlib.Path, typer.Argument(help="The experiment's configuration, a YAML file; - for stdin.")],
    folder: Annotated[
        pathlib.Path | None, typer.Argument(metavar="[DIR]", help="The folder of code to send; its .detignore is kept.")
    ] = None,
    include: terms.Includes = None,
    overrides: terms.Overrides = None,
    template: terms.Template = None,
    project_id: Annotated[
        int | None, typer.Option("--project-id", "--project_id", help="The project it belongs to.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", "--follow-first-trial", help="Watch it to its end; the exit code says how it ended."
        ),
    ] = False,
    with_logs: Annotated[bool, typer.Option("--logs", help="With -f: print the logs of all trials.")] = False,
    paused: Annotated[bool, typer.Option("--paused", help="Create it, and let it wait for `activate`.")] = False,
    test: Annotated[
        bool, typer.Option("--test", "-t", "--test-mode", help="Only try it: one batch of one trial, then archive it.")
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Run all of it here and now, without a master; with --test one batch.")
    ] = False,
    slots: Annotated[
        int | None,
        typer.Option("--slots", help="With --local: use so many slots; default: all GPUs, else cores.", min=1),
    ] = None,
) -> None:
    """Check a configuration, send it with the code, and start it."""
    from determined.cli import submit

    wanted = submit.Submission(config, folder, tuple(include or ()), tuple(overrides or ()))
    if local:
        from determined.cli import local_search as here

        checked = submit.checked(wanted)
        if test:
            raise typer.Exit(here.test(wanted, checked))
        raise typer.Exit(here.create(wanted, checked, context.find_root().obj.environ, slots))
    text = submit.read(config)
    if not template:
        # Before a master is started for something that it would refuse.
        submit.checked(wanted, text)
    master = session.master(context)
    made = submit.create(master, wanted, text, template=template, project_id=project_id, paused=paused, test=test)
    print(f"Created experiment {made.id}", flush=True)
    if follow or test:
        from determined.cli import follow as following

        raise typer.Exit(following.experiment(master, made.id, with_logs or test))
    session.tell(f"Follow it: det e logs -f {made.id}. Stop it: det e kill {made.id}.")


@verb(app, "continue")
def continue_experiment(
    context: typer.Context,
    which: Annotated[str, typer.Argument(metavar="ID", help="An experiment; with --local, the name of a search here.")],
    config: Annotated[
        pathlib.Path | None, typer.Argument(help="Fields to change, as a YAML file.", show_default=False)
    ] = None,
    overrides: terms.Overrides = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Watch it to its end.")] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Go on with a search that was run with `create --local`.")
    ] = False,
    slots: Annotated[int | None, typer.Option("--slots", help="With --local: use so many slots.", min=1)] = None,
) -> None:
    """Train an experiment on that has ended: from its latest checkpoints, with changes if you like."""
    if local:
        from determined.cli import local_search as here

        raise typer.Exit(here.resume(which, context.find_root().obj.environ, slots))
    from determined.cli import submit

    master = session.master(context)
    view = choose.experiment(master, which)
    changes = [*(submit.as_overrides(config) if config else ()), *(overrides or ())]
    view = master.continue_experiment(view.id, changes)
    print(f"Continued experiment {view.id}", flush=True)
    if follow:
        from determined.cli import follow as following

        raise typer.Exit(following.experiment(master, view.id))


@verb(app, "fork")
def fork(
    context: typer.Context,
    which: terms.ExperimentId,
    overrides: terms.Overrides = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create it, and let it wait for `activate`.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Watch it to its end.")] = False,
) -> None:
    """Create a new experiment from an old one's configuration and code, with changes if you like."""
    from determined.cli import submit

    master = session.master(context)
    made = submit.fork(master, choose.experiment(master, which), overrides or (), paused)
    print(f"Created experiment {made.id}", flush=True)
    if follow:
        from determined.cli import follow as following

        raise typer.Exit(following.experiment(master, made.id))


def _operation(name: str, done: str, help: str, *others: str) -> None:
    """A verb that does one thing to one experiment or to several."""

    def command(context: typer.Context, which: terms.ExperimentIds) -> None:
        _operate(context, which, name, done)

    command.__doc__ = help
    verb(app, name, *others)(command)


_operation("activate", "activated", "Let paused experiments go on.", "unpause")
_operation("pause", "paused", "Save and stop for now; `activate` goes on.")
_operation("cancel", "is being canceled", "Save a last checkpoint and end.")
_operation("kill", "is being killed", "End at once, without a last checkpoint.")
_operation("archive", "archived", "Hide ended experiments from lists.")
_operation("unarchive", "unarchived", "Show archived experiments in lists again.")
_operation("retry", "tries its failed trials again", "Start the failed trials again, from their latest checkpoints.")


@verb(app, "delete")
def delete(context: typer.Context, which: terms.ExperimentIds, yes: terms.Yes = False) -> None:
    """Delete experiments with their metrics, logs and checkpoints, for good."""
    _require_ids(which)
    master = session.master(context)
    ids = choose.experiments(master, which)
    if not yes:
        names = ", ".join(f"{each} ({master.experiment(each).name})" for each in ids[:5])
        more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
        typer.confirm(render.plain(f"Delete {names}{more} with all checkpoints, for good?"), abort=True, err=True)
    _operate(context, [str(each) for each in ids], "delete", "is being deleted")


def _require_ids(which: Sequence[str]) -> None:
    """Tell of a slip before anybody is asked for anything."""
    choose.ids([text for text in which if text[:1].isdigit()])


def _operate(context: typer.Context, which: Sequence[str], operation: str, done: str) -> None:
    _require_ids(which)
    master = session.master(context)
    failed = False
    for each in choose.experiments(master, which):
        try:
            if operation == "delete":
                master.delete_experiment(each)
            else:
                master.operate_experiment(each, operation)  # type: ignore[arg-type]
            print(f"Experiment {each} {done}", flush=True)
        except (errors.NotFound, errors.Refused, errors.Forbidden) as error:
            failed = True
            about = f"experiment {each}"
            says = render.sentences(error)
            print(f"det: {says if about in says else f'{about}: {says}'}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


@verb(app, "list", "ls")
@formatted
def list_experiments(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Archived ones too.")] = False,
    state: Annotated[list[str] | None, typer.Option("--state", help="In this state, for example RUNNING.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", help="With this label.")] = None,
    owner: Annotated[list[str] | None, typer.Option("--owner", help="Of this user.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="With this in the name.")] = None,
    project_id: Annotated[int | None, typer.Option("--project-id", help="Of this project.")] = None,
    show_project: Annotated[
        bool, typer.Option("--show-project", "--show_project", help="Show workspaces and projects.")
    ] = False,
    sort_by: Annotated[
        str, typer.Option("--sort-by", help="id, name, state, progress, created_at, ended_at, ...")
    ] = "id",
    ascending: Annotated[bool, typer.Option("--asc", help="Smallest first.")] = False,
    limit: terms.Limit = 200,
    offset: terms.Offset = 0,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show experiments, the newest first."""
    page = session.master(context).experiments(
        states=[each.upper() for each in state] if state else None,
        labels=label or None,
        users=owner or None,
        name=name,
        project_id=project_id,
        archived=None if everything else False,
        sort_by=sort_by,
        order="asc" if ascending else "desc",
        offset=offset,
        limit=limit,
    )
    rows = [_row(view, form) for view in page.items]
    columns = ["id", "name", "state", "progress", "trials", "metric", "best", "owner", "created"]
    if show_project:
        columns[2:2] = ["workspace", "project"]
    render.listing(rows, columns, form, empty="No experiments yet; 'det experiment create' makes one.")
    if form is render.Format.TABLE and page.total > offset + len(rows):
        session.tell(f"{len(rows)} of {page.total}; --limit and --offset show others")


def _row(view: ExperimentView, form: render.Format) -> Mapping[str, Any]:
    if form in (render.Format.JSON, render.Format.JSONL, render.Format.YAML):
        return view.model_dump()
    is_table = form is render.Format.TABLE
    return {
        "id": view.id,
        "name": view.name,
        "state": view.state + (" (archived)" if view.archived else ""),
        "progress": f"{100 * view.progress:.0f}%" if is_table else view.progress,
        "trials": view.trial_count,
        "metric": view.metric,
        "best": view.best_metric,
        "owner": view.username,
        "workspace": view.workspace_name,
        "project": view.project_name,
        "created": render.age(view.created_at) if is_table else view.created_at,
    }


@verb(app, "list-trials", "lt")
@formatted
def list_trials(
    context: typer.Context,
    which: terms.ExperimentId,
    sort_by: Annotated[
        str, typer.Option("--sort-by", help="id, state, best_metric (the best first), steps_completed, ...")
    ] = "id",
    descending: Annotated[bool, typer.Option("--desc", help="Largest first.")] = False,
    limit: terms.Limit = 1000,
    offset: terms.Offset = 0,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show an experiment's trials."""
    master = session.master(context)
    view = choose.experiment(master, which)
    is_falling = descending or (sort_by == "best_metric" and not view.smaller_is_better)
    page = master.experiment_trials(
        view.id, sort_by=sort_by, order="desc" if is_falling else "asc", offset=offset, limit=limit
    )
    _print_trials(page.items, view, form, empty=f"Experiment {view.id} has no trials yet.")


def _trial_row(trial: TrialView, view: ExperimentView, form: render.Format) -> Mapping[str, Any]:
    if form in (render.Format.JSON, render.Format.JSONL, render.Format.YAML):
        return trial.model_dump()
    is_table = form is render.Format.TABLE
    mark = " ●" if is_table and trial.id == view.best_trial_id else ""
    return {
        "id": trial.id,
        "state": trial.state,
        "progress": f"{100 * trial.progress:.0f}%" if is_table else trial.progress,
        "steps": trial.steps_completed,
        "best": f"{render.number(trial.best_metric)}{mark}" if mark else trial.best_metric,
        "restarts": trial.restarts,
        "hyperparameters": trial.hparams,
    }


@verb(app, "list-checkpoints", "lc")
@formatted
def list_checkpoints(
    context: typer.Context,
    which: terms.ExperimentId,
    best: Annotated[int | None, typer.Option("--best", help="Only the best so many.", min=1)] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Deleted ones too.")] = False,
    limit: terms.Limit = 1000,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show an experiment's checkpoints, the best first."""
    master = session.master(context)
    view = choose.experiment(master, which)
    states = None if everything else ["ACTIVE", "COMPLETED", "ERROR", "PARTIALLY_DELETED"]
    found = master.experiment_checkpoints(view.id, states=states, limit=best or limit).items
    print_checkpoints(found, form, empty=f"Experiment {view.id} has no checkpoints yet.")


def print_checkpoints(found: Sequence[CheckpointView], form: render.Format, empty: str) -> None:
    """A table of checkpoints."""
    rows: list[Mapping[str, Any]] = []
    for each in found:
        row = each.model_dump()
        if form in (render.Format.TABLE, render.Format.CSV):
            row = {**row, "trial": each.trial_id, "batches": each.steps_completed, "metric": each.searcher_metric}
        if form is render.Format.TABLE:
            row = {**row, "size": render.size(each.size), "reported": render.age(each.reported_at)}
        elif form is render.Format.CSV:
            row = {**row, "reported": each.reported_at}
        rows.append(row)
    render.listing(rows, ["uuid", "trial", "batches", "state", "metric", "size", "reported"], form, empty=empty)


@verb(app, "describe")
@formatted
def describe(
    context: typer.Context,
    which: Annotated[list[str], typer.Argument(metavar="EXPERIMENT...", help="Ids or names.")],
    metrics: Annotated[bool, typer.Option("--metrics", help="Every trial's validations too.")] = False,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show experiments: what they ask for, how they are going, what went wrong."""
    master = session.master(context)
    views = [choose.experiment(master, each) for each in which]
    documents = []
    for number, view in enumerate(views):
        trials = master.experiment_trials(view.id, limit=_ALL).items
        rows = list(master.experiment_metrics(view.id, "validation")) if metrics else []
        if form in (render.Format.TABLE, render.Format.CSV):
            if form is render.Format.CSV:
                _print_metrics(rows, form) if metrics else _print_trials(trials, view, form)
                continue
            if number:
                print()
            _print_facts(view)
            if trials:
                print()
                _print_trials(trials[:50], view, form)
            for each in [each for each in trials if each.error][:3]:
                print(f"\ntrial {each.id}:\n{render.lines(each.error or '')}")
            if rows:
                print()
                _print_metrics(rows, form)
            continue
        document = {**view.model_dump(), "trials": [each.model_dump() for each in trials]}
        if metrics:
            document["metrics"] = [row.model_dump() for row in rows]
        documents.append(document)
    if documents:
        render.document(documents[0] if len(documents) == 1 else documents, form)


def _print_trials(trials: Sequence[TrialView], view: ExperimentView, form: render.Format, empty: str = "") -> None:
    columns = ["id", "state", "progress", "steps", "best", "restarts", "hyperparameters"]
    rows = [_trial_row(each, view, form) for each in trials]
    if form is render.Format.TABLE:
        apart = render.differing([each.hparams for each in trials])
        rows = [{**row, "hyperparameters": part} for row, part in zip(rows, apart)]
    render.listing(rows, columns, form, empty=empty)


def _print_metrics(rows: Sequence[Any], form: render.Format) -> None:
    shown = [
        {"trial": row.trial_id, "steps": row.steps_completed, "group": row.group, "metrics": row.metrics}
        for row in rows
    ]
    render.listing(shown, ["trial", "steps", "group", "metrics"], form)


def _print_facts(view: ExperimentView) -> None:
    best = ""
    if view.best_metric is not None:
        best = f"{render.number(view.best_metric)} (trial {view.best_trial_id})"
    counts = ", ".join(f"{count} {state.lower()}" for state, count in view.trial_counts.items() if count)
    pairs = [
        ("experiment", str(view.id)),
        ("name", view.name),
        ("description", view.description),
        ("state", view.state + (", archived" if view.archived else "")),
        ("progress", f"{100 * view.progress:.0f}%"),
        ("trials", f"{view.trial_count}" + (f" ({counts})" if counts else "")),
        ("searcher", view.searcher),
        (f"best {view.metric}", best),
        ("checkpoints", f"{view.checkpoint_count} ({render.size(view.checkpoint_size)})"),
        ("project", f"{view.workspace_name} / {view.project_name}"),
        ("owner", view.username),
        ("labels", ", ".join(view.labels)),
        ("notes", view.notes),
        ("pool", view.resource_pool),
        ("slots for each trial", str(view.slots_per_trial)),
        ("forked from", "" if view.parent_id is None else str(view.parent_id)),
        ("created", render.age(view.created_at)),
        ("error", view.error or ""),
    ]
    render.facts([(name, value) for name, value in pairs if value])
    for notice in (*view.notices, *filter(None, [view.what_is_missing])):
        session.tell(f"note: {notice}")


@verb(app, "config")
def show_config(
    context: typer.Context,
    which: terms.ExperimentId,
    written: Annotated[bool, typer.Option("--written", help="As it was submitted, comments included.")] = False,
) -> None:
    """Print an experiment's configuration as YAML, defaults included, secrets masked."""
    master = session.master(context)
    found = master.experiment_config(choose.experiment(master, which).id)
    if written:
        print(render.lines(found["written"]).rstrip("\n"))
    else:
        render.document(found["config"], render.Format.YAML)


@verb(app, "download")
def download(
    context: typer.Context,
    which: terms.ExperimentId,
    output: Annotated[
        pathlib.Path, typer.Option("-o", "--output-dir", help="Where to; each checkpoint in a folder of its own.")
    ] = pathlib.Path("checkpoints"),
    top_n: Annotated[int, typer.Option("--top-n", help="The best so many.", min=1)] = 1,
    sort_by: Annotated[
        str | None, typer.Option("--sort-by", help="A validation metric; default: the searcher's.")
    ] = None,
    smaller: Annotated[
        bool | None, typer.Option("--smaller-is-better/--larger-is-better", help="With --sort-by: what is better.")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only where the files are.")] = False,
) -> None:
    """Download the best checkpoints of an experiment."""
    from determined.client import download as downloading
    from determined.client.enums import DownloadMode

    master = session.master(context)
    view = choose.experiment(master, which)
    found = master.experiment_checkpoints(view.id, states=["COMPLETED"], limit=_ALL if sort_by else top_n).items
    if sort_by:
        sign = -1.0 if smaller is False else 1.0
        having = [each for each in found if isinstance((each.validation_metrics or {}).get(sort_by), (int, float))]
        found = sorted(having, key=lambda each: sign * (each.validation_metrics or {})[sort_by])[:top_n]
    if not found:
        raise errors.CheckpointNotFound(
            f"experiment {view.id} has no checkpoint" + (f" with a metric {sort_by!r}" if sort_by else " yet")
        )
    for each in found:
        place = downloading.download(master, each, output / each.uuid, DownloadMode.AUTO)
        if quiet:
            print(place)
        else:
            print(f"checkpoint {each.uuid} ({render.size(each.size)}, {each.steps_completed} batches): {place}")


@verb(app, "download-model-def")
def download_code(
    context: typer.Context,
    which: terms.ExperimentId,
    output: Annotated[pathlib.Path | None, typer.Option("-o", "--output-dir", help="Where to.")] = None,
) -> None:
    """Download the code that an experiment was submitted with."""
    from determined.cli import submit

    master = session.master(context)
    view = choose.experiment(master, which)
    place = output or pathlib.Path(f"experiment-{view.id}-code")
    count = submit.download_code(master, view, place)
    print(f"{count} files: {render.plain(place)}")


@verb(app, "logs")
@formatted
def show_logs(
    context: typer.Context,
    which: terms.ExperimentId,
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
    """Print the logs of an experiment's trials; with -f until it ends."""
    from determined.cli import follow as following
    from determined.cli import logs

    master = session.master(context)
    view = choose.experiment(master, which)
    wanted = logs.Wanted(head, tail, rank, level, grep, regex, since, until, stdtype)
    if follow and wanted == logs.Wanted() and form is render.Format.TABLE:
        raise typer.Exit(following.experiment(master, view.id, with_logs=True))
    trials = master.experiment_trials(view.id, limit=_ALL).items
    if follow and view.trial_count == len(trials) == 1:
        following.trial(master, trials[0].id, wanted, form)
        return
    if follow:
        following.chosen_lines(master, view.id, wanted, form)
        return
    for each in trials:
        prefix = f"[trial {each.id}] " if len(trials) > 1 else ""
        logs.show(master, f"trial-{each.id}", wanted, form, prefix)


@verb(app, "wait")
def wait(
    context: typer.Context,
    which: terms.ExperimentId,
    interval: Annotated[float, typer.Option("--polling-interval", help="Seconds between two looks.", min=0.1)] = 2.0,
) -> None:
    """Wait until an experiment has ended; exit code 0 only if it completed."""
    from determined.cli import follow as following
    from determined.cli import logs

    master = session.master(context)
    view = choose.experiment(master, which)
    try:
        view = following.wait(master, view.id, interval)
    except KeyboardInterrupt:
        raise logs.detached(f"Experiment {view.id}", f"det e wait {view.id}", f"det e kill {view.id}") from None
    print(f"Experiment {view.id} {view.state.lower()}")
    if view.error:
        session.tell(view.error)
    raise typer.Exit(0 if view.state == "COMPLETED" else 1)


@verb(app, "move")
def move(
    context: typer.Context,
    which: terms.ExperimentId,
    target: Annotated[list[str], typer.Argument(metavar="[WORKSPACE] PROJECT", help="Where to; a name or an id.")],
) -> None:
    """Move an experiment into another project."""
    if len(target) > 2:
        raise typer.BadParameter("give a project, or a workspace and a project")
    master = session.master(context)
    view = choose.experiment(master, which)
    workspace = choose.one("workspace", target[0], master.workspaces(), choose.by_id_and_name) if target[1:] else None
    projects = master.projects(workspace.id if workspace else None)
    project = choose.one("project", target[-1], projects, choose.by_id_and_name)
    master.move_experiment(view.id, project.id)
    print(render.plain(f"Experiment {view.id} is in {project.workspace_name} / {project.name} now"))


@verb(app, "edit")
def edit(
    context: typer.Context,
    which: terms.ExperimentId,
    name: Annotated[str | None, typer.Option("--name", help="Its new name.")] = None,
    description: Annotated[str | None, typer.Option("--description", help="A sentence about it.")] = None,
    notes: Annotated[str | None, typer.Option("--notes", help="Notes, in Markdown; - reads them from stdin.")] = None,
) -> None:
    """Change what an experiment is called and what is said about it."""
    if notes == "-":
        notes = sys.stdin.read()
    changes = {"name": name, "description": description, "notes": notes}
    _edit(context, which, **{field: value for field, value in changes.items() if value is not None})


@verb(labels, "add")
def add_label(context: typer.Context, which: terms.ExperimentId, label: str) -> None:
    """Add a label."""
    master = session.master(context)
    view = choose.experiment(master, which)
    _edit(context, str(view.id), labels=sorted({*view.labels, label}))


@verb(labels, "remove")
def remove_label(context: typer.Context, which: terms.ExperimentId, label: str) -> None:
    """Remove a label."""
    master = session.master(context)
    view = choose.experiment(master, which)
    if label not in view.labels:
        known = ", ".join(view.labels) or "none"
        raise errors.NotFound(f"experiment {view.id} has no label {label!r}; it has {known}")
    _edit(context, str(view.id), labels=[each for each in view.labels if each != label])


@verb(settings, "name")
def set_name(context: typer.Context, which: terms.ExperimentId, name: str) -> None:
    """Change its name."""
    _edit(context, which, name=name)


@verb(settings, "description")
def set_description(context: typer.Context, which: terms.ExperimentId, description: str) -> None:
    """Change the sentence about it."""
    _edit(context, which, description=description)


@verb(settings, "notes")
def set_notes(context: typer.Context, which: terms.ExperimentId, notes: str) -> None:
    """Change its notes."""
    _edit(context, which, notes=notes)


@verb(settings, "gc-policy")
def set_retention(
    context: typer.Context,
    which: terms.ExperimentId,
    experiment_best: Annotated[
        int | None, typer.Option("--save-experiment-best", help="Keep so many best of all trials.", min=0)
    ] = None,
    trial_best: Annotated[
        int | None, typer.Option("--save-trial-best", help="Keep so many best of each trial.", min=0)
    ] = None,
    trial_latest: Annotated[
        int | None, typer.Option("--save-trial-latest", help="Keep so many latest of each trial.", min=0)
    ] = None,
    yes: terms.Yes = False,
) -> None:
    """Change which checkpoints are kept; the others are deleted."""
    changes = {
        "save_experiment_best": experiment_best,
        "save_trial_best": trial_best,
        "save_trial_latest": trial_latest,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        raise typer.BadParameter("say what to keep, for example --save-trial-best 1")
    if not yes:
        typer.confirm("Checkpoints that are not kept are deleted. Go on?", abort=True, err=True)
    _edit(context, which, **given)


@verb(settings, "log-retention")
def set_log_retention(
    context: typer.Context,
    which: terms.ExperimentId,
    days: Annotated[int | None, typer.Option("--days", help="Keep logs so many days.", min=0, max=32767)] = None,
    forever: Annotated[bool, typer.Option("--forever", help="Keep logs for ever.")] = False,
) -> None:
    """Change how long logs are kept."""
    if forever == (days is not None):
        raise typer.BadParameter("give either --days or --forever")
    _edit(context, which, log_retention_days=-1 if forever else days)


@verb(settings, "max-slots")
def set_max_slots(context: typer.Context, which: terms.ExperimentId, max_slots: int) -> None:
    """Change how many slots its trials may use together."""
    _edit(context, which, max_slots=max_slots)


@verb(settings, "priority")
def set_priority(context: typer.Context, which: terms.ExperimentId, priority: int) -> None:
    """Change its priority: 1 is served first, 99 last."""
    _edit(context, which, priority=priority)


@verb(settings, "weight")
def set_weight(context: typer.Context, which: terms.ExperimentId, weight: float) -> None:
    """Change its share of the slots under fair-share scheduling."""
    _edit(context, which, weight=weight)


def _edit(context: typer.Context, which: str, **changes: Any) -> None:
    from determined.wire import requests

    if not changes:
        raise typer.BadParameter("say what to change; --help lists what there is")
    master = session.master(context)
    view = choose.experiment(master, which)
    master.edit_experiment(view.id, session.request(requests.EditExperiment, **changes))
    print(f"Experiment {view.id} changed: {', '.join(name.replace('_', ' ') for name in changes)}")
