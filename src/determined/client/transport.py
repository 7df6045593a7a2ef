"""Session: requests to one master over connections that stay open.

Made of the standard library alone, because every trial that reports pays for importing it. An answer that is an error
becomes the exception it was on the master's side. What the network loses is asked again; a call that changes something
carries an idempotency key, so that asked twice is done once.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import http.client
import json
import os
import random
import socket
import ssl
import threading
import time
import urllib.parse
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Union

from determined import errors

PREFIX = "/api/v1"
GZIP_FROM = 16 * 1024
_CHUNK = 1 << 18
_PAUSES = (0.1, 0.4, 1.2)
_KEPT = 8  # idle connections at most
# A connection that was idle for longer has probably been closed by the other side.
_IDLE_SECONDS = 50.0

Query = Mapping[str, Any]
_Broken = (OSError, http.client.HTTPException)


class Answer(NamedTuple):
    """What came back, whole."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        """The body as plain values; NaN and infinities included."""
        return json.loads(self.body) if self.body else None


class Session:
    """Speaks to the master at ``url``, with a token if there is one. May be used from several threads.

    ``timeout`` is how many seconds the master may be silent; ``attempts`` how often a call is tried before
    ``MasterUnreachable`` is raised. ``verify`` is a file of certificates to trust, or False to trust any. ``moved`` is
    asked when nobody answers: where that same master is now, or None if it is known nowhere else. A master that was
    started again may serve at another port.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        attempts: int = 4,
        verify: Union[str, bool] = True,
        server_name: str | None = None,
        moved: Callable[[], str | None] | None = None,
    ) -> None:
        self.token = token
        self.timeout = timeout
        self.attempts = attempts
        self._verify = verify
        self._server_name = server_name
        self._moved = moved
        self._place(url)
        self._idle: deque[tuple[float, http.client.HTTPConnection]] = deque()
        self._lock = threading.Lock()

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        attempts: int | None = None,
        key: str | None = None,
    ) -> Answer:
        """Ask, and return the answer; raises what the master raised, or MasterUnreachable.

        ``body`` is sent as JSON, ``data`` as it is. ``key`` is the idempotency key of a changing call; by default a
        new one for each call, so that only this method's own attempts count as one.
        """
        sent, headers = self._prepare(method, body, data, headers, key)
        is_first = True
        while True:
            response, connection = self._ask(method, path, query, sent, headers, timeout, attempts or self.attempts)
            with _as_unreachable(self.url):
                content = _decoded(response, response.read())
            self._keep(connection, response)
            answer = Answer(response.status, _lower(response), content)
            if response.status < 400:
                return answer
            if self._moved is None or method == "HEAD" or _explained(answer) is not None:
                raise problem(answer)
            # Somebody else has the address of a master that has gone, and may be elsewhere.
            if not (is_first and self._has_moved()):
                raise errors.MasterUnreachable(
                    f"the master at {self.url} cannot be reached: what answers there, by {answer.status}, is none."
                )
            is_first = False

    @contextlib.contextmanager
    def stream(
        self,
        path: str,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Iterator[Stream]:
        """Ask for something long, to be read piece by piece while it comes."""
        _, headers = self._prepare("GET", None, None, {"Accept-Encoding": "identity", **(headers or {})}, None)
        response, connection = self._ask("GET", path, query, None, headers, timeout, self.attempts)
        try:
            if response.status >= 400:
                raise problem(Answer(response.status, _lower(response), _decoded(response, response.read())))
            yield Stream(response, self.url)
        finally:
            # Half read, it cannot be used for anything else.
            connection.close()

    def get(self, path: str, query: Query | None = None) -> Any:
        """Plain values from a GET."""
        return self.call("GET", path, query=query).json()

    def post(self, path: str, body: Any = None, query: Query | None = None) -> Any:
        """Plain values from a POST."""
        return self.call("POST", path, query=query, body=body).json()

    def with_token(self, token: str | None) -> Session:
        """Another session with the same master, for another who calls."""
        other = copy.copy(self)
        other.token, other._idle, other._lock = token, deque(), threading.Lock()
        return other

    def close(self) -> None:
        """Let go of all connections. The session may be used again."""
        with self._lock:
            idle, self._idle = self._idle, deque()
        for _, connection in idle:
            connection.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _place(self, url: str) -> None:
        parts = _parse(url)
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._host, self._port = parts.hostname or "localhost", parts.port
        self._base = parts.path.rstrip("/") + PREFIX
        self._tls = _tls(self._verify) if parts.scheme == "https" else None

    def _has_moved(self) -> bool:
        url = self._moved() if self._moved is not None else None
        if url is None or url.rstrip("/") == self.url:
            return False
        self.close()
        self._place(url)
        return True

    def _prepare(
        self, method: str, body: Any, data: bytes | None, headers: Mapping[str, str] | None, key: str | None
    ) -> tuple[bytes | None, dict[str, str]]:
        # NaN and infinities may come as JSON's own dialect: we read it, a browser would not.
        ready = {"Accept": "application/json; nan=constants, */*;q=0.5", "Accept-Encoding": "gzip"}
        if self.token:
            ready["Authorization"] = f"Bearer {self.token}"
        if method not in ("GET", "HEAD"):
            ready["Idempotency-Key"] = key or os.urandom(16).hex()
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
            ready["Content-Type"] = "application/json"
        ready.update(headers or {})
        return data, ready

    def _ask(
        self,
        method: str,
        path: str,
        query: Query | None,
        data: bytes | None,
        headers: Mapping[str, str],
        timeout: float | None,
        attempts: int,
    ) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
        target = path + _question(query)
        failed = 0
        while True:
            connection, is_fresh = self._connection(timeout or self.timeout)
            try:
                connection.request(method, self._base + target, data, dict(headers))
                response = connection.getresponse()
            except _Broken as error:
                connection.close()
                if not is_fresh and not isinstance(error, TimeoutError):
                    continue  # the master had closed it, which says nothing
                failed += 1
                if failed <= attempts and self._has_moved():
                    continue
                if failed >= attempts:
                    raise _unreachable(self.url, error) from None
            else:
                if response.status != 503 or failed + 1 >= attempts:
                    return response, connection
                # Nothing has happened there; a moment later it may.
                connection.close()
                failed += 1
            time.sleep(_PAUSES[min(failed, len(_PAUSES)) - 1] * (0.5 + random.random()))

    def _connection(self, timeout: float) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            while self._idle:
                since, connection = self._idle.pop()
                if time.monotonic() - since < _IDLE_SECONDS and connection.sock is not None:
                    connection.sock.settimeout(timeout)
                    return connection, False
                connection.close()
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout), True
        return _TlsConnection(self._host, self._port, timeout, self._tls, self._server_name), True

    def _keep(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        if response.will_close:
            connection.close()
            return
        with self._lock:
            self._idle.append((time.monotonic(), connection))
            spare = self._idle.popleft()[1] if len(self._idle) > _KEPT else None
        if spare is not None:
            spare.close()


class Stream:
    """An answer that is read piece by piece."""

    def __init__(self, response: http.client.HTTPResponse, url: str) -> None:
        self.status = response.status
        self.headers = _lower(response)
        self._response = response
        self._url = url

    def lines(self) -> Iterator[bytes]:
        """Every line as soon as it is whole, without its end."""
        with _as_unreachable(self._url):
            while line := self._response.readline():
                yield line.rstrip(b"\r\n")

    def pieces(self, size: int = _CHUNK) -> Iterator[bytes]:
        """The bytes, in pieces of at most ``size``."""
        with _as_unreachable(self._url):
            while piece := self._response.read(size):
                yield piece


def problem(answer: Answer) -> errors.DeterminedError:
    """The exception that an answer with an error status stands for."""
    said = _explained(answer)
    if said is not None:
        code, message = str(said["code"]), str(said["message"])
        details = said.get("details") or []
    else:
        code, details = _CODES.get(answer.status, "error"), []
        message = f"the answer is status {answer.status} without an explanation: is it a master that answers there?"
    kind = _classes().get(code, errors.DeterminedError)
    # Some classes make their message themselves; this one is made already.
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.code = code
    error.details = details  # type: ignore[attr-defined]
    return error


def _explained(answer: Answer) -> dict[str, Any] | None:
    """What a master says of an error; None from anybody else."""
    try:
        said = json.loads(answer.body)
    except ValueError:
        return None
    return said if isinstance(said, dict) and {"code", "message"} <= said.keys() else None


def quoted(part: object) -> str:
    """A piece of a path, with everything that has a meaning there taken out."""
    return urllib.parse.quote(str(part), safe="")


_CODES = {400: "bad_request", 401: "unauthenticated", 403: "forbidden", 404: "not_found", 409: "refused"}


def _classes() -> dict[str, type[errors.DeterminedError]]:
    return {
        kind.code: kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.DeterminedError)
    }


