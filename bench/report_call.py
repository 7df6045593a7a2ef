"""What a report costs the one who trains, with a master that hears it, that is gone, or that never answers.

Run `python -m bench.report_call [--calls 5000]`. The bars: p99 200 µs, the longest 5 ms.
"""

from __future__ import annotations

import argparse
import gc
import http.server
import json
import multiprocessing
import os
import pathlib
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

BAR_P99_MICROSECONDS = 200.0
BAR_LONGEST_MICROSECONDS = 5000.0
STEP_SECONDS = 0.001
METRICS = {f"metric_{number}": number / 7 for number in range(10)}
_STARTED = "run-1.1"


class Times(NamedTuple):
    """Microseconds of the calls of one case."""

    p50: float
    p99: float
    longest: float

    @property
    def is_within_bars(self) -> bool:
        return self.p99 <= BAR_P99_MICROSECONDS and self.longest <= BAR_LONGEST_MICROSECONDS


def listening() -> tuple[str, Callable[[], None]]:
    """A master that takes everything at once."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        taken = 0

        def do_POST(self) -> None:
            import gzip

            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            batch = json.loads(body)
            Handler.taken = max(Handler.taken, batch["first"] + len(batch["reports"]))
            answer = json.dumps({"acknowledged": Handler.taken, "stop": None}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    process = multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True)
    process.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    server.server_close()
    return url, process.kill


def gone() -> tuple[str, Callable[[], None]]:
    """A port where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}", lambda: None


def silent() -> tuple[str, Callable[[], None]]:
    """One that takes connections and never says a word."""
    held = socket.create_server(("127.0.0.1", 0), backlog=128)
    return f"http://127.0.0.1:{held.getsockname()[1]}", held.close


# "beside it": the sender is a thread of the process that trains, as for a run that no master started. A managed run's
# is in its node process, and costs the one who trains nothing but the line in the spool.
CASES: dict[str, tuple[Callable[[], tuple[str, Callable[[], None]]] | None, bool]] = {
    "no master": (None, False),
    "managed": (silent, False),
    "a master that listens, beside it": (listening, True),
    "a master that is gone, beside it": (gone, True),
    "a master that is silent, beside it": (silent, True),
}


def measure(case: str, calls: int, step_seconds: float = STEP_SECONDS) -> Times:
    """The times of a report of ten metrics after every step, in a process of its own."""
    make, has_thread = CASES[case]
    url, end = make() if make is not None else ("", lambda: None)
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=_report, args=(sender, url, has_thread, calls, step_seconds)
    )
    child.start()
    sender.close()
    try:
        times: list[float] = receiver.recv()
    finally:
        child.join()
        end()
    times.sort()
    return Times(times[len(times) // 2], times[int(len(times) * 0.99)], times[-1])


def _report(sender: Any, url: str, has_thread: bool, calls: int, step_seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        os.environ["DET_RUNS_DIR"] = folder
        sys.stderr = nowhere
        sender.send(_times(pathlib.Path(folder), url, has_thread, calls, step_seconds))


def _times(folder: pathlib.Path, url: str, has_thread: bool, calls: int, step_seconds: float) -> list[float]:
    from determined import core
    from determined.client.transport import Session
    from determined.core.uplink import CHIEF, Shipper

    spool = folder / "chief.spool"
    shipper = None
    if url:
        spec = {"name": "a", "run_id": "1", "run_folder": str(folder / "run"), "code_folder": str(folder)}
        master = {"url": url, "session_token": "t", "allocation_id": _STARTED, "run_epoch": 1, "task_id": "run-1"}
        document = {**spec, "allocation_folder": str(folder), "master": master, "trial": {"seed": 0}}
        (folder / "spec.json").write_text(json.dumps(document))
        os.environ["DET_NODE_SPEC"] = str(folder / "spec.json")
    if has_thread:
        shipper = Shipper(Session(url, "t"), _STARTED, 1, {CHIEF: spool}).start()
    times: list[float] = []
    wait = threading.Event().wait
    with core.init() as context:
        report = context.train.report_training_metrics
        report(0, METRICS)
        wait(0.5)
        gc.collect()
        for step in range(1, calls + 1):
            until = time.perf_counter() + step_seconds
            while time.perf_counter() < until:
                pass  # the training: it holds the interpreter, as the Python part of a step does
            began = time.perf_counter()
            report(step, METRICS)
            times.append((time.perf_counter() - began) * 1e6)
    if shipper is not None:
        shipper.close()
    return times


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report_call", description=__doc__)
    parser.add_argument("--calls", type=int, default=5000)
    options = parser.parse_args()
    print(f"a report of {len(METRICS)} metrics after every {STEP_SECONDS * 1000:g} ms of training, microseconds")
    print(f"{'':40}{'p50':>8}{'p99':>8}{'longest':>10}")
    is_well = True
    for case in CASES:
        times = measure(case, options.calls)
        is_well = is_well and times.is_within_bars
        print(f"{case:40}{times.p50:8.1f}{times.p99:8.1f}{times.longest:10.1f}")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
