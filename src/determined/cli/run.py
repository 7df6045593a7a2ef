"""`det run`: the runs of this machine, read from their folders."""

from __future__ import annotations

import difflib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined import errors
from determined.cli import render
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

app = noun_app("Runs of this machine: list, describe, upload.")

if TYPE_CHECKING:
    from determined.core.run_folder import RunFolder

MANIFEST = "manifest.json"

# The end of the metrics says where a run is; a listing need not read the hours before.
TAIL_BYTES = 1 << 18

RunsDir = Annotated[
    pathlib.Path | None,
    typer.Option("--runs-dir", help="Parent of the run folders; default: $DET_RUNS_DIR, else the user's data folder."),
]


@verb(app, "list", "ls")
@formatted
def list_runs(
    context: typer.Context,
    runs_dir: RunsDir = None,
    limit: Annotated[int, typer.Option(help="Show so many, the newest; 0 for all.", min=0)] = 20,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show the runs, the one that reported last first."""
    parent = _parent(context, runs_dir)
    runs = sorted(_runs(parent), key=_last_change, reverse=True)
    rows = [_summary(run) for run in runs[: limit or None]]
    if form is render.Format.TABLE:
        rows = [{**row, "last_report": render.age(row["last_report"])} for row in rows]
    if form in (render.Format.TABLE, render.Format.CSV):
        rows = [{**row, "validation": row["metrics"].get("validation")} for row in rows]
    columns = ["name", "state", "last_report", "batches", "validation", "checkpoints"]
    render.listing(rows, columns, form, empty=f"No runs in {parent} yet.")


@verb(app, "describe")
@formatted
def describe(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A run's folder name, a unique start of it, a path, or 'latest'.")],
    runs_dir: RunsDir = None,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show one run: where it is, its last metrics, its checkpoints."""
    run = _find(name, _parent(context, runs_dir))
    row = _summary(run)
    row["checkpoints"] = [_checkpoint(path) for path in _checkpoints(run)]
    if form in (render.Format.JSON, render.Format.JSONL, render.Format.YAML):
        render.document(row, form)
        return
    render.facts(
        [
            ("name", row["name"]),
            ("folder", row["folder"]),
            ("state", row["state"]),
            ("starts", str(row["starts"])),
            ("last report", render.age(row["last_report"])),
            ("batches", str(row["batches"])),
            *((f"{group} {key}", render.number(value)) for group, key, value in _metrics(row["metrics"])),
        ]
    )
    if row["checkpoints"]:
        print()
        render.listing(row["checkpoints"], ["checkpoint", "batches", "size", "saved"], render.Format.TABLE)


@verb(app, "upload")
def upload(
    context: typer.Context,
    names: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Folder names, unique starts of them, paths, or 'latest'.")
    ],
    runs_dir: RunsDir = None,
) -> None:
    """Bring runs of this machine to a master: metrics and checkpoints. Again brings only what is new."""
    from determined.cli import session
    from determined.core import upload as uploading

    runs = [_find(name, _parent(context, runs_dir)) for name in names]
    master = session.master(context)
    for run in runs:
        view = uploading.upload(run.path, master.session)
        print(render.plain(f"Uploaded {run.path.name}: experiment {view.experiment_id}, trial {view.trial_id}"))


def _parent(context: typer.Context, asked: pathlib.Path | None) -> pathlib.Path:
    if asked is not None:
        return asked
    environ = context.obj.environ
    if environ.get("DET_RUNS_DIR"):
        return pathlib.Path(environ["DET_RUNS_DIR"]).expanduser()
    home = pathlib.Path(environ.get("XDG_DATA_HOME") or pathlib.Path.home() / ".local" / "share")
    return home / "resolute" / "runs"


def _runs(parent: pathlib.Path) -> list[RunFolder]:
    # core is not worth its import for --help and for completion.
    from determined.core import run_folder

    return list(run_folder.runs_in(parent))


def _last_change(run: RunFolder) -> float:
    return (run.metrics if run.metrics.exists() else run.path).stat().st_mtime


def _find(name: str, parent: pathlib.Path) -> RunFolder:
    from determined.core.run_folder import RunFolder

    if os.sep in name and (there := RunFolder.at(pathlib.Path(name))):
        return there
    runs = _runs(parent)
    if name == "latest":
        if not runs:
            raise errors.DeterminedError(f"there are no runs in {parent}; --runs-dir names another place")
        return max(runs, key=_last_change)
    found = [run for run in runs if name in (run.path.name, run.id)]
    found = found or [run for run in runs if run.path.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(sorted(run.path.name for run in found)[:5])
        raise errors.DeterminedError(f"{name!r} fits {len(found)} runs ({names}); write more of the name")
    close = difflib.get_close_matches(name, [run.path.name for run in runs], n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else "'det run list' shows all"
    raise errors.DeterminedError(f"there is no run {name!r} in {parent}; {hint}")


def _summary(run: RunFolder) -> dict[str, Any]:
    """What the run's label and the end of its metrics say, the last row of each group kept whole."""
    latest: dict[str, dict[str, Any]] = {}
    for row in _last_rows(run.metrics):
        latest[row["group"]] = row
    return {
        "name": run.path.name,
        "folder": str(run.path),
        "state": _state(run),
        "starts": run.run_epoch,
        "last_report": _last_change(run),
        "batches": max((row["steps_completed"] for row in latest.values()), default=0),
        "metrics": {group: row["metrics"] for group, row in latest.items()},
        "checkpoints": len(_checkpoints(run)),
    }


def _state(run: RunFolder) -> str:
    """What the label says; but a run whose process is no more did not live to write how it ended."""
    if run.label.state != "running":
        return run.label.state
    try:
        os.kill(int((run.path / ".lock").read_text()), 0)
    except PermissionError:
        return "running"
    except (OSError, ValueError):
        return "gone"
    return "running"


def _last_rows(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - TAIL_BYTES, 0))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines[1:] if end > TAIL_BYTES else lines:
        try:
            row = json.loads(line)
        except ValueError:
            # The run may be writing this line now, or may have been killed in the middle of it.
            continue
        if isinstance(row, dict) and {"group", "steps_completed", "metrics"} <= row.keys():
            yield row


def _metrics(groups: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str, object]]:
    for group, metrics in groups.items():
        for key, value in metrics.items():
            yield group, key, value


def _checkpoints(run: RunFolder) -> list[pathlib.Path]:
    """Complete checkpoints, oldest first: those whose manifest exists, for it is written last."""
    found = [path.parent for path in sorted(run.checkpoints.glob(f"[!.]*/{MANIFEST}"), key=_modified)]
    if run.label.storage is None:
        return found
    # Others may have theirs in the same place.
    from determined.core.checkpoint_journal import Journal

    own = {entry.storage_id for entry in Journal(run.journal).entries({path.name for path in found})}
    return [path for path in found if path.name in own]


def _modified(path: pathlib.Path) -> float:
    return path.stat().st_mtime


def _checkpoint(path: pathlib.Path) -> dict[str, Any]:
    try:
        metadata = json.loads((path / "metadata.json").read_bytes())
    except (OSError, ValueError):
        metadata = {}
    total = sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
    return {
        "checkpoint": path.name,
        "batches": metadata.get("steps_completed"),
        "size": render.size(total),
        "saved": render.age((path / MANIFEST).stat().st_mtime),
    }
