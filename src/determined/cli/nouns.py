"""The table of nouns, and the groups that find them: a noun's module is imported when it is used, not before."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import typer
import typer.core
import typer.main

_MOST_GUESSES = 3


class Noun(NamedTuple):
    """A noun: the module of this package that has its ``app``, its other names, and what --help says of it."""

    name: str
    module: str
    says: str
    aliases: tuple[str, ...] = ()
    attribute: str = "app"


# In the order of --help: what people type most comes first.
NOUNS = (
    Noun("experiment", "experiment", "Experiments: create, follow, stop, continue, compare.", ("e", "exp")),
    Noun("trial", "trial", "Trials: describe, logs, metrics, stop.", ("t",)),
    Noun("checkpoint", "checkpoint", "Checkpoints: describe, download, verify, delete.", ("c",)),
    Noun("preview-search", "preview", "What a search would do, before anything is spent.", (), "preview_search"),
    Noun("job", "job", "Jobs and the queue: run, list, why, update.", ("j",)),
    Noun("task", "task", "Everything that runs and is no trial: list, logs, stop.", ()),
    Noun("command", "command", "Commands: run one on a slot.", ("cmd",)),
    Noun("run", "run", "Runs of this machine: list, describe, upload."),
    Noun("model", "model", "Registered models and their versions.", ("m",)),
    Noun("project", "project", "Projects, which hold experiments.", ("p",)),
    Noun("workspace", "workspace", "Workspaces, which hold projects.", ("w",)),
    Noun("template", "template", "Pieces of configuration that others start from.", ("tpl",)),
    Noun("user", "user", "Users: sign in and out, create, edit.", ("u",)),
    Noun("token", "token", "Tokens for programs.", ("tkn",)),
    Noun("master", "master", "The master: start, stop, look at.", ()),
    Noun("deploy", "deploy", "Start and stop a master on this machine, as `det deploy local`.", ("d",)),
    Noun("agent", "agent", "Machines: list, enable, disable.", ("a",)),
    Noun("slot", "slot", "Slots of machines: list, enable, disable.", ("s",)),
    Noun("resource-pool", "pool", "Resource pools: list, describe.", ("rp",)),
    Noun("init", "init", "Write a starting project into a folder.", ()),
    Noun("completion", "completion", "Let the shell complete commands: bash, zsh, fish.", ()),
)

Function = TypeVar("Function", bound=Callable[..., None])


class Verb(NamedTuple):
    """A verb: what it is called, what it does, and whether --help lists it."""

    name: str
    function: Callable[..., None]
    is_hidden: bool = False
    takes_the_rest: bool = False  # everything after its first argument, options included, is its arguments


class NounApp:
    """A noun with its verbs, and the nouns below it. Commands are made of them when they are asked for."""

    def __init__(self, says: str) -> None:
        self.says = says
        self.verbs: list[Verb] = []
        self.nouns: dict[str, NounApp] = {}

    def add(self, name: str, noun: NounApp) -> None:
        """Put a noun below this one, as `label` is below `experiment`."""
        self.nouns[name] = noun


def noun_app(says: str) -> NounApp:
    """A noun's own app, for its module to fill with verbs."""
    return NounApp(says)


def verb(app: NounApp, name: str, *others: str, takes_the_rest: bool = False) -> Callable[[Function], Function]:
    """Make a function a verb of a noun, under its name and, unlisted, under others."""

    def add(function: Function) -> Function:
        app.verbs.append(Verb(name, function, takes_the_rest=takes_the_rest))
        app.verbs.extend(Verb(other, function, is_hidden=True) for other in others)
        return function

    return add


class Group(typer.core.TyperGroup):
    """What all groups do alike: a slip is answered with what may have been meant, and help is not cut short."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}{_guess(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.contents()))

    def contents(self) -> Iterator[tuple[str, str]]:
        """Commands as --help lists them, with what is said of them."""
        raise AssertionError("every group says what it contains")

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        # Completion asks every command what it says of itself. A group of mere names knows that without importing any.
        named: dict[str, Any] = {
            name.partition(",")[0]: typer.core.TyperCommand(name, help=says) for name, says in self.contents()
        }
        static = typer.core.TyperGroup(name=self.name, commands=named, params=self.params)
        return list(static.shell_complete(type(ctx)(static, parent=ctx.parent), incomplete))


class Nouns(Group):
    """The root of the tree."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*(noun.name for noun in NOUNS), *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for noun in NOUNS:
            if cmd_name == noun.name or cmd_name in noun.aliases:
                return load(noun)
        return super().get_command(ctx, cmd_name)

    def contents(self) -> Iterator[tuple[str, str]]:
        for noun in NOUNS:
            yield ", ".join((noun.name, *noun.aliases)), noun.says
        for name, command in self.commands.items():
            if not command.hidden:
                yield name, command.get_short_help_str(80)


class Verbs(Group):
    """A noun's verbs. Typer reads a function's parameters only when its verb is used: that takes a while."""

    def __init__(self, name: str, app: NounApp) -> None:
        super().__init__(name=name, help=app.says, no_args_is_help=True, rich_markup_mode=None)
        self._app = app

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, _ in self.contents()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for each in self._app.verbs:
            if each.name == cmd_name:
                return _command(cmd_name, each.function, each.takes_the_rest)
        below = self._app.nouns.get(cmd_name)
        return Verbs(cmd_name, below) if below is not None else None

    def other_names(self, name: str) -> tuple[str, ...]:
        """What a verb may be called besides."""
        functions = {each.function for each in self._app.verbs if each.name == name}
        return tuple(each.name for each in self._app.verbs if each.is_hidden and each.function in functions)

    def contents(self) -> Iterator[tuple[str, str]]:
        for each in self._app.verbs:
            if not each.is_hidden:
                yield each.name, _first_sentence(each.function)
        for name, below in self._app.nouns.items():
            yield name, below.says


def load(noun: Noun) -> Any:
    """A noun as a command; imports its module."""
    found = getattr(importlib.import_module(f"determined.cli.{noun.module}"), noun.attribute)
    return Verbs(noun.name, found) if isinstance(found, NounApp) else _command(noun.name, found)


def _command(name: str, function: Callable[..., None], takes_the_rest: bool = False) -> Any:
    single = typer.Typer(rich_markup_mode=None, add_completion=False)
    single.command(name, context_settings={"allow_interspersed_args": not takes_the_rest})(function)
    return typer.main.get_command(single)


def _first_sentence(function: Callable[..., None]) -> str:
    return (function.__doc__ or "").strip().partition("\n")[0]


def _guess(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=_MOST_GUESSES, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""
