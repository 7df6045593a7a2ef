"""How our overhead grows with metrics a step, optimizers and callbacks, in microseconds over the bare loop."""

from __future__ import annotations

from bench import contenders, loop
from bench.options import Finding, Options
from bench.results import Table
from bench.work import GROWTH


def run(options: Options) -> Finding:
    ours = [contenders.ALL[contenders.OURS]]
    finding = loop.measure(options.with_contenders(ours), GROWTH, ranks=1)
    by_case = finding.details[contenders.OURS]
    lines = [
        [
            case.title,
            f"{loop.median(by_case[case.name], 'bare_microseconds'):.1f}",
            f"{loop.median(by_case[case.name], 'added_microseconds'):.2f}",
            f"{loop.median(by_case[case.name], 'ratio'):.3f}",
        ]
        for case in GROWTH.values()
        if case.name in by_case
    ]
    table = Table("Growth of our overhead", ["with", "bare, µs a step", "added, µs a step", "ratio"], lines)
    return Finding([], [table], finding.details)
