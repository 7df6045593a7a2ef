"""Logs of trials and tasks: looked through, and followed while they grow."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import pathlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request
from starlette.responses import Response

from determined import errors
from determined.master import logs
from determined.master.api import sending
from determined.master.api.access import Access, Db, Id
from determined.master.api.policy import Router, policy
from determined.master.api.tasks import TaskId
from determined.master.logs import LogFilter
from determined.master.store import tasks, trials
from determined.master.store.database import Tx
from determined.wire.views import LogLine

router = Router()

T = TypeVar("T")

_LOOK_SECONDS = 0.1
_ASK_SECONDS = 1.0
_SIGN_OF_LIFE_SECONDS = 15.0
_AT_ONCE = 1000
_MOST = 10_000
# Patterns may take seconds; what else is done in threads must not wait for them.
_READERS = ThreadPoolExecutor(4, thread_name_prefix="logs")

LineId = Annotated[int | None, Query(ge=0, le=2**63 - 1)]
Moment = Annotated[float | None, Query(ge=0, le=1e12, allow_inf_nan=False)]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Which lines: at most one value of a field goes to the reader, several are sorted out here."""

    filters: LogFilter
    ranks: frozenset[int] = frozenset()
    stdtypes: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()

    def has(self, line: LogLine) -> bool:
        """Whether a line that the reader found is wanted."""
        return (
            (not self.ranks or line.rank in self.ranks)
            and (not self.stdtypes or line.stdtype in self.stdtypes)
            and (not self.sources or line.source in self.sources)
        )


async def _wanted(
    rank: Annotated[Sequence[int], Query(max_length=1000, description="Of these ranks.")] = (),
    level: Annotated[str | None, Query(max_length=20, description="The least severe level.")] = None,
    stdtype: Annotated[Sequence[str], Query(max_length=100, description="Of `stdout` or `stderr`.")] = (),
    source: Annotated[Sequence[str], Query(max_length=100, description="Of the `task`, or its `node` process.")] = (),
    search: Annotated[str | None, Query(max_length=1000, description="Text that the line contains.")] = None,
    regex: Annotated[str | None, Query(max_length=1000, description="A pattern that the line has.")] = None,
    since: Annotated[Moment, Query(description="Not before this time, in seconds since 1970.")] = None,
    until: Annotated[Moment, Query(description="Not after this time, in seconds since 1970.")] = None,
) -> Wanted:
    filters = LogFilter(
        rank=_only(rank),
        level=level,
        stdtype=_only(stdtype),
        source=_only(source),
        text=search or None,
        regex=regex or None,
        since=since,
        until=until,
    )
    return Wanted(filters, _several(rank), _several(stdtype), _several(source))


@dataclasses.dataclass(frozen=True)
class Part:
    """Which part of a log."""

    after: int | None
    before: int | None
    limit: int
    tail: bool


async def _part(
    after: Annotated[LineId, Query(description="Lines after the one with this id.")] = None,
    before: Annotated[LineId, Query(description="Lines before the one with this id.")] = None,
    limit: Annotated[int, Query(ge=0, le=_MOST, description="At most so many lines.")] = _AT_ONCE,
    tail: Annotated[int | None, Query(ge=0, le=_MOST, description="So many last lines.")] = None,
) -> Part:
    return Part(after, before, limit if tail is None else tail, tail is not None)


Asked = Annotated[Wanted, Depends(_wanted)]
Where = Annotated[Part, Depends(_part)]
Follow = Annotated[bool, Query(description="One JSON object a line, until the task has ended.")]


@router.get("/trials/{id}/logs", dependencies=[policy("read")], response_model=list[LogLine])
async def get_trial_logs(
    id: Id, request: Request, db: Db, wanted: Asked, part: Where, follow: Follow = False
) -> Response:
    """Lines of a trial's log: from the start, `after` or `before` a line, or the last ones."""
    return await _send(request, db, functools.partial(_trial, trial_id=id), wanted, part, follow)


