"""The stream of changes: one look at the database for everybody who watches."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Annotated

import orjson
from fastapi import Query, Request
from starlette.responses import StreamingResponse

from determined import errors
from determined.master.api.doorkeeper import Doorkeeper, credential
from determined.master.api.policy import Router, policy
from determined.master.store import changes
from determined.master.store.database import Database, Tx
from determined.wire.views import Change

router = Router()

PING_SECONDS = 15.0
_PAUSE_SECONDS = 0.03  # changes of so long a moment are looked up together
_KEPT = 5_000
_BATCH = 1_000
_MOST_WATCHERS = 1_000


@dataclasses.dataclass(frozen=True, slots=True)
class _Event:
    """A change as every stream sends it: made text once."""

    seq: int
    noun: str
    id: str
    experiment_id: int | None
    text: bytes


class Feed:
    """Looks once at what changed, and hands it to all who watch; also ends what the doorkeeper remembers in vain."""

    def __init__(self, db: Database, doorkeeper: Doorkeeper) -> None:
        self._db = db
        self._doorkeeper = doorkeeper
        self._kept: deque[_Event] = deque(maxlen=_KEPT)
        self._news = asyncio.Event()
        self._told = asyncio.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.seq = 0
        self.watchers = 0
        self.is_closed = False

    async def start(self) -> None:
        """From now on nothing is missed."""
        self._loop = asyncio.get_running_loop()
        self._db.watch(self._wake)
        self.seq = await self._db.read(changes.newest)

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed() and not self.is_closed:
            loop.call_soon_threadsafe(self._news.set)

    async def run(self) -> None:
        """Look whenever something was committed; runs until it is closed or cancelled."""
        while not self.is_closed:
            await self._news.wait()
            self._news.clear()
            found = await self._db.read(changes.after, self.seq, _BATCH)
            if len(found) == _BATCH:
                self._news.set()
            for change in found:
                self._kept.append(_event(change))
                self.seq = change.seq
                if change.noun in ("user", "token"):
                    self._doorkeeper.forget()
                elif change.noun == "allocation" and change.fields.get("state") == "ended":
                    self._doorkeeper.forget_allocation(change.id)
            if found:
                await self._tell()
            await asyncio.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """End every stream."""
        self.is_closed = True
        self._news.set()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._tell()))

    async def _tell(self) -> None:
        async with self._told:
            self._told.notify_all()

    async def wait(self, seq: int, seconds: float) -> None:
        """Until there is something newer than ``seq``, the feed is closed, or so long."""

        async def newer() -> None:
            async with self._told:
                await self._told.wait_for(lambda: self.seq > seq or self.is_closed)

        try:
            await asyncio.wait_for(newer(), seconds)
        except asyncio.TimeoutError:
            return

    async def after(self, seq: int) -> list[_Event] | None:
        """What came after ``seq``; None if that is so long ago that nobody knows any more."""
        if self._kept and self._kept[0].seq <= seq + 1:
            return [event for event in self._kept if event.seq > seq][:_BATCH]
        return await self._db.read(_after, seq)


@router.get("/changes", dependencies=[policy("read")], response_class=StreamingResponse)
async def stream_changes(
    request: Request,
    after: Annotated[
        int | None, Query(ge=0, le=2**63 - 1, description="Begin after the change of this number.")
    ] = None,
    noun: Annotated[list[str] | None, Query(description="Only changes of these.")] = None,
    experiment_id: Annotated[int | None, Query(ge=1, le=2**63 - 1, description="Only of this experiment.")] = None,
) -> StreamingResponse:
    """What changes, as it does (server-sent events). Each has its number as its id: a client that comes back says the
    last one it has seen in `Last-Event-ID`, and misses nothing. An event `reset` says that it was away for too long,
    or is too slow: fetch everything anew.
    """
    feed: Feed = request.app.state.feed
    last = request.headers.get("last-event-id")
    if last is not None:
        if not last.isascii() or not last.isdigit() or len(last) > 18:
            raise errors.BadRequest("Last-Event-ID must be the number of a change")
        after = int(last)
    if feed.watchers >= _MOST_WATCHERS:
        raise errors.TooManyAttempts(f"{_MOST_WATCHERS} streams of changes are open, and no more are served")
    nouns = None if noun is None else frozenset(noun)

    def is_wanted(event: _Event) -> bool:
        return (nouns is None or event.noun in nouns) and experiment_id in (None, event.experiment_id)

    token = credential(request)
    assert token is not None
    seq = feed.seq if after is None else after
    return StreamingResponse(
        _stream(feed, request.app.state.doorkeeper, token, seq, is_wanted), media_type="text/event-stream"
    )


async def _stream(
    feed: Feed, doorkeeper: Doorkeeper, token: str, seq: int, is_wanted: Callable[[_Event], bool]
) -> AsyncIterator[bytes]:
    feed.watchers += 1
    try:
        # The number to come back with, also when nothing happens in between.
        yield f"retry: 1000\nid: {seq}\n\n".encode()
        while not feed.is_closed:
            # Whoever is signed out, or no longer active, sees nothing more.
            await doorkeeper.identify(token)
            found = await feed.after(seq) if feed.seq != seq else []
            if found is None:
                seq = feed.seq
                yield f"id: {seq}\nevent: reset\ndata: {{}}\n\n".encode()
            elif found:
                seq = found[-1].seq
                if chosen := [event.text for event in found if is_wanted(event)]:
                    yield b"".join(chosen)
            else:
                await feed.wait(seq, PING_SECONDS)
                if feed.seq == seq:
                    yield b": ping\n\n"
    except errors.Unauthenticated:
        return
    finally:
        feed.watchers -= 1


def _event(change: Change) -> _Event:
    text = orjson.dumps(change.model_dump(mode="json"))
    return _Event(
        change.seq, change.noun, change.id, change.experiment_id, b"id: %d\ndata: %s\n\n" % (change.seq, text)
    )


def _after(tx: Tx, seq: int) -> list[_Event] | None:
    if seq > changes.newest(tx) or (seq + 1 < changes.oldest(tx)):
        return None
    return [_event(change) for change in changes.after(tx, seq, _BATCH)]
