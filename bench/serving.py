"""A master with a past: how long it takes to start, what memory it needs, and what its lists take from the shell.

The past is ten thousand experiments, each with ten trials of a hundred reports; the same with a tenth of it shows how
things grow. Memory is that of the master's own process, when nobody asks for anything and while two hundred trials
report once a second: for a minute, or with ``--hour`` for an hour, in which it must not grow.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from typing import Any

from bench import history, limits
from bench.ingest import Reporter
from bench.master import OwnMaster, own_master
from bench.options import Finding, Options
from bench.processes import ContenderFailed
from bench.results import Row, Table

START_BAR, IDLE_BAR, BUSY_BAR, LIST_BAR, VERSION_BAR = 3.0, 150.0, 300.0, 400.0, 150.0
# In an hour, memory may become so many times what it was after its first sixth.
FLAT_BAR = 1.05
EXPERIMENTS = (1_000, 10_000)
REPORTERS = 200
_ROWS_AT_ONCE = 10
_EVERY_SECONDS = 1.0


def run(options: Options) -> Finding:
    sizes = (2, 20) if options.is_quick else EXPERIMENTS
    reporters = 4 if options.is_quick else REPORTERS
    seconds = 1.0 if options.is_quick else 3600.0 if options.is_hour else 60.0
    found: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-serving-") as name:
        first = pathlib.Path(name) / "first"
        options.say("a master with a past: making it")
        history.seed(first)
        for size in sizes:
            folder = pathlib.Path(name) / f"past-{size}"
            shutil.copytree(first, folder, ignore=shutil.ignore_patterns("starter", "lock", "master.json"))
            rows = history.multiply(folder, size)
            options.say(f"a master with a past of {rows['experiments']} experiments, {rows['metrics']} rows of metrics")
            is_last = size == sizes[-1]
            found[size] = {**_measure(options, folder, reporters, seconds if is_last else min(seconds, 5.0)), **rows}
            shutil.rmtree(folder)
        version = _in_turns(options, {"version": [*_det(), "--version"]})["version"]
        alone = limits.python_alone(3 if options.is_quick else 15)
    return Finding(
        _rows(found[sizes[-1]], reporters, seconds, alone, statistics.median(version)),
        [_growth(found)],
        {"by experiments": found, "version": version, "python": alone},
    )


def _rows(found: dict[str, Any], reporters: int, seconds: float, alone: float, version: float) -> list[Row]:
    size, busy = f"{found['experiments']:,} experiments", found["busy"]
    listed = statistics.median(found["list"])
    started = statistics.median(found["start"])
    what = f"{size}, {found['trials']:,} trials, {found['metrics']:,} rows"
    watched = "an hour" if seconds >= 3600 else f"{seconds:.0f} s"
    rows = [
        Row(f"`det experiment list` with {size}", "ms", alone, listed, LIST_BAR),
        Row("`det --version`", "ms", alone, version, VERSION_BAR),
        Row(f"master with {what}: start to serving", "s", None, started, START_BAR),
        Row("its memory, idle", "MiB", None, found["idle"], IDLE_BAR),
        Row(f"its memory, most in {watched} of {reporters} reporting trials", "MiB", None, max(busy), BUSY_BAR),
    ]
    bar = FLAT_BAR if seconds >= 3600 else None
    return [*rows, Row(f"the same, at the end × after a sixth of {watched}", "×", None, _growing(busy), bar)]


def _growing(samples: list[float]) -> float:
    """The end over what it was once everything had been used."""
    sixth = max(1, len(samples) // 6)
    return statistics.median(samples[-sixth:]) / statistics.median(samples[sixth : 2 * sixth] or samples)


def _growth(found: dict[int, dict[str, Any]]) -> Table:
    def line(rows: dict[str, Any]) -> list[str]:
        median = statistics.median
        return [
            *(f"{rows[name]:,}" for name in ("experiments", "trials", "metrics")),
            f"{median(rows['start']):.2f}",
            f"{median(rows['processor']):.2f}",
            f"{rows['idle']:.0f}",
            f"{max(rows['busy']):.0f}",
            f"{median(rows['list']):.0f}",
        ]

    heading = ["experiments", "trials", "rows", "start, s", "processor, s", "idle, MiB", "reporting, MiB", "list, ms"]
    return Table("A master with a past", heading, [line(rows) for rows in found.values()])


def _measure(options: Options, folder: pathlib.Path, reporters: int, seconds: float) -> dict[str, Any]:
    starts: list[float] = []
    processor: list[float] = []
    for number in range(options.rounds):
        with own_master(folder, warm=False) as master:
            starts.append(master.seconds)
            processor.append(master.processor_seconds)
            if number + 1 < options.rounds:
                continue
            time.sleep(0.5 if options.is_quick else 10.0)
            idle = master.megabytes
            listed = _in_turns(options, {"list": [*_det(), "-m", master.url, "experiment", "list"]}, master)["list"]
            busy = _busy(master, reporters, seconds)
    return {"start": starts, "processor": processor, "idle": idle, "list": listed, "busy": busy}


def _det() -> list[str]:
    return [str(pathlib.Path(sys.executable).with_name("det"))]


def _in_turns(
    options: Options, commands: dict[str, list[str]], master: OwnMaster | None = None
) -> dict[str, list[float]]:
    """Milliseconds of each of these commands, each time a fresh process."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(1 + (2 if options.is_quick else 15)):
        for name, command in commands.items():
            began = time.perf_counter()
            environ = None if master is None else {**master.environ, "DET_TOKEN": master.client.session.token or ""}
            done = subprocess.run(command, env=environ, capture_output=True, text=True)
            if done.returncode:
                raise ContenderFailed(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
            if number:
                times[name].append((time.perf_counter() - began) * 1e3)
    return times


def _busy(master: OwnMaster, count: int, seconds: float) -> list[float]:
    """The master's memory, each second, while so many trials report ten rows a second each."""
    runs = [master.client.session.post("/runs", {"name": f"bench-{number}"}) for number in range(count)]
    over, failures = threading.Event(), []

    def report(number: int) -> None:
        run = runs[number]
        reporter = Reporter(run["allocation_id"], 3)
        connection = HTTPConnection(master.url.partition("//")[2])
        path = f"/api/v1/allocations/{reporter.allocation_id}/reports"
        headers = {"Authorization": f"Bearer {run['session_token']}", "Content-Type": "application/json"}
        # Not all at the same moment.
        if over.wait(_EVERY_SECONDS * number / count):
            return
        while not over.wait(_EVERY_SECONDS):
            connection.request("POST", path, reporter.body(_ROWS_AT_ONCE), headers)
            response = connection.getresponse()
            answer = response.read()
            if response.status != 200:
                failures.append(f"{path}: {response.status} {answer.decode(errors='replace')}")
                return
            reporter.sent = json.loads(answer)["acknowledged"]
        connection.close()

    threads = [threading.Thread(target=report, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    samples = []
    try:
        for _ in range(max(6, int(seconds / _EVERY_SECONDS))):
            time.sleep(min(seconds / 6, _EVERY_SECONDS))
            samples.append(master.megabytes)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    if failures:
        raise ContenderFailed(failures[0])
    return samples
