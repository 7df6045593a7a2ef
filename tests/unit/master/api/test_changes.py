"""The stream of changes: nothing is missed, one look serves everybody, and it ends with the credential."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from determined.master.api import changes
from determined.master.api.policy import API
from determined.master.store import changes as rows
from tests.unit.master.api.serving import Master


class Stream:
    """Server-sent events, as a browser reads them."""

    def __init__(
        self, master: Master, query: str = "", last: int | str | None = None, token: str | None = None
    ) -> None:
        self.status = 0
        self.text = b""
        self._gone = asyncio.Event()
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {token or master.owner}".encode())]
        if last is not None:
            headers.append((b"last-event-id", str(last).encode()))
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": f"{API}/changes",
            "raw_path": f"{API}/changes".encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 5000),
            "server": ("127.0.0.1", 80),
        }
        self._master = master
        self._task = asyncio.ensure_future(master.app(self._scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.text += message["body"]

    @property
    def events(self) -> list[dict[str, Any]]:
        parts = self.text.decode().split("\n\n")
        return [json.loads(part.partition("data: ")[2]) for part in parts if 'data: {"seq"' in part]

    async def until(self, count: int, seconds: float = 10.0) -> list[dict[str, Any]]:
        for _ in range(int(seconds / 0.01)):
            if len(self.events) >= count or self._task.done():
                break
            await asyncio.sleep(0.01)
        return self.events

    async def is_over(self, seconds: float = 5.0) -> bool:
        done, _ = await asyncio.wait([self._task], timeout=seconds)
        return bool(done)

    async def close(self) -> None:
        self._gone.set()
        await self._task


async def rename(master: Master, *names: str) -> None:
    for name in names:
        await master.app.state.db.write(lambda tx, name=name: tx.changed("project", name, state=name))


def test_changes_come_in_order_and_only_what_is_asked_for(master: Master) -> None:
    async def work() -> None:
        all_of_them, few = Stream(master), Stream(master, "noun=trial&experiment_id=7")
        await asyncio.sleep(0.1)
        await rename(master, "a", "b")
        await master.app.state.db.write(lambda tx: tx.changed("trial", 1, 7, state="running"))
        await master.app.state.db.write(lambda tx: tx.changed("trial", 2, 8, state="running"))
        found = await all_of_them.until(4)
        assert [(change["noun"], change["id"]) for change in found] == [
            ("project", "a"),
            ("project", "b"),
            ("trial", "1"),
            ("trial", "2"),
        ]
        assert [change["seq"] for change in found] == sorted(change["seq"] for change in found)
        (only,) = await few.until(1)
        assert (only["id"], only["experiment_id"], only["fields"]) == ("1", 7, {"state": "running"})
        await all_of_them.close()
        await few.close()

    master.run(work())


@pytest.mark.parametrize("how", ["header", "query"])
def test_who_comes_back_misses_nothing(master: Master, how: str) -> None:
    async def work() -> None:
        first = Stream(master)
        await asyncio.sleep(0.1)
        await rename(master, "a", "b", "c")
        seen = (await first.until(3))[0]["seq"]
        await first.close()
        await rename(master, "d")
        again = Stream(master, last=seen) if how == "header" else Stream(master, f"after={seen}")
        assert [change["id"] for change in await again.until(3)] == ["b", "c", "d"]
        await again.close()

    master.run(work())


def test_who_was_away_too_long_is_told_to_begin_anew(master: Master) -> None:
    async def work() -> None:
        for last in (10**9, 10**17):
            ahead = Stream(master, last=last)
            for _ in range(300):
                if b"event: reset" in ahead.text:
                    break
                await asyncio.sleep(0.01)
            assert b"event: reset" in ahead.text
            await ahead.close()
        wrong = Stream(master, last="x")
        assert await wrong.is_over() and wrong.status == 400

    master.run(work())


def test_a_stream_ends_with_the_session(master: Master) -> None:
    token = master.user("ada")
    user_id = master.get("/me", token)["id"]

    async def open_one() -> Stream:
        stream = Stream(master, token=token)
        await asyncio.sleep(0.1)
        return stream

    stream = master.run(open_one())
    assert stream.status == 200
    master.make("PATCH", f"/users/{user_id}", active=False)
    assert master.run(stream.is_over(1.0))
    late = master.run(open_one())
    assert late.status == 401


def test_one_look_serves_everybody(master: Master) -> None:
    async def work() -> int:
        reads = 0
        database = master.app.state.db
        read = database.read

        async def counting(look: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal reads
            reads += look in (rows.after, changes._after)
            return await read(look, *args, **kwargs)

        streams = [Stream(master) for _ in range(50)]
        await asyncio.sleep(0.3)
        database.read = counting
        await rename(master, *map(str, range(20)))
        for stream in streams:
            assert len(await stream.until(20)) == 20
        database.read = read
        for stream in streams:
            await stream.close()
        return reads

    assert master.run(work()) <= 25


def test_streams_end_when_the_master_stops(master: Master) -> None:
    async def work() -> None:
        stream = Stream(master)
        await asyncio.sleep(0.1)
        master.app.state.feed.close()
        assert await stream.is_over()

    master.run(work())
