"""What every request passes, before any route and whatever the answer: which names this master answers to, who may
ask from a browser, how much may be sent and how slowly. Plain ASGI, because everything goes through it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Iterable, MutableMapping
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from determined.master.api import errors as problems
from determined.master.api.doorkeeper import COOKIE

KIB, MIB = 2**10, 2**20
BODY_LIMITS = (
    ("/api/v1/contexts/", 100 * MIB),
    ("/api/v1/allocations/", 8 * MIB),
    ("", 4 * MIB),
)
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_SAFE = ("GET", "HEAD", "OPTIONS")
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253})(:[0-9]{1,5})?")

HEADERS = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


class Gate:
    """ASGI middleware around the whole app."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str], timeout_seconds: float) -> None:
        self.app = app
        self.hosts = frozenset(host_name(host) for host in hosts) | frozenset(_LOOPBACK)
        self.timeout_seconds = timeout_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # nothing here speaks over WebSockets: the server refuses the upgrade
        has_started = False

        async def answer(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                _add_headers(message)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, answer)
            return
        try:
            await self.app(scope, self._bounded(scope, receive), answer)
        except _Refused as refused:
            if not has_started:
                await refused.answer(scope, receive, answer)
        except Exception as error:
            response = problems.unforeseen(error, f"{scope['method']} {scope['path']}")
            if has_started:
                raise
            await response(scope, receive, answer)

    def _refusal(self, scope: Scope) -> Response | None:
        """Why a request does not get further, from its head alone."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        host = hosts[0] if len(hosts) == 1 else b""
        matched = _HOST.fullmatch(host)
        if matched is None or matched[1].decode().lower() not in self.hosts:
            return problems.problem(
                403,
                "forbidden",
                "this master does not answer to that name; add it to `hosts` in the master's settings if it should",
            )
        if scope["method"] not in _SAFE and (said := _cross_site(scope, host)):
            return problems.problem(403, "forbidden", said)
        length = _header(scope, b"content-length")
        limit = body_limit(scope["path"])
        if length is not None and (not length.isdigit() or len(length) > 18 or int(length) > limit):
            return _too_large(limit)
        return None

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """The body, no more than may be sent and no slower than may be waited for."""
        if _header(scope, b"content-length") in (None, b"0") and _header(scope, b"transfer-encoding") is None:
            return receive
        left, is_over, limit = body_limit(scope["path"]), False, body_limit(scope["path"])

        async def bounded() -> Message:
            nonlocal left, is_over
            if is_over:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self.timeout_seconds)
            except asyncio.TimeoutError:
                raise _Refused(
                    problems.problem(408, "bad_request", "the request's body did not come in time")
                ) from None
            if message["type"] == "http.request":
                left -= len(message.get("body", b""))
                is_over = not message.get("more_body", False)
                if left < 0:
                    raise _Refused(_too_large(limit))
            return message

        return bounded


class _Refused(BaseException):
    """Not an Exception, so that what parses bodies does not take it for its own."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        answer.headers["Connection"] = "close"
        self.answer = answer


def body_limit(path: str) -> int:
    """Bytes that a request's body may have."""
    return next(limit for start, limit in BODY_LIMITS if path.startswith(start))


def host_name(host: str) -> str:
    """A host as it stands in a Host header, without a port."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower()
    return f"[{address}]" if address.version == 6 else str(address)


def _cross_site(scope: Scope, host: bytes) -> str | None:
    """Why a changing request from a browser is refused: it does not come from a page of this master."""
    site = _header(scope, b"sec-fetch-site")
    origin = _header(scope, b"origin")
    if site is not None and site not in (b"same-origin", b"none"):
        return "requests from pages of other sites are refused"
    if origin is not None and origin.lower() not in (b"http://" + host.lower(), b"https://" + host.lower()):
        return "requests from pages of other sites are refused"
    by_cookie = _header(scope, b"authorization") is None and f"{COOKIE}=".encode() in (_header(scope, b"cookie") or b"")
    if by_cookie and origin is None and site != b"same-origin":
        return "a request with a session cookie must say where it comes from: it needs Origin or Sec-Fetch-Site"
    return None


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for found, value in scope["headers"] if found == name), None)


def _add_headers(message: MutableMapping[str, Any]) -> None:
    headers = list(message.get("headers", ()))
    present = {name.lower() for name, _ in headers}
    message["headers"] = headers + [pair for pair in HEADERS if pair[0] not in present]


def _too_large(limit: int) -> Response:
    size = f"{limit // MIB} MiB"
    answer = problems.problem(
        413, "too_large", f"the request's body is larger than {size}, the most this address takes"
    )
    answer.headers["Connection"] = "close"
    return answer
