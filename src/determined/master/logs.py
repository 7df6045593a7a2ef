"""The logs of a task: files that its node processes write, read here by place, by filter and by pattern."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from typing import Any

import orjson

from determined import errors
from determined.master import log_search
from determined.wire import log_format
from determined.wire.views import LogLine

LONGEST_PATTERN = 500
# How long a pattern may take: as long as any that goes through the log once does.
_PATTERN_SECONDS = 0.15
_PATTERN_BYTES_PER_SECOND = 20e6
_PATIENCE_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class LogFilter:
    """Which lines are wanted. ``level`` is the least; ``text`` ignores case unless it has capital letters."""

    rank: int | None = None
    level: str | None = None
    stdtype: str | None = None
    source: str | None = None
    text: str | None = None
    regex: str | None = None
    since: float | None = None
    until: float | None = None


def read(
    folder: pathlib.Path,
    *,
    after: int | None = None,
    before: int | None = None,
    limit: int = 1000,
    tail: bool = False,
    filters: LogFilter | None = None,
) -> list[LogLine]:
    """Lines of a task's logs, the older first: those that follow ``after``, or with ``tail`` the last ones.

    ``after`` and ``before`` are ids of lines, not included. Without ``after``, ``before`` alone means the last lines
    before it. Raises BadRequest for a filter that cannot be used.
    """
    filters = filters or LogFilter()
    if limit < 1:
        return []
    backwards = tail or (before is not None and after is None)
    wanted = _wanted(filters)
    lines: list[LogLine] = []
    for epoch, path in sorted(_files(folder), reverse=backwards):
        first, last = _range(path, epoch, after, before, filters)
        if first >= last:
            continue
        found = _search(path, first, last, wanted, limit - len(lines), backwards)
        lines += [line for line in (_line(path, epoch, *each) for each in found) if line is not None]
        if len(lines) >= limit:
            break
    return lines[::-1] if backwards else lines


def size(folder: pathlib.Path) -> int:
    """How many bytes the logs of a task take."""
    return sum(path.stat().st_size for _, path in _files(folder))


def delete(folder: pathlib.Path) -> None:
    """Remove the logs of a task."""
    shutil.rmtree(folder, ignore_errors=True)


def _files(folder: pathlib.Path) -> list[tuple[int, pathlib.Path]]:
    """The log of each allocation, by its run epoch."""
    try:
        names = [path for path in folder.iterdir() if path.suffix == ".jsonl"]
    except FileNotFoundError:
        return []
    epochs = ((path.stem.rpartition(".")[2], path) for path in names)
    return [(int(epoch), path) for epoch, path in epochs if epoch.isdigit()]


def _wanted(filters: LogFilter) -> dict[str, object]:
    levels = None
    if filters.level is not None:
        name = filters.level.upper()
        if name not in log_format.LEVELS:
            raise errors.BadRequest(f"{filters.level} is not a level: there are {', '.join(log_format.LEVELS)}")
        levels = list(log_format.LEVELS[log_format.LEVELS.index(name) :])
    if filters.regex is not None and len(filters.regex) > LONGEST_PATTERN:
        raise errors.BadRequest(f"the pattern is longer than {LONGEST_PATTERN} characters")
    return {
        "rank": filters.rank,
        "stdtype": filters.stdtype,
        "levels": levels,
        "source": filters.source,
        "text": filters.text,
        "pattern": filters.regex,
        "since": filters.since,
        "until": filters.until,
    }


def _range(
    path: pathlib.Path, epoch: int, after: int | None, before: int | None, filters: LogFilter
) -> tuple[int, int]:
    """Which part of a log to look at, from the beginning of a line."""
    first, last = 0, path.stat().st_size
    base = epoch << log_format.EPOCH_SHIFT
    if before is not None:
        last = min(last, max(before - base, 0))
    if after is not None and after >= base:
        first = _end_of_line(path, after - base) if after - base < last else last
    if filters.since is not None:
        # What is older than the last entry before that time is older than that time.
        older = [offset for offset, _, time in _entries(path) if time < filters.since - 1.0]
        first = max(first, older[-1] if older else 0)
    return first, last


def _end_of_line(path: pathlib.Path, offset: int) -> int:
    with open(path, "rb") as file:
        file.seek(offset)
        return offset + len(file.readline())


def _entries(path: pathlib.Path) -> list[tuple[int, int, float]]:
    """The index of a log, made anew if it is gone."""
    index = log_format.index_of(path)
    try:
        content = index.read_bytes()
    except FileNotFoundError:
        content = b""
    entry = log_format.ENTRY
    if not content and path.stat().st_size > log_format.SPAN:
        content = _make_index(path)
        try:
            index.write_bytes(content)
        except OSError:
            pass  # It was only to save time.
    return list(entry.iter_unpack(content[: len(content) // entry.size * entry.size]))


def _make_index(path: pathlib.Path) -> bytes:
    entries, offset, due = [], 0, 0
    with open(path, "rb") as file:
        for number, line in enumerate(file):
            if offset >= due and line.endswith(b"\n"):
                try:
                    entries.append(log_format.ENTRY.pack(offset, number, float(orjson.loads(line)["t"])))
                    due = offset + log_format.SPAN
                except (ValueError, KeyError, TypeError):
                    pass  # Torn by a crash: the next line will do.
            offset += len(line)
    return b"".join(entries)


def _search(
    path: pathlib.Path, first: int, last: int, wanted: dict[str, object], limit: int, backwards: bool
) -> list[tuple[int, bytes]]:
    if wanted["pattern"] is None:
        terms = log_search.Wanted(**wanted)  # type: ignore[arg-type]
        return log_search.search(str(path), first, last, terms, limit, backwards)
    order = {
        "path": str(path),
        "start": first,
        "end": last,
        "wanted": wanted,
        "limit": limit,
        "backwards": backwards,
        "seconds": _PATTERN_SECONDS + (last - first) / _PATTERN_BYTES_PER_SECOND,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", log_search.__file__],
            input=json.dumps(order).encode(),
            capture_output=True,
            timeout=_PATIENCE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode == -signal.SIGVTALRM:
        raise errors.BadRequest("the pattern takes too long on these lines; one repetition inside another often does")
    answer: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"problem": "it cannot be used"}
    if "problem" in answer:
        raise errors.BadRequest(f"the pattern is not a regular expression: {answer['problem']}")
    with open(path, "rb") as file:
        return [(offset, _at(file.fileno(), offset, length)) for offset, length in answer["offsets"]]


def _at(descriptor: int, offset: int, length: int) -> bytes:
    return os.pread(descriptor, length, offset)


def _line(path: pathlib.Path, epoch: int, offset: int, line: bytes) -> LogLine | None:
    try:
        row = orjson.loads(line)
        return LogLine(
            id=(epoch << log_format.EPOCH_SHIFT) + offset,
            time=row["t"],
            rank=row["r"],
            node_rank=row["n"],
            allocation_id=path.stem,
            stdtype=row["s"],
            level=row["l"],
            source=row["g"],
            text=row["m"],
        )
    except (ValueError, KeyError, TypeError):
        return None  # Torn by a crash.
