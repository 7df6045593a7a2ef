"""Looking out for what log policies are about, in every line that a rank prints."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

# Nobody writes a pattern for what comes after that much of a line.
_LONGEST = 4096
# Processor time for the lines that are read at once. Patterns come from people, and some take for ever.
_SECONDS = 0.5


class LogPolicies:
    """The policies of a config; ``matched`` has the names of those that were found, in that order.

    One that was found is not looked for again. Use it on the main thread: only there can a pattern be interrupted.
    """

    def __init__(self, written: Iterable[Mapping[str, Any]] = ()) -> None:
        self.matched: list[str] = []
        self._pending: dict[str, re.Pattern[str]] = {}
        for policy in written:
            pattern = policy.get("pattern")
            if pattern is not None:
                self._pending[policy.get("name") or pattern] = re.compile(_core(pattern))
        if self._pending and _can_interrupt():
            signal.signal(signal.SIGVTALRM, _interrupt)

    def look(self, lines: Sequence[bytes]) -> list[str]:
        """Look at some lines; returns what there is to say about it."""
        if not self._pending:
            return []
        said = []
        texts = [line[:_LONGEST].decode(errors="replace") for line in lines]
        for name, pattern in [*self._pending.items()]:
            try:
                is_found = _occurs(pattern, texts)
            except _TooSlow:
                del self._pending[name]
                said.append(f"log policy {name!r} is not looked for any more: its pattern takes too long")
                continue
            if is_found:
                del self._pending[name]
                self.matched.append(name)
                said.append(f"log policy {name!r} applies")
        return said


class _TooSlow(Exception):
    """A pattern does not come to an end."""


def _occurs(pattern: re.Pattern[str], texts: Sequence[str]) -> bool:
    if not _can_interrupt():
        return any(map(pattern.search, texts))
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
        return any(map(pattern.search, texts))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise _TooSlow


def _can_interrupt() -> bool:
    return threading.current_thread() is threading.main_thread()


def _core(pattern: str) -> str:
    """The same for a search, without the ``.*`` around it that makes one try every part of a line."""
    core = re.sub(r"^\.\*\??(?![?+*{])", "", pattern)
    return re.sub(r"(?<!\\)\.\*$", "", core)