@router.get("/tasks/{id}/logs", dependencies=[policy("read")], response_model=list[LogLine])
async def get_task_logs(
    id: TaskId, request: Request, db: Db, wanted: Asked, part: Where, follow: Follow = False
) -> Response:
    """Lines of a task's log: from the start, `after` or `before` a line, or the last ones."""
    return await _send(request, db, functools.partial(_task, task_id=id), wanted, part, follow)


def _trial(tx: Tx, trial_id: int) -> tuple[str, bool]:
    return f"trial-{trial_id}", trials.require(tx, trial_id).state.has_ended


def _task(tx: Tx, task_id: str) -> tuple[str, bool]:
    task = tasks.require(tx, task_id)
    return task.id, task.state.has_ended


async def _send(
    request: Request,
    db: Access,
    look: Callable[[Tx], tuple[str, bool]],
    wanted: Wanted,
    part: Part,
    follow: bool,
) -> Response:
    task_id, _ = await db.read(look)
    folder: pathlib.Path = request.app.state.settings.logs_dir / task_id
    found = await _read(folder, wanted, part)
    if not follow:
        return sending.several(request, found)
    if part.before is not None:
        raise errors.BadRequest("what is followed has no end yet: leave out `before`")
    return sending.lines(_follow(db, look, folder, wanted, part, found))


async def _follow(
    db: Access,
    look: Callable[[Tx], tuple[str, bool]],
    folder: pathlib.Path,
    wanted: Wanted,
    part: Part,
    found: list[LogLine],
) -> AsyncIterator[bytes]:
    after = part.after
    seen, asked, said = -1, 0.0, time.monotonic()
    has_ended = False
    while True:
        if found:
            yield b"".join(sending.encode(line) + b"\n" for line in found)
            after, said = found[-1].id, time.monotonic()
        if len(found) < part.limit or part.tail:
            if has_ended:
                return
            await asyncio.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            if now - said > _SIGN_OF_LIFE_SECONDS:
                yield b"\n"
                said = now
            if now - asked > _ASK_SECONDS:
                asked = now
                try:
                    _, has_ended = await db.read(look)
                except errors.NotFound:
                    return  # it was deleted
        size = await _in_thread(logs.size, folder)
        # What was written before it ended is all there: one more look, and that was it.
        if size == seen and not has_ended:
            found = []
            continue
        seen = size
        part = dataclasses.replace(part, after=after, tail=False, limit=_AT_ONCE)
        found = await _read(folder, wanted, part)


async def _read(folder: pathlib.Path, wanted: Wanted, part: Part) -> list[LogLine]:
    return await _in_thread(_find, folder, wanted, part)


def _find(folder: pathlib.Path, wanted: Wanted, part: Part) -> list[LogLine]:
    """Lines that are wanted; the reader is asked again while it found some that are not."""
    backwards = part.tail or (part.before is not None and part.after is None)
    lines: list[LogLine] = []
    while part.limit > len(lines):
        size = part.limit if not (wanted.ranks or wanted.stdtypes or wanted.sources) else _AT_ONCE
        found = logs.read(
            folder, after=part.after, before=part.before, limit=size, tail=part.tail, filters=wanted.filters
        )
        fitting = [line for line in found if wanted.has(line)]
        lines = [*fitting, *lines] if backwards else [*lines, *fitting]
        if len(found) < size:
            break
        part = (
            dataclasses.replace(part, before=found[0].id, tail=False)
            if backwards
            else dataclasses.replace(part, after=found[-1].id)
        )
    return lines[-part.limit :] if backwards and part.limit else lines[: part.limit]


async def _in_thread(work: Callable[..., T], *args: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_READERS, lambda: work(*args))


def _only(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else None


def _several(values: Sequence[Any]) -> frozenset[Any]:
    return frozenset(values) if len(values) > 1 else frozenset()
