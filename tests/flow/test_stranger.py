"""While a master is away, something else may listen at its address: another master, or no master at all."""

from __future__ import annotations

import contextlib
import http.server
import json
import pathlib
import shutil
import threading
from collections.abc import Iterator

import pytest

from tests.flow import stub
from tests.flow.cluster import cluster
from tests.flow.processes import wait_until
from tests.flow.test_kill_anything import metrics

HPARAMS = {"step_seconds": 0.1, "steps": 250, "every": 50}


@contextlib.contextmanager
def stranger(port: int, status: int, code: str) -> Iterator[list[str]]:
    """Answers everything in the same way, and remembers who asked."""
    asked: list[str] = []
    answer = json.dumps({"code": code, "message": "who are you?", "cluster_id": "another"}).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append(self.path)
            self.answer(status)

        def do_GET(self) -> None:
            self.answer(200)

        def answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_a_stranger_at_the_masters_address_costs_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "code").mkdir()
    shutil.copy(stub.__file__, tmp_path / "code" / "stub.py")
    config = {
        "name": "steadfast",
        "entrypoint": "python stub.py",
        "hyperparameters": HPARAMS,
        "searcher": {"name": "single", "metric": "error"},
        "max_restarts": 0,
    }
    with cluster(tmp_path / "master", DET_MASTER_WARM_START="false") as started:
        experiment_id = started.submit(tmp_path / "code", config)
        assert wait_until(lambda: any(trial.steps_completed > 2 for trial in started.trials(experiment_id)), 60)
        started.kill()
        for status, code in ((401, "unauthenticated"), (409, "stale_run_epoch"), (400, "bad_request")):
            with stranger(started.port, status, code) as asked:
                assert wait_until(lambda asked=asked: asked, 30)  # type: ignore[misc]
        started.start()
        assert started.wait(experiment_id, 120).state == "COMPLETED", started.log
        (trial,) = started.trials(experiment_id)
        assert (trial.restarts, trial.run_epoch) == (0, 1), started.log
        rows = [
            (row.steps_completed, row.metrics["state"]) for row in metrics(started, trial.id) if row.group == "training"
        ]
        assert rows == [(step, state) for step, state, _ in stub.course(HPARAMS)]
