"""What nothing could be faster than: the least that a case asks of the machine, without anything of ours."""

from __future__ import annotations

import contextlib
import pathlib
import random
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import orjson

# It imports, forks for each line that it reads, and says when the fork is gone.
_FORKING = """
import os, runpy, sys
import torch, torch._dynamo
print("ready", flush=True)
for line in iter(sys.stdin.readline, ""):
    child = os.fork()
    if not child:
        sys.argv = line.split()
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


@contextlib.contextmanager
def forking(folder: pathlib.Path) -> Iterator[Callable[[Sequence[str]], None]]:
    """A process that has imported torch; what is given runs a script in a fork of it, and returns when that is gone."""
    with subprocess.Popen(
        [sys.executable, "-c", _FORKING], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        orders, answers = process.stdin, process.stdout

        def until(word: str) -> None:
            while (line := answers.readline()).strip() != word:
                if not line:
                    raise SystemExit("the process that forks is gone")

        def run(words: Sequence[str]) -> None:
            orders.write(" ".join(words) + "\n")
            orders.flush()
            until("gone")

        until("ready")
        yield run
        orders.close()


def python_alone(rounds: int) -> float:
    """Milliseconds of an interpreter that does nothing."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", ""], check=True)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def random_draw(rounds: int) -> float:
    """Milliseconds of drawing the values of five hyperparameters."""
    draw = random.Random(7)
    began = time.perf_counter()
    for _ in range(rounds):
        _ = [10 ** draw.uniform(-5, -1), draw.random(), draw.random(), draw.randint(1, 8), draw.randrange(3)]
    return (time.perf_counter() - began) / rounds * 1e3


def rows_into_sqlite(body: Callable[[int], bytes], seconds: float, folder: pathlib.Path) -> float:
    """Rows a second from JSON into one table, a synced commit for each body."""
    connection = sqlite3.connect(folder / "limit.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE metrics (step INTEGER PRIMARY KEY, time REAL, document TEXT)")
    began, stored = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        reports = orjson.loads(body(stored))["reports"]
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO metrics VALUES (?, ?, ?)",
            [
                (stored + at, report["time"], orjson.dumps(report["metrics"]).decode())
                for at, report in enumerate(reports)
            ],
        )
        connection.execute("COMMIT")
        stored += len(reports)
    took = time.perf_counter() - began
    connection.close()
    return stored / took


def rollup_read(rows: int, rounds: int, folder: pathlib.Path) -> float:
    """Milliseconds of reading so many rows of a table that was thinned before."""
    connection = sqlite3.connect(folder / "rollup.db")
    connection.execute("CREATE TABLE rollup (bucket INTEGER PRIMARY KEY, step INTEGER, low REAL, high REAL, last REAL)")
    connection.executemany("INSERT INTO rollup VALUES (?, ?, ?, ?, ?)", [(at, at, 0.1, 0.9, 0.5) for at in range(rows)])
    connection.commit()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        connection.execute("SELECT * FROM rollup ORDER BY bucket").fetchall()
        times.append((time.perf_counter() - began) * 1e3)
    connection.close()
    return statistics.median(times)
