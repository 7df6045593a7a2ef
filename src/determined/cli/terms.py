"""Arguments and options that several nouns have, written once."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

ExperimentId = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="Its id, its name, or 'latest'.")]
ExperimentIds = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids (3, or 3,5, or 3-7), names, or latest.")]
TrialId = Annotated[int, typer.Argument(metavar="TRIAL", help="Its id.")]
TaskId = Annotated[str, typer.Argument(metavar="TASK", help="Its id, for example job-3.")]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Limit = Annotated[int, typer.Option("--limit", help="Show at most so many.", min=1, max=10_000)]
Offset = Annotated[int, typer.Option("--offset", help="Leave out so many.", min=0)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="KEY=VALUE", help="Change a field of the config, for example max_restarts=0."),
]
Includes = Annotated[
    list[pathlib.Path] | None,
    typer.Option("--include", "-i", metavar="PATH", help="A file or folder to send besides the folder."),
]
Template = Annotated[str | None, typer.Option("--template", help="A template the config starts from.")]

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on as more comes. Ctrl-C only stops looking.")]
Head = Annotated[int | None, typer.Option("--head", help="The first so many lines.", min=1)]
Tail = Annotated[int | None, typer.Option("--tail", help="The last so many lines.", min=1)]
Rank = Annotated[list[int] | None, typer.Option("--rank", "--rank-id", help="Lines of this rank only.")]
Level = Annotated[
    str | None, typer.Option("--level", help="Lines of at least this level: DEBUG, INFO, WARNING, ERROR, CRITICAL.")
]
Grep = Annotated[str | None, typer.Option("--grep", "--search", help="Lines that contain this text.")]
Regex = Annotated[str | None, typer.Option("--regex", help="Lines that match this pattern.")]
Since = Annotated[str | None, typer.Option("--since", help="Lines of the last 10m, 2h, 3d, or from a time on.")]
Until = Annotated[str | None, typer.Option("--until", help="Lines before this; written like --since.")]
Stream = Annotated[list[str] | None, typer.Option("--stdtype", help="stdout or stderr only.")]
