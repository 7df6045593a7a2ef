"""`det master`: start, stop and look at a master."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated

import typer

from determined import errors
from determined.cli import logs, render, session
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from determined.client.autostart import LocalMaster

app = noun_app("The master: start, stop, look at.")

_STOP_SECONDS = 30.0

Host = Annotated[str | None, typer.Option("--host", help="Address to listen on; default: this machine only.")]
Port = Annotated[int | None, typer.Option("--port", help="Port to listen on; default: 8080.", min=0, max=65535)]
Dir = Annotated[
    pathlib.Path | None,
    typer.Option("--dir", help="Folder for all it keeps; default: $DET_MASTER_DIR, else your data."),
]


@verb(app, "up")
def up(
    context: typer.Context,
    host: Host = None,
    port: Port = None,
    folder: Dir = None,
    config: Annotated[pathlib.Path | None, typer.Option("--config-file", help="Its settings, a YAML file.")] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", help="Slots of this machine; default: GPUs, else cores.", min=0)
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay here and show its log; Ctrl-C stops it.")
    ] = False,
) -> None:
    """Start a master on this machine, unless one runs already."""
    start(context, host=host, port=port, folder=folder, config=config, slots=slots, foreground=foreground)


@verb(app, "down")
def down(context: typer.Context, folder: Dir = None) -> None:
    """Stop the master on this machine. What runs goes on, and the next master finds it again."""
    stop(context, folder)


def start(
    context: typer.Context,
    *,
    host: str | None = None,
    port: int | None = None,
    folder: pathlib.Path | None = None,
    config: pathlib.Path | None = None,
    slots: int | None = None,
    cluster_name: str | None = None,
    foreground: bool = False,
) -> None:
    """Start a master with these settings, which is said to be there already if one is."""
    from determined.client import autostart

    given = {"HOST": host, "PORT": port, "CONFIG": config.absolute() if config else None, "SLOTS": slots}
    given["CLUSTER_NAME"] = cluster_name
    environ = {**context.find_root().obj.environ}
    environ |= {f"DET_MASTER_{name}": str(value) for name, value in given.items() if value is not None}
    if folder is not None:
        environ["DET_MASTER_DIR"] = str(folder.absolute())
    around = _surroundings(environ)
    found = autostart.find(around.state_folder)
    if found is not None:
        _tell_where(found, "A master runs already")
        return
    if foreground:
        around.state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        environ["DET_MASTER_DIR"] = str(around.state_folder)
        sys.stdout.flush()
        # Not a child: signals, the terminal and the exit code are its own.
        os.execve(sys.executable, [sys.executable, "-m", "determined.master"], environ)
    _tell_where(autostart.find_or_start(around, environ, session.tell), "The master runs")


def stop(context: typer.Context, folder: pathlib.Path | None = None) -> None:
    """Stop this machine's master and wait until it has gone; fine if there is none."""
    from determined.client import autostart
    from determined.client.master import Master

    environ = {**context.find_root().obj.environ}
    if folder is not None:
        environ["DET_MASTER_DIR"] = str(folder.absolute())
    around = _surroundings(environ)
    found = autostart.find(around.state_folder)
    if found is None:
        print("No master runs on this machine")
        return
    try:
        Master(found.url, found.token).stop_master()
    except errors.DeterminedError:
        # It is ours: ask it the way the system does.
        os.kill(found.pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    pause = threading.Event()
    while _is_alive(found.pid):
        if time.monotonic() > deadline:
            raise errors.Refused(
                f"the master (process {found.pid}) has not stopped within {_STOP_SECONDS:.0f} s; "
                f"its log is {around.state_folder / 'master.log'}"
            )
        pause.wait(0.05)
    print(f"The master at {found.url} has stopped")


def _tell_where(found: LocalMaster, what: str) -> None:
    print(f"{what} at {found.url} (process {found.pid})")
    session.tell("'det master down' stops it; what runs goes on without it and is found again")


def _surroundings(environ: Mapping[str, str]):  # type: ignore[no-untyped-def]
    from determined.client.credentials import Surroundings

    return Surroundings.of(environ)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    try:
        # One that has ended and that nobody has asked about yet is not alive.
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return os.path.isdir("/proc/self") is False
    return state != "Z"


@verb(app, "info", "status")
@formatted
def info(context: typer.Context, form: render.Format = render.Format.TABLE) -> None:
    """Say what master it is."""
    master = session.master(context)
    found = {"url": master.url, **master.info().model_dump()}
    render.record(found, ["url", "version", "cluster_id", "cluster_name", "message"], form)


@verb(app, "config")
@formatted
def config(context: typer.Context, form: render.Format = render.Format.TABLE) -> None:
    """Print the master's settings as YAML, secrets masked."""
    settings = session.master(context).config()
    render.document(settings, render.Format.YAML if form is render.Format.TABLE else form)


@verb(app, "logs")
def show_logs(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more comes.")] = False,
    tail: Annotated[int, typer.Option("--tail", help="The last so many lines.", min=1)] = 200,
) -> None:
    """Print the master's own log."""
    master = session.master(context)
    shown: list[str] = []
    pause = threading.Event()
    try:
        while True:
            lines = master.master_logs(tail)
            for line in _after(lines, shown):
                print(render.log_line(line), flush=True)
            shown = lines
            if not follow:
                return
            pause.wait(1.0)
    except KeyboardInterrupt:
        raise typer.Exit(logs.DETACHED) from None


def _after(lines: list[str], before: list[str]) -> list[str]:
    """Which of the last lines were not among the last lines of a moment ago."""
    if not before:
        return lines
    for start in range(len(lines), 0, -1):
        if lines[:start][-len(before) :] == before[-start:]:
            return lines[start:]
    return lines


@verb(app, "cluster-message")
def cluster_message(
    context: typer.Context,
    message: Annotated[
        str | None, typer.Argument(help="What everybody is to see; '' removes it; absent: show it.")
    ] = None,
) -> None:
    """Show everybody a sentence, or see which one is shown."""
    master = session.master(context)
    if message is None:
        found = master.info().message
        print(render.plain(found) if found else "No message is shown")
        return
    master.set_message(message)
    print("Everybody sees it now" if message else "No message is shown any more")
