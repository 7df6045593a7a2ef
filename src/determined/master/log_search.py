"""Looking through one log file, forwards or backwards, without reading what cannot match.

Also a program of its own, ``python -I -S log_search.py``, for patterns that come from people: one that would never end
is ended by the system, and the master's threads go on meanwhile. It imports next to nothing.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Iterator
from typing import Any

_BLOCK = 1 << 20
# Where the message of a line begins is found by what comes before it: the writer always writes these in this order.
_ANY_HEAD = rb'^\{"t":[^,]*,"r":%b,"n":[^,]*,"s":%b,"l":%b,"g":%b,"m":"'
_TIME_AT = len('{"t":')


class Wanted:
    """What a line must be like; made from plain values, so that it can be sent to another process."""

    def __init__(
        self,
        *,
        rank: int | None = None,
        stdtype: str | None = None,
        levels: list[str] | None = None,
        source: str | None = None,
        text: str | None = None,
        pattern: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> None:
        self.since, self.until = since, until
        self.text = text or None
        self.is_exact = self.text is not None and self.text != self.text.lower()
        self.pattern = re.compile(pattern) if pattern is not None else None
        head = _ANY_HEAD % (
            str(int(rank)).encode() if rank is not None else b"[^,]*",
            _quoted(stdtype),
            b'"(?:' + b"|".join(level.encode() for level in levels) + b')"' if levels is not None else b"[^,]*",
            _quoted(source),
        )
        has_head = rank is not None or stdtype is not None or levels is not None or source is not None
        self.head = re.compile(head, re.MULTILINE) if has_head else None
        self.literal: re.Pattern[bytes] | None = None
        if self.text is not None and (self.is_exact or self.text.isascii()):
            # As it stands in the file. Only a first sieve: the names of fields look the same.
            written = json.dumps(self.text, ensure_ascii=False)[1:-1].encode(errors="replace")
            self.literal = re.compile(re.escape(written), 0 if self.is_exact else re.IGNORECASE)

    def admits(self, line: bytes) -> bool:
        """Whether a whole line is wanted."""
        if self.head is not None and not self.head.match(line):
            return False
        if self.since is not None or self.until is not None:
            try:
                time = float(line[_TIME_AT : line.index(b",")])
            except ValueError:
                return False
            if (self.since is not None and time < self.since) or (self.until is not None and time > self.until):
                return False
        if self.text is None and self.pattern is None:
            return True
        try:
            message = json.loads(line)["m"]
        except (ValueError, KeyError, TypeError):
            return False
        if self.text is not None and self.text not in (message if self.is_exact else message.lower()):
            return False
        return self.pattern is None or self.pattern.search(message) is not None

    def candidates(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Where lines begin and end in a block of whole lines that may be wanted."""
        sieve = self.literal or self.head
        if sieve is None:
            start = 0
            while start < len(block):
                end = block.index(b"\n", start)
                yield start, end
                start = end + 1
            return
        seen = -1
        for match in sieve.finditer(block):
            if match.start() <= seen:
                continue
            start = block.rfind(b"\n", 0, match.start()) + 1
            seen = block.index(b"\n", match.start())
            yield start, seen


def search(path: str, start: int, end: int, wanted: Wanted, limit: int, backwards: bool) -> list[tuple[int, bytes]]:
    """At most so many wanted lines between two offsets, with theirs, in the order they were looked at.

    ``start`` is the beginning of a line; half a line at the end is not looked at.
    """
    found: list[tuple[int, bytes]] = []
    with open(path, "rb") as file:
        blocks = _backwards(file, start, end) if backwards else _forwards(file, start, end)
        for at, block in blocks:
            places: Any = wanted.candidates(block)
            for first, last in reversed(list(places)) if backwards else places:
                if wanted.admits(block[first:last]):
                    found.append((at + first, block[first:last]))
                    if len(found) == limit:
                        return found
    return found


def _forwards(file: Any, at: int, end: int) -> Iterator[tuple[int, bytes]]:
    size = _BLOCK
    while at < end:
        file.seek(at)
        block = file.read(min(size, end - at))
        whole = block.rfind(b"\n") + 1
        if not whole:
            if at + len(block) >= end or not block:
                return
            size *= 2
            continue
        yield at, block[:whole]
        at, size = at + whole, _BLOCK


def _backwards(file: Any, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    size = _BLOCK
    while end > start:
        first = max(start, end - size)
        file.seek(first)
        block = file.read(end - first)
        block = block[: block.rfind(b"\n") + 1]
        cut = 0
        if first > start:
            # The block begins in the middle of a line, unless it happens not to; then one line comes with the next.
            cut = block.find(b"\n") + 1
        if cut >= len(block) and first > start:
            size *= 2
            continue
        yield first + cut, block[cut:]
        end, size = first + cut, _BLOCK


def _quoted(value: str | None) -> bytes:
    return b"[^,]*" if value is None else re.escape(json.dumps(value).encode())


def _main() -> None:
    order = json.load(sys.stdin)
    # Of processor time: a busy machine is not the pattern's fault.
    signal.setitimer(signal.ITIMER_VIRTUAL, order["seconds"])
    try:
        wanted = Wanted(**order["wanted"])
    except (re.error, RecursionError, OverflowError) as error:
        json.dump({"problem": str(error)}, sys.stdout)
        return
    found = search(order["path"], order["start"], order["end"], wanted, order["limit"], order["backwards"])
    json.dump({"offsets": [[offset, len(line)] for offset, line in found]}, sys.stdout)


if __name__ == "__main__":
    _main()
