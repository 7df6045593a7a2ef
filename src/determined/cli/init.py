"""`det init`: starting projects."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from determined import errors
from determined.cli import render, session
from determined.cli.nouns import noun_app, verb

app = noun_app("Write a starting project into a folder.")


@verb(app, "image")
def image(
    folder: Annotated[
        pathlib.Path, typer.Argument(metavar="DIR", help="The folder to write; it must be new or empty.")
    ],
) -> None:
    """A PyTorchTrial on generated images, with configurations for one run, a grid, an adaptive search and two slots."""
    _write("image", folder)
    session.tell(
        f"Try it: cd {folder} && python train.py\n"
        "Then: det experiment create const.yaml . --follow (README.md lists more)"
    )


def _write(name: str, folder: pathlib.Path) -> None:
    import determined

    source = pathlib.Path(determined.__file__).parent / "templates" / name
    files = sorted(path for path in source.iterdir() if path.is_file())
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise errors.Refused(f"{folder} is not empty, and nothing in it is overwritten; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        (folder / path.name).write_bytes(path.read_bytes())
    print(render.plain(f"Wrote {', '.join(path.name for path in files)} to {folder}"))
