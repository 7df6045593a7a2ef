"""A master's report route on loopback, as good or as bad as a test wants it."""

from __future__ import annotations

import gzip
import http.server
import json
import threading
from collections.abc import Callable
from typing import Any


class ReportsMaster:
    """Takes each line of each spool once, in order, as the real one does; ``trouble`` decides what goes wrong.

    ``trouble(number)`` is asked for every request: None for nothing, a status, "lost" (taken, but the answer never
    arrives) or "hang" (neither).
    """

    def __init__(self, trouble: Callable[[int], Any] = lambda number: None) -> None:
        self.trouble = trouble
        self.lines: dict[str, list[dict[str, Any]]] = {"chief": [], "node": []}
        self.requests: list[dict[str, Any]] = []
        self.stop: dict[str, Any] | None = None
        self.problem: dict[str, Any] | None = None
        self.poison: str | None = None
        self.released = threading.Event()
        self._changed = threading.Condition()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                owner._answer(self)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> ReportsMaster:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait(self, is_so: Callable[[], bool], seconds: float = 20.0) -> None:
        with self._changed:
            assert self._changed.wait_for(is_so, seconds), (
                self.requests[-3:],
                {k: len(v) for k, v in self.lines.items()},
            )

    def _answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if handler.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        batch = json.loads(body)
        with self._changed:
            number = len(self.requests)
            batch["path"], batch["token"] = handler.path, handler.headers["Authorization"]
            self.requests.append(batch)
        trouble = self.trouble(number)
        status, reply = 200, {}
        if trouble == "hang":
            self.released.wait(30)
            handler.close_connection = True
            return
        if isinstance(trouble, int):
            status, reply = trouble, self.problem or {"code": "error", "message": "trouble"}
        elif self.poison is not None and any(self.poison in json.dumps(line) for line in batch["reports"]):
            status, reply = 422, {"code": "bad_request", "message": "it makes no sense"}
        else:
            with self._changed:
                have = self.lines[batch["source"]]
                assert batch["first"] <= len(have), "a gap"
                have.extend(batch["reports"][len(have) - batch["first"] :])
                reply = {"acknowledged": len(have), "stop": self.stop}
        with self._changed:
            self._changed.notify_all()
        if trouble == "lost":
            handler.close_connection = True
            return
        content = json.dumps(reply).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)
