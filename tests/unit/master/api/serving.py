"""A master in this process, spoken to as over HTTP: the whole app with its database, but no socket."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import httpx
from fastapi import FastAPI

from determined.master.api.doorkeeper import hash_of, new_token
from determined.master.api.gate import HEADERS
from determined.master.api.policy import API
from determined.master.app import create_app
from determined.master.lifecycle import users
from determined.master.settings import Settings
from determined.master.store.database import Tx
from determined.master.store.tables import allocations

T = TypeVar("T")


class Master:
    """A master that serves. ``owner`` is its owner's token."""

    def __init__(self, app: FastAPI, loop: asyncio.AbstractEventLoop, address: str = "127.0.0.1") -> None:
        self.app = app
        self.loop = loop
        self.settings: Settings = app.state.settings
        self.owner = self.settings.token_file.read_text().strip()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(address, 5000))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    def ask(
        self,
        method: str,
        path: str,
        token: str | None = "owner",
        headers: dict[str, str] | None = None,
        **content: Any,
    ) -> httpx.Response:
        """An answer. ``path`` is below /api/v1; ``token`` is the owner's, somebody else's, or None for nobody's."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {self.owner if token == 'owner' else token}"
        answer = self.run(self._client.request(method, f"{API}{path}", headers=sent, **content))
        assert HEADERS_TO_HAVE <= {*answer.headers}, f"{method} {path} has not all security headers"
        return answer

    def ask_raw(self, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> int:
        """The status of the answer to a request with exactly these headers."""

        async def call() -> int:
            statuses: list[int] = []
            path_bytes = f"{API}{path}".encode()
            scope = {
                "type": "http",
                "asgi": {"version": "3.0"},
                "http_version": "1.1",
                "method": method,
                "scheme": "http",
                "path": path_bytes.decode(),
                "raw_path": path_bytes,
                "query_string": b"",
                "root_path": "",
                "headers": headers,
                "client": ("127.0.0.1", 5000),
                "server": ("127.0.0.1", 80),
            }

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": b"", "more_body": False}

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])

            await self.app(scope, receive, send)
            return statuses[0]

        return self.run(call())

    def get(self, path: str, token: str | None = "owner") -> Any:
        """What is at a path, which must be there."""
        answer = self.ask("GET", path, token)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def make(self, method: str, path: str, token: str | None = "owner", **body: Any) -> Any:
        """What a change that must succeed answers."""
        answer = self.ask(method, path, token, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def write(self, change: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Make a change to the database, past the API."""
        found: T = self.app.state.db.write_now(change, *args, **kwargs)
        return found

    # Who may be calling.

    def user(self, username: str, *, admin: bool = False, scopes: tuple[str, ...] = ("read", "write")) -> str:
        """A token of a new user."""
        token = new_token()

        def create(tx: Tx) -> None:
            user = users.create(tx, username, admin=admin)
            users.create_token(tx, user.id, hash_of(token), "for a test", list(scopes), None)

        self.write(create)
        return token

    def token_of(self, user_id: int, *scopes: str, seconds: float | None = None) -> str:
        """Another token of a user."""
        token = new_token()
        self.write(users.create_token, user_id, hash_of(token), "for a test", list(scopes), seconds)
        return token

    def allocation(self, allocation_id: str, state: str = "running") -> str:
        """The token of an allocation, of a task that there is not."""
        token = new_token()

        def create(tx: Tx) -> None:
            task_id, _, epoch = allocation_id.rpartition(".")
            values = {
                "id": allocation_id,
                "task_id": task_id,
                "run_epoch": int(epoch),
                "state": state,
                "pool": "elsewhere",
                "slots": 1,
                "placement": {},
                "created_at": tx.now,
            }
            tx.execute(allocations.insert(), values)
            users.create_allocation_token(tx, allocation_id, hash_of(token))

        self.write(create)
        return token


HEADERS_TO_HAVE = {name.decode() for name, _ in HEADERS}


@contextlib.contextmanager
def serving(folder: pathlib.Path, **chosen: Any) -> Iterator[Master]:
    """A master whose state folder is ``folder / "master"``; its passwords cost little."""
    settings = Settings(**{"dir": folder / "master", "password_cost": 10, "slots": 1, "warm_start": False, **chosen})
    app = create_app(settings)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="master")
    thread.start()
    try:
        lifespan = app.router.lifespan_context(app)
        asyncio.run_coroutine_threadsafe(lifespan.__aenter__(), loop).result(30)
        try:
            yield Master(app, loop)
        finally:
            asyncio.run_coroutine_threadsafe(lifespan.__aexit__(None, None, None), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
