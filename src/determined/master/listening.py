"""How connections are listened to: a client that does not say what it wants is not waited for, and there are only so
many at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _Protocol
except ImportError:
    from uvicorn.protocols.http.h11_impl import H11Protocol as _Protocol  # type: ignore[assignment]


_PROBLEM = b'{"code":"bad_request","message":"this is not HTTP","details":[]}'


def bounded_protocol(
    head_seconds: float, max_connections: int, headers: Iterable[tuple[bytes, bytes]] = ()
) -> type[asyncio.Protocol]:
    """uvicorn's protocol, with limits: ``head_seconds`` for the head of a request to come in, once it is begun or the
    connection is made; so many connections at once. What is not HTTP is answered with ``headers`` too."""
    head = [
        b"HTTP/1.1 400 Bad Request",
        *(name + b": " + value for name, value in headers),
        b"content-type: application/json",
        b"content-length: %d" % len(_PROBLEM),
        b"connection: close",
    ]
    refusal = b"\r\n".join(head) + b"\r\n\r\n" + _PROBLEM

    class Bounded(_Protocol):
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > max_connections:
                transport.abort()
                return
            self._wait()

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._stop_waiting()
            elif self._waiting is None and (before is None or before.response_complete):
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            # In the middle of an answer there is no place for another.
            if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
                self.transport.write(refusal)
            self.transport.close()

        def _wait(self) -> None:
            self._waiting = self.loop.call_later(head_seconds, self._give_up)

        def _stop_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

        def _give_up(self) -> None:
            self._waiting = None
            if not self.transport.is_closing():
                self.transport.close()

    return Bounded
