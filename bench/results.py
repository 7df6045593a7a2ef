"""What a measurement found, and how it is shown: a table on the terminal or in Markdown, and JSON files."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

_PACKAGES = ("resolute", "torch", "lightning", "accelerate", "transformers", "safetensors", "optuna", "SQLAlchemy")


@dataclasses.dataclass
class Row:
    """One line of a Speed table; ``unit`` is "×" for ratios to bare. Smaller is better, unless ``more_is_better``."""

    case: str
    unit: str
    bare: float | None  # with nothing of ours or of a peer's: what there is to approach
    ours: float | None
    bar: float | None
    peers: Mapping[str, float] = dataclasses.field(default_factory=dict)
    note: str = ""
    more_is_better: bool = False

    @property
    def best_peer(self) -> tuple[str, float] | None:
        """The peer with the best number."""
        best = max if self.more_is_better else min
        return best(self.peers.items(), key=lambda peer: peer[1]) if self.peers else None

    @property
    def verdict(self) -> str:
        if self.ours is None or self.bar is None:
            return ""
        is_well = self.ours >= self.bar if self.more_is_better else self.ours <= self.bar
        return "pass" if is_well else "FAIL"


@dataclasses.dataclass
class Table:
    """Any other finding: a title, a heading, lines."""

    title: str
    heading: list[str]
    lines: list[list[str]]


def speed_table(rows: Sequence[Row], title: str = "Speed", bare: str = "bare") -> Table:
    return Table(title, ["case", bare, "ours", "best peer", "others", "bar", "verdict"], [_line(row) for row in rows])


def _line(row: Row) -> list[str]:
    best = row.best_peer
    others = sorted((value, name) for name, value in row.peers.items() if best and name != best[0])
    return [
        row.case,
        _show(row.bare, row.unit),
        _show(row.ours, row.unit),
        f"{best[0]} {_show(best[1], row.unit)}" if best else "–",
        "; ".join(f"{name} {_show(value, row.unit)}" for value, name in others) or "–",
        f"{'≥' if row.more_is_better else '≤'} {_show(row.bar, row.unit)}" if row.bar is not None else "–",
        f"{row.verdict}{' (' + row.note + ')' if row.note else ''}",
    ]


def _show(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "×":
        return f"{value:.2f}" if value < 10 else f"{value:.1f}"
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"


def as_text(table: Table) -> str:
    """Columns in line."""
    everything = [table.heading, *table.lines]
    widths = [max(len(line[column]) for line in everything) for column in range(len(table.heading))]
    shown = [
        "  ".join(
            cell.rjust(width) if column and _is_number(cell) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in everything
    ]
    return "\n".join([table.title, "", shown[0], "-" * len(shown[0]), *shown[1:]])


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or cell[:1] in "-–≤≥"


def as_markdown(table: Table) -> str:
    ours = table.heading.index("ours") if "ours" in table.heading else -1
    lines = [[f"**{c}**" if i == ours else c for i, c in enumerate(line)] for line in table.lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [table.heading, ["---"] * len(table.heading), *lines])


def surroundings() -> dict[str, Any]:
    """Where and with what it was measured."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "versions": versions,
    }


def write(folder: pathlib.Path, name: str, rows: Sequence[Row], tables: Sequence[Table], details: Any) -> pathlib.Path:
    """Keep a measurement, with every single time, as ``<name>.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    document = {
        "surroundings": surroundings(),
        "rows": [{**dataclasses.asdict(row), "verdict": row.verdict} for row in rows],
        "tables": [dataclasses.asdict(table) for table in tables],
        "details": details,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path
