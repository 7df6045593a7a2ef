"""`det checkpoint`: what can be asked about checkpoint folders."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from determined import errors
from determined.cli import render

app = typer.Typer(help="Checkpoints.", no_args_is_help=True, rich_markup_mode=None)


@app.command("verify")
def verify(
    paths: Annotated[list[pathlib.Path], typer.Argument(metavar="PATH...", help="Checkpoint folders.")],
) -> None:
    """Read every byte of a checkpoint and compare it with what was saved."""
    # xxhash is not worth its import for the other commands.
    from determined.storage import manifest

    for path in paths:
        if not path.is_dir():
            raise errors.CheckpointNotFound(f"{path} is not a folder; name the folder of a checkpoint")
        files = manifest.verify(path)
        total = render.size(sum(record.size for record in files.values()))
        print(f"{render.plain(path)}: whole, {len(files)} files, {total}")
