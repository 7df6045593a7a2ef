"""`det checkpoint`: checkpoints on a master, and checkpoint folders here."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Annotated, Any

import typer

from determined import errors
from determined.cli import render, session, terms
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

app = noun_app("Checkpoints: describe, download, verify, delete.")
metadata = noun_app("Metadata of a checkpoint: set, remove.")
app.add("metadata", metadata)

Uuid = Annotated[str, typer.Argument(metavar="UUID", help="Its id, or a start of it that no other has.")]


@verb(app, "describe")
@formatted
def describe(context: typer.Context, uuid: Uuid, form: render.Format = render.Format.TABLE) -> None:
    """Show a checkpoint: what it is of, its metrics, its files."""
    view = session.master(context).checkpoint(uuid)
    if form is not render.Format.TABLE:
        if form is render.Format.CSV:
            files = [{"file": path, "size": size} for path, size in sorted(view.resources.items())]
            render.listing(files, ["file", "size"], form)
        else:
            render.document(view.model_dump(), form)
        return
    metrics = view.validation_metrics or {}
    pairs = [
        ("checkpoint", view.uuid),
        ("state", view.state),
        ("experiment", str(view.experiment_id or "")),
        ("trial", str(view.trial_id or "")),
        ("task", "" if view.trial_id else str(view.task_id or "")),
        ("batches", str(view.steps_completed)),
        ("reported", render.age(view.reported_at)),
        ("size", render.size(view.size)),
        *((name, render.number(value)) for name, value in sorted(metrics.items())),
        *((f"metadata {name}", json.dumps(value)) for name, value in sorted(view.metadata.items())),
    ]
    render.facts([(name, value) for name, value in pairs if value])
    if view.resources:
        print()
        files = [{"file": path, "size": render.size(size)} for path, size in sorted(view.resources.items())]
        render.listing(files, ["file", "size"], form)


@verb(app, "download")
def download(
    context: typer.Context,
    uuid: Uuid,
    output: Annotated[
        pathlib.Path | None, typer.Option("-o", "--output-dir", help="Where to; default: checkpoints/UUID.")
    ] = None,
    mode: Annotated[
        str, typer.Option("--mode", help="auto, direct (from its storage) or master (through the master).")
    ] = "auto",
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only where the files are.")] = False,
) -> None:
    """Download a checkpoint, unless it is there already."""
    from determined.client import download as downloading
    from determined.client.enums import DownloadMode

    if mode.upper() not in DownloadMode.__members__:
        raise typer.BadParameter(f"--mode is auto, direct or master, not {mode}")
    master = session.master(context)
    view = master.checkpoint(uuid)
    target = output or pathlib.Path("checkpoints") / view.uuid
    place = downloading.download(master, view, target, DownloadMode[mode.upper()])
    print(place if quiet else f"checkpoint {view.uuid} ({render.size(view.size)}): {place}")


@verb(app, "delete")
def delete(
    context: typer.Context,
    uuids: Annotated[list[str], typer.Argument(metavar="UUID...", help="Ids, or starts of them.")],
    yes: terms.Yes = False,
) -> None:
    """Delete checkpoints for good. Registered ones, and those that a trial still needs, are not deleted."""
    _delete(context, [part for text in uuids for part in text.split(",")], [], yes)


@verb(app, "rm")
def remove_files(
    context: typer.Context,
    uuids: Annotated[list[str], typer.Argument(metavar="UUID...", help="Ids, or starts of them.")],
    glob: Annotated[
        list[str] | None, typer.Option("--glob", help="Files to delete, for example '*.bin' or 'opt/**'.")
    ] = None,
    yes: terms.Yes = False,
) -> None:
    """Delete some files of checkpoints for good."""
    if not glob:
        raise typer.BadParameter("say which files with --glob; 'det checkpoint delete' deletes all of them")
    _delete(context, [part for text in uuids for part in text.split(",")], list(glob), yes)


def _delete(context: typer.Context, uuids: list[str], globs: list[str], yes: bool) -> None:
    from determined.wire import requests

    master = session.master(context)
    found = [master.checkpoint(uuid).uuid for uuid in uuids]
    if not yes:
        what = f"files {', '.join(globs)} of " if globs else ""
        typer.confirm(
            render.plain(f"Delete {what}{len(found)} checkpoints ({', '.join(found[:3])}) for good?"),
            abort=True,
            err=True,
        )
    failed = False
    for done in master.delete_checkpoints(requests.DeleteCheckpoints(uuids=found, globs=globs)):
        if done.error:
            failed = True
            print(f"det: checkpoint {done.id}: {render.sentences(done.error)}", file=sys.stderr)
        else:
            print(f"Checkpoint {done.id} {'has lost these files' if globs else 'is being deleted'}")
    if failed:
        raise typer.Exit(1)


@verb(metadata, "set")
def set_metadata(
    context: typer.Context,
    uuid: Uuid,
    pairs: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Values are YAML: numbers, text, maps.")],
) -> None:
    """Set keys of a checkpoint's metadata."""
    from determined.config import places
    from determined.wire import requests

    changes: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{pair!r} must be written KEY=VALUE")
        changes[key] = places.read_yaml(text).data
    view = session.master(context).edit_checkpoint_metadata(uuid, requests.EditMetadata(set=changes))
    print(f"Checkpoint {view.uuid} changed: {', '.join(changes)}")


@verb(metadata, "remove")
def remove_metadata(context: typer.Context, uuid: Uuid, keys: list[str]) -> None:
    """Remove keys of a checkpoint's metadata."""
    from determined.wire import requests

    view = session.master(context).edit_checkpoint_metadata(uuid, requests.EditMetadata(remove=keys))
    print(f"Checkpoint {view.uuid} changed")


@verb(app, "verify")
def verify(
    paths: Annotated[list[pathlib.Path], typer.Argument(metavar="PATH...", help="Checkpoint folders.")],
) -> None:
    """Read every byte of a checkpoint folder here and compare it with what was saved."""
    # xxhash is not worth its import for the other commands.
    from determined.storage import manifest

    for path in paths:
        if not path.is_dir():
            raise errors.CheckpointNotFound(f"{path} is not a folder; name the folder of a checkpoint")
        files = manifest.verify(path)
        total = render.size(sum(record.size for record in files.values()))
        print(f"{render.plain(path)}: whole, {len(files)} files, {total}")
