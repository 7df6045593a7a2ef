"""``python -m bench [--quick] [names]``: measures us and our peers side by side, and prints the Speed table."""

from __future__ import annotations

import argparse
import importlib
import pathlib
import signal
import sys

from bench import contenders, results
from bench.options import Finding, Options
from bench.processes import RESULTS, ContenderFailed

# Where each is measured, in the order of the table.
MEASUREMENTS = {
    "loop": "bench.loop:run",
    "ddp": "bench.ddp:run",
    "startup": "bench.medians:startup",
    "checkpoint": "bench.medians:checkpoint",
    "loader": "bench.medians:loader",
    "growth": "bench.growth:run",
}


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
    )
    findings: list[Finding] = []
    for name in chosen.names or MEASUREMENTS:
        module, _, function = MEASUREMENTS[name].partition(":")
        try:
            finding: Finding = getattr(importlib.import_module(module), function)(options)
        except ContenderFailed as failure:
            print(failure, file=sys.stderr)
            return 1
        results.write(options.results, name, finding.rows, finding.tables, finding.details)
        findings.append(finding)
    rows = [row for finding in findings for row in finding.rows]
    tables = [table for finding in findings for table in finding.tables]
    speed = results.speed_table(rows)
    for table in [*tables, *([speed] if rows else [])]:
        print(f"\n{results.as_text(table)}")
    if chosen.markdown:
        _write_markdown(chosen.markdown, speed)
    print(f"\nEvery single time is in {options.results}")
    failed = [row.case for row in rows if row.verdict == "FAIL"]
    if failed:
        print(f"Over the bar: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed and not chosen.quick else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(MEASUREMENTS))
    parser.add_argument("--quick", action="store_true", help="one short round: whether it works, not how fast")
    parser.add_argument("--rounds", type=int, help="fresh processes per contender (3)")
    parser.add_argument("--chunks", type=int, help="at most how many chunks to time of each case")
    parser.add_argument("--contenders", type=_commas, default=[], help=f"of {', '.join(contenders.ALL)}")
    parser.add_argument("--cases", type=_commas, default=[], help="of the cases of a measurement, such as loop,conv")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="where to keep every single time")
    parser.add_argument("--markdown", metavar="FILE", help="write the Speed table there, - for standard output")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.names if name not in MEASUREMENTS]
    if unknown:
        parser.error(f"no such measurement: {', '.join(unknown)} (there are {', '.join(MEASUREMENTS)})")
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


def _write_markdown(file: str, speed: results.Table) -> None:
    where = results.surroundings()
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    text = f"{results.as_markdown(speed)}\n\n{where['cores']} cores, {where['system']}, {versions}.\n"
    if file == "-":
        print(f"\n{text}")
    else:
        pathlib.Path(file).write_text(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
