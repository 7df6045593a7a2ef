"""How the command line shows things: tables that fit, other formats for programs, and text that cannot act."""

from __future__ import annotations

import csv
import enum
import io
import json
import math
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

# What a terminal would act on: a sequence that sets a colour, moves the cursor or names the window.
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")

# These reorder what is around them, so that a name could be shown as another.
DIRECTION_MARKS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

# Control characters, and halves of characters, which no file can hold.
_ACTING = ("Cc", "Cs")

# What makes a spreadsheet take a cell for a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")

GAP = "  "
NARROWEST_COLUMN = 12


class Format(str, enum.Enum):
    """What a listing is written as."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"


def listing(rows: Sequence[Row], columns: Sequence[str], form: Format, empty: str = "Nothing to list.") -> None:
    """Print rows on stdout; say on stderr, and only to people, that there are none."""
    if form is Format.TABLE:
        if rows:
            print(table(rows, columns, width=terminal_width()))
        else:
            print(empty, file=sys.stderr)
    elif form is Format.CSV:
        print(_csv(rows, columns), end="")
    elif form is Format.JSONL:
        for row in rows:
            print(_json(row))
    else:
        document(rows, form)


def document(value: Any, form: Format) -> None:
    """Print one document as YAML, or as JSON when any of the other formats was asked for."""
    if form is Format.YAML:
        import yaml

        print(yaml.safe_dump(json.loads(_json(value)), sort_keys=False), end="")
    else:
        print(_json(value, indent=2))


def record(value: Row, fields: Sequence[str], form: Format) -> None:
    """Print one thing: some fields of it for people, all of it for programs."""
    if form is Format.TABLE:
        shown = [(field.replace("_", " "), _cell(value.get(field))) for field in fields]
        facts([(name, text) for name, text in shown if text])
    elif form is Format.CSV:
        listing([value], fields, form)
    else:
        document(value, form)


def facts(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair on a line, the values in a column."""
    clean = [(plain(name), plain(value)) for name, value in pairs]
    width = max(_width(name) for name, _ in clean)
    for name, value in clean:
        print(f"{_pad(name, width, right=False)}{GAP}{value}")


def plain(text: object) -> str:
    """Text on one line that moves no cursor, sets no colour and reverses no direction, whoever wrote it."""
    spaced = " ".join(ESCAPES.sub("", str(text)).split())
    return "".join(sign for sign in spaced if unicodedata.category(sign) not in _ACTING and sign not in DIRECTION_MARKS)


def log_line(text: str) -> str:
    """The same for a line of a log, whose spaces mean something; of a line that was drawn over, what is left to see."""
    seen = ESCAPES.sub("", text).rstrip("\r\n").rpartition("\r")[2].expandtabs()
    return "".join(sign for sign in seen if unicodedata.category(sign) not in _ACTING and sign not in DIRECTION_MARKS)


def lines(text: str) -> str:
    """The same for a text of several lines whose spaces mean something: a file, a traceback."""
    return "\n".join(log_line(line) for line in text.split("\n"))


def sentences(text: object) -> str:
    """The same for a message that may have several lines."""
    return "\n".join(plain(line) if not line.startswith(" ") else f"  {plain(line)}" for line in str(text).splitlines())


def table(rows: Sequence[Row], columns: Sequence[str], width: int | None = None) -> str:
    """Rows below headings, numbers to the right; where ``width`` is too narrow, cells are cut in their middle."""
    cells = [[plain(_cell(row.get(column))) for column in columns] for row in rows]
    to_the_right = [all(_is_number(row.get(column)) for row in rows) for column in columns]
    headings = [column.replace("_", " ").upper() for column in columns]
    widths = [max(_width(line[index]) for line in [headings, *cells]) for index in range(len(columns))]
    if width is not None:
        widths = _fit(widths, width - len(GAP) * (len(columns) - 1))
    lines = []
    for line in [headings, *cells]:
        padded = [_pad(cell, room, right) for cell, room, right in zip(line, widths, to_the_right)]
        lines.append(GAP.join(padded).rstrip())
    return "\n".join(lines)


def differing(maps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of several maps what tells them apart; all of it where there is only one."""
    if len(maps) < 2:
        return [dict(each) for each in maps]
    names = dict.fromkeys(name for each in maps for name in each)
    apart = [name for name in names if any(each.get(name) != maps[0].get(name) for each in maps[1:])]
    return [{name: each[name] for name in apart if name in each} for each in maps]


def terminal_width() -> int | None:
    """How many columns a person sees; None where output goes to a file or another program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def number(value: object) -> str:
    """A metric as a person reads it: six digits are enough, and NaN is a value like any other."""
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    return str(value)


def size(count: int) -> str:
    """Bytes in the unit a person would choose."""
    amount = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def age(seconds_since_epoch: float, now: float | None = None) -> str:
    """How long ago something was, to one unit."""
    seconds = max((time.time() if now is None else now) - seconds_since_epoch, 0)
    for length, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def until(seconds_since_epoch: float, now: float | None = None) -> str:
    """How far off something is, to one unit."""
    seconds = seconds_since_epoch - (time.time() if now is None else now)
    if seconds <= 0:
        return "over"
    for length, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"in {count} {unit}{'s' if count > 1 else ''}"
    return "in a moment"


def _fit(widths: list[int], room: int) -> list[int]:
    """Take from the widest columns until all fit, but leave each enough to recognise what it holds."""
    widths = list(widths)
    while sum(widths) > room:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= NARROWEST_COLUMN:
            break
        widths[widest] -= 1
    return widths


def _pad(cell: str, room: int, right: bool) -> str:
    if _width(cell) > room:
        # Both ends matter: names of runs differ at the end as often as at the start.
        tail = (room - 1) // 2
        cell = cell[: room - 1 - tail] + "…" + cell[len(cell) - tail :]
    filling = " " * max(room - _width(cell), 0)
    return filling + cell if right else cell + filling


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_cell(part)}" for name, part in value.items())
    return number(value)


def _csv(rows: Sequence[Row], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_csv_cell(column) for column in columns])
    for row in rows:
        writer.writerow([_csv_cell(row.get(column)) for column in columns])
    return text.getvalue()


def _csv_cell(value: object) -> object:
    if isinstance(value, (Mapping, list)):
        return _json(value)
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, default=str, ensure_ascii=True)
