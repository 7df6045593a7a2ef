"""A metric of many points read back as about a thousand: milliseconds, and how they grow.

Run `python -m bench.series [--points 1000000 10000000]`. Ten thousand points and a hundred thousand are measured first,
so that growth shows. Each read is a whole one: its own connection's transaction, every spike of the range in it. Half
of the reads are of a tenth of the range, somewhere. Filling is not timed; it is the master's own way in.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator

import sqlalchemy as sa

from determined.master.store import metrics, series, tables
from determined.master.store.database import Database, open_database
from determined.master.store.series import Rows

BAR_MILLISECONDS = 5.0
SHOWN = 1000
_BATCH = 20_000
_READS = 50


def fill(database: Database, trial_id: int, points: int) -> dict[int, float]:
    """A noisy curve with a few spikes; the spikes by their steps."""
    draw = random.Random(points)
    spikes = {draw.randrange(points): 10.0 + number for number in range(5)}
    for at in range(0, points, _BATCH):
        steps = range(at, min(at + _BATCH, points))
        values = [{"loss": spikes.get(step, math.exp(-step / points) + draw.random() / 10)} for step in steps]
        rows = Rows([*steps], [step * 0.01 for step in steps], values)
        database.write_now(metrics.insert_many, trial_id, "training", 1, rows)
    return spikes


def measure(database: Database, trial_id: int, points: int, spikes: dict[int, float]) -> dict[str, float]:
    """Median and worst of many reads, of all of it and of parts; raises SystemExit if a spike is missing."""
    draw = random.Random(1)
    whole, part = [], []
    for _ in range(_READS):
        began = time.perf_counter()
        found = database.read_now(series.series, trial_id, "training", "loss", SHOWN)
        whole.append((time.perf_counter() - began) * 1e3)
        if found.total != points or len(found.steps) > SHOWN or not set(spikes.values()) <= {*found.max}:
            raise SystemExit(f"the series of {points} points is wrong")
        first = draw.randrange(points - points // 10)
        last = first + points // 10
        began = time.perf_counter()
        found = database.read_now(series.series, trial_id, "training", "loss", SHOWN, first, last)
        part.append((time.perf_counter() - began) * 1e3)
        inside = {value for step, value in spikes.items() if first <= step <= last}
        if not inside <= {*found.max}:
            raise SystemExit(f"a part of the series of {points} points is wrong")
    return {
        "points": points,
        "whole": statistics.median(whole),
        "whole_worst": max(whole),
        "part": statistics.median(part),
        "part_worst": max(part),
    }


def run(sizes: Iterable[int]) -> Iterator[dict[str, float]]:
    """A series of each of these lengths, filled and read."""
    with tempfile.TemporaryDirectory(prefix="resolute-bench-") as folder:
        path = str(pathlib.Path(folder) / "master.db")
        engine = sa.create_engine(f"sqlite:///{path}")
        tables.metadata.create_all(engine)
        engine.dispose()
        database = open_database(path)
        try:
            for trial_id, points in enumerate(sorted(sizes), start=1):
                yield measure(database, trial_id, points, fill(database, trial_id, points))
        finally:
            database.close()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.series", description=__doc__)
    parser.add_argument("--points", type=int, nargs="*", default=[1_000_000], help="points of the longest (1000000)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    chosen = parser.parse_args(arguments)
    print(f"A series read as {SHOWN} points, milliseconds; bar: median ≤ {BAR_MILLISECONDS:.0f}", file=sys.stderr)
    if not chosen.json:
        print(f"{'points':>12}{'whole':>9}{'worst':>9}{'a tenth':>9}{'worst':>9}")
    is_over = False
    for found in run({10_000, 100_000, *chosen.points}):
        if chosen.json:
            print(json.dumps(found))
        else:
            print(
                f"{found['points']:>12,}{found['whole']:>9.2f}{found['whole_worst']:>9.2f}"
                f"{found['part']:>9.2f}{found['part_worst']:>9.2f}"
            )
        is_over = is_over or max(found["whole"], found["part"]) > BAR_MILLISECONDS
    return 1 if is_over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