def _parse(url: str) -> urllib.parse.SplitResult:
    parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    try:
        parts.port  # noqa: B018 - raises for one that is no number
    except ValueError:
        parts = parts._replace(netloc="")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise errors.BadRequest(f"{url!r} is no address of a master; one looks like http://localhost:8080")
    return parts


def _question(query: Query | None) -> str:
    pairs: list[tuple[str, str]] = []
    for name, value in (query or {}).items():
        for each in value if isinstance(value, (list, tuple, set, frozenset)) else (value,):
            if each is not None:
                pairs.append((name, ("true" if each else "false") if isinstance(each, bool) else str(each)))
    return f"?{urllib.parse.urlencode(pairs)}" if pairs else ""


def _lower(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _decoded(response: http.client.HTTPResponse, content: bytes) -> bytes:
    if response.headers.get("Content-Encoding") == "gzip" and content:
        return gzip.decompress(content)
    return content


@contextlib.contextmanager
def _as_unreachable(url: str) -> Iterator[None]:
    try:
        yield
    except _Broken as error:
        raise _unreachable(url, error) from None


def _unreachable(url: str, error: Exception) -> errors.MasterUnreachable:
    if isinstance(error, ConnectionRefusedError):
        why = "nothing listens there"
    elif isinstance(error, socket.gaierror):
        why = "its name is not known"
    elif isinstance(error, TimeoutError):
        why = "it did not answer in time"
    elif isinstance(error, ssl.SSLCertVerificationError):
        why = f"its certificate is not trusted: {error.verify_message}"
    else:
        why = str(error) or type(error).__name__
    return errors.MasterUnreachable(
        f"the master at {url} cannot be reached: {why}. Is it running, and is the address right (-m, DET_MASTER)?"
    )


def _tls(verify: Union[str, bool]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class _TlsConnection(http.client.HTTPSConnection):
    """One whose certificate may be for another name than the address."""

    def __init__(
        self, host: str, port: int | None, timeout: float, context: ssl.SSLContext, server_name: str | None
    ) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._tls = context
        self._server_name = server_name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._server_name or self.host)
