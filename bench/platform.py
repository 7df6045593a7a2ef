"""What single measurements of the platform found, as lines of its Speed table: each with its limit and its bar."""

from __future__ import annotations

import importlib.util
import pathlib
import statistics
import tempfile
from collections.abc import Mapping

from bench import ingest as ingesting
from bench import limits
from bench import report_call as reporting
from bench import scheduling as passes
from bench import series as reading
from bench.options import Finding, Options
from bench.results import Row, Table


def series(options: Options) -> Finding:
    """A metric of a million points, and of ten million, read back as a thousand."""
    options.say("series, of a million points and of ten")
    sizes = (1_000, 10_000) if options.is_quick else (100_000, 1_000_000, 10_000_000)
    with tempfile.TemporaryDirectory(prefix="bench-series-") as folder:
        limit = limits.rollup_read(reading.SHOWN, 5 if options.is_quick else 50, pathlib.Path(folder))
    found = [*reading.run(sizes)]
    rows = [
        Row(
            f"series of {each['points']:,} points, {reading.SHOWN:,} for the page",
            "ms",
            limit,
            max(each["whole"], each["part"]),
            reading.BAR_MILLISECONDS,
        )
        for each in found[-2:]
    ]
    columns = ["points", "whole", "whole_worst", "part", "part_worst"]
    lines = [[f"{each[name]:,.2f}".removesuffix(".00") for name in columns] for each in found]
    return Finding(rows, [Table("A series read as a thousand points, ms", columns, lines)], found)


def ingest(options: Options) -> Finding:
    """Rows of metrics that a master stores for good, over HTTP."""
    seconds = 0.3 if options.is_quick else 5.0
    rows, lines, details = [], [], {}
    with tempfile.TemporaryDirectory(prefix="bench-ingest-") as name:
        folder = pathlib.Path(name)
        limit = _limit_of_ingest(seconds, folder)
        for reporters, at_once in ((1, 1000), (4, 1000)) if options.is_quick else ingesting.CASES:
            options.say(f"rows taken in, from {reporters} at once, {at_once} a request")
            measured = []
            for number in range(options.rounds):
                (scratch := folder / f"round-{reporters}-{at_once}-{number}").mkdir()
                measured.append(ingesting.over_http(reporters, at_once, 1, seconds, scratch))
            found = statistics.median(measured)
            details[f"{reporters}, {at_once}"] = measured
            lines.append([str(reporters), str(at_once), f"{found:,.0f}"])
            if at_once == ingesting.ROWS:
                what = f"metric rows stored durably over HTTP, from {reporters} trial{'s' * (reporters > 1)} at once"
                bar = ingesting.BAR_ROWS_PER_SECOND
                rows.append(Row(what, "rows/s", limit, found, bar, more_is_better=True))
    heading = ["trials", "rows a request", "rows/s"]
    return Finding(rows, [Table("Metrics taken in over HTTP", heading, lines)], {**details, "limit": limit})


def _limit_of_ingest(seconds: float, folder: pathlib.Path) -> float:
    reporter = ingesting.Reporter("", 1)

    def body(first: int) -> bytes:
        reporter.sent = first
        return reporter.body(ingesting.ROWS)

    return limits.rows_into_sqlite(body, seconds, folder)


def report_call(options: Options) -> Finding:
    """What a report costs the one who trains."""
    found = {}
    for case in reporting.CASES:
        options.say(f"report call: {case}")
        found[case] = reporting.measure(case, 100 if options.is_quick else 5000)
    rows = [
        Row(f"report call, p99: {case}", "µs", None, times.p99, reporting.BAR_P99_MICROSECONDS)
        for case, times in found.items()
    ]
    lines = [[case, *(f"{each:.1f}" for each in times)] for case, times in found.items()]
    return Finding(
        rows,
        [Table("A report of ten metrics, µs", ["", "p50", "p99", "longest"], lines)],
        {case: times._asdict() for case, times in found.items()},
    )


def search(options: Options) -> Finding:
    """A decision of a search, beside Optuna's."""
    if importlib.util.find_spec("optuna") is None:
        options.say("not installed, so left out: optuna (pip install -e '.[search]')")
        return Finding([], [], {})
    from bench import search as decisions

    if options.is_quick:
        return decisions.run(options, sizes=(20, 200), rounds=2)
    return decisions.run(options, sizes=(500, 5_000), rounds=30)


def scheduling(options: Options) -> Finding:
    """A pass of each policy over a thousand slots; the table has the slowest."""
    count = 3 if options.is_quick else 100
    sizes = (10, 100) if options.is_quick else (1_000, 10_000, 100_000)
    wall: dict[str, dict[int, list[float]]] = {}
    for name, policy in passes.POLICIES.items():
        options.say(f"scheduling: {name}")
        for queued in sizes:
            times = passes.measure(policy, queued, count if queued <= passes.WITH_A_BAR else max(1, count // 10))
            wall.setdefault(name, {})[queued] = [each for each, _ in times]
    barred = sizes[1]
    slowest = {name: passes.percentile(times[barred], 0.99) for name, times in wall.items()}
    worst = max(slowest, key=lambda name: slowest[name])
    what = f"scheduling pass, {barred:,} queued jobs × {passes.SLOTS:,} slots, p99 of the slowest policy"
    rows = [Row(what, "ms", None, slowest[worst], passes.BAR_MILLISECONDS, note=worst)]
    heading = ["", *(f"{queued:,} queued" for queued in sizes)]
    lines = [[name, *(_spread(times[queued]) for queued in sizes)] for name, times in wall.items()]
    return Finding(rows, [Table("A pass of scheduling, p50 / p99, ms", heading, lines)], _as_text_keys(wall))


def _spread(times: list[float]) -> str:
    return f"{statistics.median(times):.1f} / {passes.percentile(times, 0.99):.1f}"


def _as_text_keys(wall: Mapping[str, Mapping[int, list[float]]]) -> dict[str, dict[str, list[float]]]:
    return {name: {str(queued): times for queued, times in found.items()} for name, found in wall.items()}
