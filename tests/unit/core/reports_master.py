"""A master's report route on loopback, as good or as bad as a test wants it."""

from __future__ import annotations

import gzip
import http.server
import json
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

M = TypeVar("M", bound="ReportsMaster")


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
        self.cluster_id = "here"
        self.released = threading.Event()
        self._changed = threading.Condition()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                owner._answer(self)

            do_GET = do_POST

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self: M) -> M:
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

    def other(self, path: str, body: Any) -> tuple[int, Any]:
        """What is asked besides reports."""
        return 404, {"code": "not_found", "message": "there is nothing"}

    def take(self, batch: dict[str, Any]) -> int:
        """Take lines in; how many there are."""
        have = self.lines[batch["source"]]
        assert batch["first"] <= len(have), "a gap"
        have.extend(batch["reports"][len(have) - batch["first"] :])
        return len(have)

    def _answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        if handler.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        batch = json.loads(body) if body else {}
        if not handler.path.endswith("/reports"):
            with self._changed:
                path = handler.path.removeprefix("/api/v1")
                known = 200, {"cluster_id": self.cluster_id, "version": "0"}
                status, reply = known if path == "/master" else self.other(path, batch)
                self._changed.notify_all()
            return self._send(handler, status, reply)
        with self._changed:
            number = len(self.requests)
            batch["path"], batch["token"] = handler.path, handler.headers["Authorization"]
            self.requests.append(batch)
        trouble = self.trouble(number)
        status, reply = 200, cast("dict[str, Any]", {})
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
                reply = {"acknowledged": self.take(batch), "stop": self.stop}
        with self._changed:
            self._changed.notify_all()
        if trouble == "lost":
            handler.close_connection = True
            return
        self._send(handler, status, reply)

    def _send(self, handler: http.server.BaseHTTPRequestHandler, status: int, reply: Any) -> None:
        content = json.dumps(reply).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


class RunsMaster(ReportsMaster):
    """One that also takes runs that it did not start: a later attempt begins at the latest checkpoint it knows."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[tuple[Any, Any], dict[str, Any]] = {}
        self.registered: list[dict[str, Any]] = []
        self.ended: list[dict[str, Any]] = []
        self.is_away = False

    def run(self) -> dict[str, Any]:
        """The only one."""
        (run,) = self.runs.values()
        return run

    def other(self, path: str, body: Any) -> tuple[int, Any]:
        if self.is_away:
            return 503, {"code": "store_unavailable", "message": "later"}
        if path == "/runs":
            self.registered.append(body)
            key = (body["external_experiment_id"], body["external_trial_id"])
            run = self.runs.setdefault(
                key, {"trial": len(self.runs) + 1, "epoch": 0, "rows": {}, "checkpoints": {}, "other": []}
            )
            run["epoch"] += 1
            latest = max(run["checkpoints"].values(), key=lambda each: each["time"], default=None)
            cut = latest["steps_completed"] if latest else 0
            run["rows"] = {key: row for key, row in run["rows"].items() if key[1] <= cut}
            run["lines"] = 0
            view = {
                "experiment_id": run["trial"],
                "trial_id": run["trial"],
                "allocation_id": f"trial-{run['trial']}.{run['epoch']}",
                "run_epoch": run["epoch"],
                "session_token": f"token-{run['trial']}",
                "cluster_id": "here",
                "latest_checkpoint": latest["uuid"] if latest else None,
                "steps_completed": cut,
            }
            return 200, view
        if path.endswith("/exit"):
            self.ended.append(body)
            return 200, {}
        uuid = path.rpartition("/")[2]
        return 200, next(run["checkpoints"][uuid] for run in self.runs.values() if uuid in run["checkpoints"])

    def take(self, batch: dict[str, Any]) -> int:
        trial = int(batch["path"].split("/trial-")[1].split(".")[0])
        run = next(run for run in self.runs.values() if run["trial"] == trial)
        assert batch["token"] == f"Bearer token-{trial}" and batch["run_epoch"] == run["epoch"]
        assert batch["first"] <= run["lines"], "a gap"
        for report in batch["reports"][run["lines"] - batch["first"] :]:
            run["lines"] += 1
            if report["kind"] == "metrics":
                run["rows"][report["group"], report["steps_completed"]] = report["metrics"]
            elif report["kind"] == "checkpoint":
                run["checkpoints"][report["uuid"]] = report
            else:
                run["other"].append(report)
        return int(run["lines"])
