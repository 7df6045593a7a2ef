"""The same master behind a socket on loopback, for clients that need one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import uvicorn

from tests.unit.master.api.serving import Master


@contextlib.contextmanager
def listening_on(master: Master) -> Iterator[str]:
    """The address of a master of this process."""
    config = uvicorn.Config(master.app, "127.0.0.1", 0, lifespan="off", log_config=None, access_log=False, ws="none")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.run_coroutine_threadsafe(server._serve(), master.loop)

    async def has_begun() -> int:
        while not server.started:
            await asyncio.sleep(0.01)
        port: int = server.servers[0].sockets[0].getsockname()[1]
        return port

    port = master.run(has_begun())
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        serving.result(30)
