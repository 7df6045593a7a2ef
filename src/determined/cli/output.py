"""The options that every listing has: -o, --json and --csv."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from determined.cli.render import Format

Output = Annotated[Format, typer.Option("-o", "--output", help="How to print it.")]
AsJson = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="The same as -o csv.")]

_OPTIONS = (("output", Output, Format.TABLE), ("as_json", AsJson, False), ("as_csv", AsCsv, False))


def formatted(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options; its parameter ``form`` gets what was chosen."""

    @functools.wraps(function)
    def command(*arguments: Any, output: Format, as_json: bool, as_csv: bool, **others: Any) -> None:
        form = Format.JSON if as_json else Format.CSV if as_csv else output
        function(*arguments, form=form, **others)

    # Typer reads what a function takes from its signature.
    signature = inspect.signature(function, eval_str=True)
    parameters = [each for each in signature.parameters.values() if each.name != "form"]
    for name, annotation, default in _OPTIONS:
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command
