"""`det`: the entry point. It turns every way a command can end into an exit code and at most one sentence."""

from __future__ import annotations

import os
import sys

import determined

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 3


def main(arguments: list[str] | None = None) -> int:
    """Run one command: 0 done, 1 failed, 2 called wrongly, 3 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Shells and scripts ask for the version often. The answer needs none of what the other commands import.
    if arguments in (["-v"], ["--version"], ["version"]):
        print(f"det {determined.__version__}")
        return DONE
    debug = "--debug" in arguments[:1]
    try:
        return _run(_with_help_option(arguments[1:] if debug else arguments))
    except KeyboardInterrupt:
        print("det: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain once more while closing stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        if debug:
            raise
        return _explain(error)


def _run(arguments: list[str]) -> int:
    import typer
    import typer.main

    from determined.cli.app import Settings, app

    # The class of every wrong call. Typer, which brings its own copy of click, offers no other public way to it.
    wrong_call: Any = typer.BadParameter.__base__
    settings = Settings(os.environ)
    command = typer.main.get_command(app)
    if "_DET_COMPLETE" in os.environ:
        # The shell asks what could come next; Typer answers and exits.
        command.main(prog_name="det")
    try:
        # Not command.main(): it has exit codes of its own for interrupts and for readers that left.
        with command.make_context("det", arguments, obj=settings) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except wrong_call as error:
        error.show()
        return USAGE
    sys.stdout.flush()
    return DONE


def _with_help_option(arguments: list[str]) -> list[str]:
    """`det help`, `det run help` and `det run list help` mean what they say."""
    if arguments[-1:] == ["help"] and len(arguments) <= 3:
        return [*arguments[:-1], "--help"]
    return arguments


def _explain(error: Exception) -> int:
    from determined import errors
    from determined.cli import render

    if isinstance(error, (errors.DeterminedError, OSError)):
        sentence = render.sentences(error)
    else:
        sentence = (
            f"{type(error).__name__}: {render.plain(error)}. This is a mistake in det itself; "
            "'det --debug ...' shows where."
        )
    print(f"det: {sentence}", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
