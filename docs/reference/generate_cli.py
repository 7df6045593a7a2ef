"""Makes docs/reference/cli.md of the commands' own help: `python docs/reference/generate_cli.py`."""

from __future__ import annotations

import inspect
import pathlib
from collections.abc import Iterator
from typing import Any

import typer.main

from determined.cli import app, nouns

PAGE = pathlib.Path(__file__).parent / "cli.md"

INTRODUCTION = """\
# Command line: `det`

Made of the commands' own help; `det NOUN VERB --help` says the same.

- Nouns have short forms (`det e list`), verbs do too where a second name is usual (`ls`, `unpause`). `det NOUN help`
  and `det NOUN VERB help` explain, and a slip is answered with what may have been meant.
- Results go to stdout, everything else to stderr, so that pipes are clean. Every listing takes `-o table`, `csv`,
  `json`, `jsonl` or `yaml`; `--json` and `--csv` are short for two of them. Tables fit the terminal; nothing is cut in
  a file.
- Text that others wrote can neither move the cursor nor reverse a name, and cells of CSV are never formulas.
- Exit codes: 0 done, 1 failed, 2 called wrongly, 3 interrupted. Where something was only looked at, Ctrl-C leaves it
  running, says how to come back and how to stop it, and the exit code is 130.
- Without `-m` and `DET_MASTER`, commands use the master of this machine and start one if none runs; it says so, and
  `det master down` stops it. Who you are to a master: `DET_TOKEN`, else a sign-in (`det user login`), else `DET_USER`
  and `DET_PASS`, else, on this machine, its owner.
"""


def page() -> str:
    return "\n".join([INTRODUCTION, *_root(), *(part for noun in nouns.NOUNS for part in _noun(noun))])


def _root() -> Iterator[str]:
    yield "## Before the noun\n"
    yield from _parameters(typer.main.get_group(app.app))


def _noun(noun: nouns.Noun) -> Iterator[str]:
    command: Any = nouns.load(noun)
    also = f" (also {', '.join(f'`{alias}`' for alias in noun.aliases)})" if noun.aliases else ""
    yield f"## `det {noun.name}`{also}\n"
    if not isinstance(command, nouns.Verbs):
        yield from _verb(f"det {noun.name}", command, ())
        return
    yield f"{noun.says}\n"
    yield from _verbs(f"det {noun.name}", command)


def _verbs(before: str, group: nouns.Verbs) -> Iterator[str]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if isinstance(command, nouns.Verbs):
            yield from _verbs(f"{before} {name}", command)
        else:
            yield from _verb(f"{before} {name}", command, group.other_names(name))


def _verb(full_name: str, command: Any, others: tuple[str, ...]) -> Iterator[str]:
    words = [full_name]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            shown = _metavar(parameter)
            words.append(shown if parameter.required or shown.startswith("[") else f"[{shown}]")
    yield f"### `{' '.join(words)}`\n"
    also = f" Also `{'`, `'.join(others)}`." if others else ""
    yield f"{inspect.cleandoc(command.help or '')}{also}\n"
    yield from _parameters(command)


def _parameters(command: Any) -> Iterator[str]:
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or "--help" in parameter.opts:
            continue
        if parameter.param_type_name == "argument":
            name = _metavar(parameter)
        else:
            name = ", ".join([*parameter.opts, *parameter.secondary_opts])
        help_text = (parameter.help or "").replace("|", "\\|")
        default = parameter.default
        if default not in (None, False, True, "", ()) and not callable(default) and "default" not in help_text:
            help_text += f" Default: `{getattr(default, 'value', default)}`."
        rows.append(f"| `{name}` | {help_text} |")
    if rows:
        yield "\n".join(["| | |", "| --- | --- |", *rows, ""])


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper().replace("_", "-"))


if __name__ == "__main__":
    PAGE.write_text(page())
