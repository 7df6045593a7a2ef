"""What jobs, commands and other tasks have in common on the command line."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from determined.cli import logs, render, session

if TYPE_CHECKING:
    from determined.client.master import Master
    from determined.wire.views import TaskView

ENDED = frozenset(("COMPLETED", "CANCELED", "ERROR"))
_COLUMNS = ["id", "kind", "name", "state", "slots", "pool", "owner", "created"]


def start(
    master: Master,
    kind: str,
    *,
    config: str = "",
    file: str | None = None,
    folder: pathlib.Path | None = None,
    includes: Sequence[pathlib.Path] = (),
    overrides: Sequence[str] = (),
    template: str | None = None,
    arguments: Sequence[str] = (),
    paused: bool = False,
) -> TaskView:
    """Check what can be checked here, send the code, and start a task."""
    from determined.cli import submit
    from determined.wire import requests

    return master.create_task(
        session.request(
            requests.CreateTask,
            kind=kind,
            config=config,
            file=file,
            overrides=list(overrides),
            template=template,
            arguments=list(arguments),
            context_sha256=submit.send_code(master, folder, includes),
            python=sys.executable,
            paused=paused,
        )
    )


def follow(master: Master, task_id: str, wanted: logs.Wanted | None = None, stop: str | None = None) -> int:
    """Print a task's log until it ends; the exit code is its own. Ctrl-C only stops looking."""
    try:
        logs.follow(master, task_id, wanted or logs.Wanted())
    except KeyboardInterrupt:
        raise logs.detached(
            f"Task {task_id}", f"det task logs -f {task_id}", stop or f"det task kill {task_id}"
        ) from None
    view = master.task(task_id)
    if view.error:
        session.tell(view.error)
    if view.state == "COMPLETED":
        return 0
    return view.exit_code if view.exit_code and 0 < view.exit_code < 256 else 1


def listing(
    context: typer.Context,
    kinds: Sequence[str] | None,
    everything: bool,
    limit: int,
    form: render.Format,
    empty: str,
) -> None:
    """A table of tasks, the newest first."""
    found = session.master(context).tasks(kinds=kinds, limit=limit).items
    rows = [_row(each, form) for each in found if everything or each.state not in ENDED]
    hidden = len(found) - len(rows)
    hint = f" ({hidden} have ended; --all shows them)" if hidden else ""
    columns = [column for column in _COLUMNS if column != "kind" or not kinds or len(kinds) > 1]
    render.listing(rows, columns, form, empty=f"{empty}{hint}")


def _row(view: TaskView, form: render.Format) -> Mapping[str, Any]:
    if form in (render.Format.JSON, render.Format.JSONL, render.Format.YAML):
        return view.model_dump()
    return {
        **view.model_dump(),
        "pool": view.resource_pool,
        "owner": view.username,
        "created": render.age(view.created_at) if form is render.Format.TABLE else view.created_at,
    }


def describe(context: typer.Context, task_id: str, form: render.Format) -> None:
    """One task, as it is."""
    view = session.master(context).task(task_id)
    shown = {**view.model_dump(exclude={"config"}), "owner": view.username, "pool": view.resource_pool}
    fields = ["id", "kind", "name", "state", "owner", "pool", "slots", "priority", "url", "exit_code", "error"]
    render.record(shown if form is render.Format.TABLE else view.model_dump(), fields, form)


def operate(context: typer.Context, task_ids: Sequence[str], operation: Any, done: str) -> None:
    """One operation on several tasks."""
    master = session.master(context)
    for task_id in task_ids:
        master.operate_task(task_id, operation)
        print(render.plain(f"Task {task_id} {done}"), flush=True)
