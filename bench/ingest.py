"""Metrics taken in: rows a second that are stored for good, from 1 and from 200 reporters.

Run `python -m bench.ingest [--seconds 5] [--metrics 1]`. Every batch is a request's body: it is understood, checked,
stored with its series and its trial's summary, and committed with a full sync before it is acknowledged. ``direct``
is the master's own work; ``http`` goes through a master in a process of its own, the senders in another.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import sqlalchemy as sa

from bench.master import own_master
from determined import config as configs
from determined.master.lifecycle import allocations, experiments, reports
from determined.master.store import tables
from determined.master.store import trials as trial_rows
from determined.master.store.database import Database, Tx, open_database
from determined.wire.reports import ReportReply

ROWS = 1000
BAR_ROWS_PER_SECOND = 150_000


class Reporter:
    """One trial that reports as fast as it is let."""

    def __init__(self, allocation_id: str, metrics: int) -> None:
        self.allocation_id = allocation_id
        self.sent = 0
        # Only what changes from row to row is put in: the senders must not be what is measured.
        names = ["loss", *(f"metric{number}" for number in range(1, metrics))]
        values = ",".join(f'"{name}":0.{number + 1}25' for number, name in enumerate(names))
        self._row = '{"kind":"metrics","group":"training","steps_completed":%d,"metrics":{' + values + '},"time":1.5e9}'

    def body(self, rows: int) -> bytes:
        """The next request."""
        lines = ",".join([self._row % step for step in range(self.sent, self.sent + rows)])
        head = f'{{"run_epoch":1,"source":"chief","first":{self.sent},"reports":['
        return f"{head}{lines}]}}".encode()


def prepare(tx: Tx, reporters: int) -> list[str]:
    """As many runs that report by themselves; their allocations."""
    tx.execute(sa.insert(tables.workspaces), {"id": 1, "name": "bench", "created_at": 0.0})
    tx.execute(sa.insert(tables.projects), {"id": 1, "workspace_id": 1, "name": "bench", "created_at": 0.0})
    found = []
    new = experiments.NewExperiment(config=configs.load({"entrypoint": "bench"}), unmanaged=True)
    for number in range(reporters):
        experiment = experiments.create(tx, new)
        trial_id = trial_rows.insert(
            tx,
            {
                "experiment_id": experiment.id,
                "number": number,
                "state": "running",
                "wanted": "active",
                "hparams": {},
                "seed": 0,
                "summary_metrics": {},
                "metadata": {},
                "queued_at": 0.0,
                "created_at": 0.0,
            },
        )
        found.append(allocations.begin_by_hand(tx, trial_rows.require(tx, trial_id)).id)
    return found


async def drive(database: Database, reporters: list[Reporter], rows: int, seconds: float) -> tuple[int, float]:
    """All of them at once; the rows stored and the seconds it took."""
    deadline = time.perf_counter() + seconds

    async def report(reporter: Reporter) -> None:
        while time.perf_counter() < deadline:
            batch = reports.understand(reporter.body(rows))
            reply: ReportReply = await database.write(reports.ingest, reporter.allocation_id, batch)
            reporter.sent = reply.acknowledged

    began = time.perf_counter()
    await asyncio.gather(*(report(reporter) for reporter in reporters))
    return sum(reporter.sent for reporter in reporters), time.perf_counter() - began


def direct(count: int, rows: int, metrics: int, seconds: float, folder: pathlib.Path) -> float:
    """Rows a second through ``reports.ingest`` into a new database."""
    url = str(folder / f"{count}-{rows}.db")
    engine = sa.create_engine(f"sqlite:///{url}")
    tables.metadata.create_all(engine)
    engine.dispose()
    database = open_database(url)
    try:
        ids = database.write_now(prepare, count)
        stored, took = asyncio.run(drive(database, [Reporter(each, metrics) for each in ids], rows, seconds))
        counted = database.read_now(
            lambda tx: tx.execute(sa.select(sa.func.count()).select_from(tables.metrics)).scalar()
        )
        if counted != stored:
            raise SystemExit(f"{stored} rows were acknowledged, and {counted} are stored")
    finally:
        database.close()
    return stored / took


def over_http(count: int, rows: int, metrics: int, seconds: float, folder: pathlib.Path) -> float:
    """Rows a second through a master in a process of its own, sent by as many connections."""
    # A master that gets ready to start trials would take a processor for the first seconds.
    with own_master(folder / f"master-{count}-{rows}", warm=False) as master:
        runs = [master.client.session.post("/runs", {"name": "bench"}) for _ in range(count)]
        reporters = [Reporter(run["allocation_id"], metrics) for run in runs]
        address = master.url.partition("//")[2]
        deadline = time.perf_counter() + seconds

        def send(reporter: Reporter, token: str) -> None:
            path = f"/api/v1/allocations/{reporter.allocation_id}/reports"
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            body = reporter.body(rows)
            with contextlib.closing(HTTPConnection(address)) as connection:
                while time.perf_counter() < deadline:
                    connection.request("POST", path, body, headers)
                    # As a trial goes on while its reports are under way: the next are there when these are stored.
                    reporter.sent += rows
                    body = reporter.body(rows)
                    response = connection.getresponse()
                    answer = response.read()
                    if response.status != 200 or json.loads(answer)["acknowledged"] != reporter.sent:
                        raise SystemExit(f"{path}: {response.status} {answer.decode(errors='replace')}")

        began = time.perf_counter()
        with ThreadPoolExecutor(count) as senders:
            for _ in senders.map(send, reporters, [run["session_token"] for run in runs]):
                pass
        return sum(reporter.sent for reporter in reporters) / (time.perf_counter() - began)


MEASUREMENTS: dict[str, Callable[..., float]] = {"direct": direct, "http": over_http}
CASES = ((1, ROWS), (200, ROWS), (200, 10), (200, 1))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ingest", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds per line (5)")
    parser.add_argument("--metrics", type=int, default=1, help="metrics per row (1)")
    parser.add_argument("--ways", nargs="*", default=[*MEASUREMENTS], choices=MEASUREMENTS, help="direct, http (both)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    chosen = parser.parse_args(arguments)
    under = False
    print(
        f"Rows stored for good a second, {chosen.metrics} metric(s) each; bar at {ROWS} a request: "
        f"{BAR_ROWS_PER_SECOND:,}",
        file=sys.stderr,
    )
    with tempfile.TemporaryDirectory(prefix="resolute-bench-") as folder:
        for way in chosen.ways:
            measure = MEASUREMENTS[way]
            for reporters, rows in CASES:
                found = measure(reporters, rows, chosen.metrics, chosen.seconds, pathlib.Path(folder))
                if chosen.json:
                    print(json.dumps({"way": way, "reporters": reporters, "rows": rows, "rows_per_second": found}))
                else:
                    print(f"{way:<8}{reporters:>6} reporters {rows:>6} rows a request {found:>12,.0f} rows/s")
                under = under or (rows == ROWS and chosen.metrics == 1 and found < BAR_ROWS_PER_SECOND)
    return 1 if under else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
