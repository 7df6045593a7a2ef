"""What a step costs in one process: loop alone, with a metric, with a loader, with validation, and on a convnet."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench import contenders, processes
from bench.options import Finding, Options
from bench.results import Row, Table
from bench.work import ONE_PROCESS, Case

# By contender, then by case: what each round found.
Rounds = dict[str, dict[str, list[dict[str, Any]]]]


def run(options: Options) -> Finding:
    return measure(options, ONE_PROCESS, ranks=1)


def measure(options: Options, cases: Mapping[str, Case], *, ranks: int) -> Finding:
    """Every contender on every case, in rounds, each in a fresh process."""
    wanted = [name for name in options.cases or cases if name in cases]
    # Process groups outlive what made them, so several ranks take one case at a time.
    groups = [[name] for name in wanted] if ranks > 1 else [wanted]
    rounds: Rounds = {}
    for number in range(options.rounds):
        for contender in _in_turn(options.contenders, number):
            for group in groups:
                options.say(f"round {number + 1}/{options.rounds}: {contender.title}: {', '.join(group)}")
                try:
                    found = processes.measure(
                        contender.name, group, ranks=ranks, chunks=options.chunks, scratch=options.results
                    )
                except processes.ContenderFailed as failure:
                    if contender.name == contenders.OURS:
                        raise
                    options.say(f"{contender.title} failed and is left out: {failure}")
                    continue
                for name, times in found.items():
                    rounds.setdefault(contender.name, {}).setdefault(name, []).append(times)
    shown = [cases[name] for name in wanted]
    return Finding(rows(shown, rounds), [microseconds(shown, rounds)], rounds)


def _in_turn(all_of_them: Sequence[contenders.Contender], number: int) -> list[contenders.Contender]:
    """Another one begins each round, so that none always meets the machine in the same mood."""
    first = number % len(all_of_them) if all_of_them else 0
    return [*all_of_them[first:], *all_of_them[:first]]


def median(times: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(statistics.median(round_[key] for round_ in times))


def rows(cases: Sequence[Case], rounds: Rounds) -> list[Row]:
    found = []
    for case in cases:
        ratios = {name: median(by_case[case.name], "ratio") for name, by_case in rounds.items() if case.name in by_case}
        peers = {contenders.ALL[name].title: ratio for name, ratio in ratios.items() if _is_peer(name)}
        # Two runs of the same loop are equal but for noise; it is shown, so that nobody believes more digits than that.
        noise = ratios.get("bare", 1.0)
        found.append(Row(case.title, "×", noise, ratios.get(contenders.OURS), case.bar, peers))
    return found


def _is_peer(name: str) -> bool:
    return name not in ("bare", contenders.OURS)


def microseconds(cases: Sequence[Case], rounds: Rounds) -> Table:
    """The same in absolute terms, for all contenders."""
    columns: list[tuple[str, Callable[[list[dict[str, Any]]], str]]] = [
        ("bare, µs", lambda times: f"{median(times, 'bare_microseconds'):.1f}"),
        ("added, µs", lambda times: f"{median(times, 'added_microseconds'):.1f}"),
        ("ratio", lambda times: f"{median(times, 'ratio'):.3f}"),
        ("all chunks", lambda times: f"{median(times, 'total_ratio'):.3f}"),
        ("processor", lambda times: f"{median(times, 'cpu_ratio'):.3f}"),
        (
            "one stretch",
            lambda times: f"{median(times, 'stretch_ratio'):.3f}" if "stretch_ratio" in times[0] else "–",
        ),
        ("rows/s", lambda times: f"{median(times, 'rows_per_second'):,.0f}"),
    ]
    lines = [
        [case.title, contenders.ALL[name].title, *(show(by_case[case.name]) for _, show in columns)]
        for case in cases
        for name, by_case in rounds.items()
        if case.name in by_case
    ]
    return Table("Microseconds a step", ["case", "contender", *(title for title, _ in columns)], lines)
