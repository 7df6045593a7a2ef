"""The nouns of `det` and what they share."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

import determined
from determined.cli import checkpoint, run


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the environment says; read once, in main.py."""

    runs_dir: str | None
    data_home: str | None


# Plain help texts: Rich would double the time that `det --help` takes.
app = typer.Typer(
    name="det",
    help="Train PyTorch models anywhere and resume them exactly.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(run.app, name="run")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(checkpoint.app, name="c", hidden=True)


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", "-v", help="Print the version and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from; give it first.")] = False,
) -> None:
    # main() acts on both before any of this is imported; they are declared here for --help.
    if version:
        print_version()
        raise typer.Exit


@app.command("version")
def print_version() -> None:
    """Print the version."""
    print(f"det {determined.__version__}")
