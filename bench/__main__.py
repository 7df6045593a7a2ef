"""``python -m bench [--quick] [names]``: measures us and our peers side by side, and prints the Speed tables."""

from __future__ import annotations

import argparse
import importlib
import pathlib
import signal
import sys
from collections.abc import Mapping, Sequence

from bench import contenders, results
from bench.options import Finding, Options
from bench.processes import RESULTS, ContenderFailed

# Where each is measured, in the order of the tables.
TRAINING = {
    "loop": "bench.loop:run",
    "ddp": "bench.ddp:run",
    "startup": "bench.medians:startup",
    "checkpoint": "bench.medians:checkpoint",
    "loader": "bench.medians:loader",
    "growth": "bench.growth:run",
}
PLATFORM = {
    "trials": "bench.trials:run",
    "series": "bench.platform:series",
    "ingest": "bench.platform:ingest",
    "report_call": "bench.platform:report_call",
    "search": "bench.platform:search",
    "scheduling": "bench.platform:scheduling",
    "serving": "bench.serving:run",
}
GROUPS = {"training": TRAINING, "platform": PLATFORM}
MEASUREMENTS = {**TRAINING, **PLATFORM}


def main(arguments: list[str]) -> int:
    chosen = _parse(arguments)
    # Contenders have sessions of their own: whoever ends us means them too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options = Options(
        is_quick=chosen.quick,
        rounds=chosen.rounds or (1 if chosen.quick else 3),
        chunks=chosen.chunks or (4 if chosen.quick else 0),
        contenders=_contenders(chosen.contenders),
        cases=chosen.cases,
        results=chosen.results,
        is_hour=chosen.hour,
    )
    findings: dict[str, Finding] = {}
    for name in _named(chosen.names):
        module, _, function = MEASUREMENTS[name].partition(":")
        try:
            finding: Finding = getattr(importlib.import_module(module), function)(options)
        except ContenderFailed as failure:
            print(failure, file=sys.stderr)
            return 1
        results.write(options.results, name, finding.rows, finding.tables, finding.details)
        findings[name] = finding
    speed = _speed_tables(findings)
    for table in [*(table for finding in findings.values() for table in finding.tables), *speed]:
        print(f"\n{results.as_text(table)}")
    if chosen.markdown:
        _write_markdown(chosen.markdown, speed)
    print(f"\nEvery single time is in {options.results}")
    failed = [row.case for finding in findings.values() for row in finding.rows if row.verdict == "FAIL"]
    if failed:
        print(f"Over the bar: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed and not chosen.quick else 0


def _named(names: list[str]) -> list[str]:
    """These measurements, and those of these groups, each once; all if none is named."""
    wanted = [each for name in names for each in GROUPS.get(name, (name,))]
    return [name for name in MEASUREMENTS if name in wanted or not names]


def _speed_tables(findings: Mapping[str, Finding]) -> list[results.Table]:
    tables = []
    for group, title, bare in (("training", "Speed", "bare"), ("platform", "Speed of the platform", "limit")):
        rows = [row for name, finding in findings.items() if name in GROUPS[group] for row in finding.rows]
        if rows:
            tables.append(results.speed_table(rows, title, bare))
    return tables


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"{', '.join(GROUPS)}; {', '.join(MEASUREMENTS)}")
    parser.add_argument("--quick", action="store_true", help="one short round: whether it works, not how fast")
    parser.add_argument("--rounds", type=int, help="fresh processes per contender (3)")
    parser.add_argument("--chunks", type=int, help="at most how many chunks to time of each case")
    parser.add_argument("--contenders", type=_commas, default=[], help=f"of {', '.join(contenders.ALL)}")
    parser.add_argument("--cases", type=_commas, default=[], help="of the cases of a measurement, such as loop,conv")
    parser.add_argument("--hour", action="store_true", help="watch a master's memory for an hour, not for a minute")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="where to keep every single time")
    parser.add_argument("--markdown", metavar="FILE", help="write the Speed tables there, - for standard output")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.names if name not in MEASUREMENTS and name not in GROUPS]
    if unknown:
        parser.error(f"no such measurement: {', '.join(unknown)} (there are {', '.join([*GROUPS, *MEASUREMENTS])})")
    return chosen


def _commas(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _contenders(names: list[str]) -> list[contenders.Contender]:
    unknown = [name for name in names if name not in contenders.ALL]
    if unknown:
        raise SystemExit(f"no such contender: {', '.join(unknown)} (there are {', '.join(contenders.ALL)})")
    found = [contenders.ALL[name] for name in names or contenders.ALL]
    missing = sorted({contender.needs for contender in found if not contender.is_installed})
    if missing:
        print(f"not installed, so left out: {', '.join(missing)} (pip install -e '.[bench]')", file=sys.stderr)
    return [contender for contender in found if contender.is_installed]


def _write_markdown(file: str, speed: Sequence[results.Table]) -> None:
    where = results.surroundings()
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    tables = "\n\n".join(f"{table.title}\n\n{results.as_markdown(table)}" for table in speed)
    text = f"{tables}\n\n{where['cores']} cores, {where['system']}, {versions}.\n"
    if file == "-":
        print(f"\n{text}")
    else:
        pathlib.Path(file).write_text(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
