"""The nouns of `det` and what they share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated

import typer

import determined
from determined.cli.nouns import Nouns


@dataclasses.dataclass(frozen=True)
class Settings:
    """What every command knows: the environment, passed in by main.py, and what the options before the noun say."""

    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    master: str | None = None
    user: str | None = None


# Plain help texts: Rich would double the time that `det --help` takes.
app = typer.Typer(
    name="det",
    cls=Nouns,
    help="Train PyTorch models anywhere and resume them exactly.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    context: typer.Context,
    master: Annotated[
        str | None,
        typer.Option(
            "--master", "-m", help="The master's address; default: $DET_MASTER, else one on this machine, started here."
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", "-u", help="Who to be, of those signed in; default: $DET_USER.")
    ] = None,
    version: Annotated[bool, typer.Option("--version", "-v", help="Print the version and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from; give it first.")] = False,
) -> None:
    # main() acts on the last two before any of this is imported; they are declared here for --help.
    if version:
        print_version()
        raise typer.Exit
    settings = context.obj or Settings()
    environ = settings.environ
    context.obj = dataclasses.replace(
        settings, master=master or environ.get("DET_MASTER") or None, user=user or environ.get("DET_USER") or None
    )


@app.command("version")
def print_version() -> None:
    """Print the version."""
    print(f"det {determined.__version__}")
