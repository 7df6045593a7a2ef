"""The log of an allocation: every line of every rank, in one file with an index, and no secret in it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from determined.wire import log_format

MASK = b"********"
# Past this a log helps nobody, and the disk is not ours alone.
_MOST_BYTES = 4 << 30
# Shorter values are words that appear anywhere: masking them would hide the log, not the secret.
_SHORTEST_SECRET = 4
_SECRET_NAME = re.compile(
    r"PASS(WORD|WD|PHRASE)|(^|_)PASS($|_)|SECRET|TOKEN|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|(^|_)(KEY|AUTH)$",
    re.IGNORECASE,
)
_LEVEL = re.compile(rb"(?:^|[\s\[(|:])(TRACE|DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)(?=[\s\])|:,]|$)")
_LEVEL_WITHIN = 80
_SAME_LEVEL = {b"WARN": "WARNING", b"FATAL": "CRITICAL"}


class LogFile:
    """Appends lines. Only one process writes a log; a full disk costs lines, never training."""

    def __init__(self, path: pathlib.Path, node_rank: int, secrets: Iterable[str] = ()) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._log = os.open(path, flags, 0o600)
        self._index = os.open(log_format.index_of(path), flags, 0o600)
        self._node_rank = node_rank
        self._mask = _pattern(secrets)
        self._size = os.fstat(self._log).st_size
        self._lines = 0
        self._next_entry = 0 if self._size == 0 else self._size + log_format.SPAN
        self._is_full = False

    def write(self, lines: Sequence[bytes], *, rank: int | None, stdtype: str, source: str = "task") -> None:
        """Add lines that were read just now, without their ends."""
        if not lines or self._is_full:
            return
        now = time.time()
        if self._size > _MOST_BYTES:
            self._is_full = True
            lines = [f"the log is larger than {_MOST_BYTES >> 30} GiB: nothing more is kept".encode()]
            rank, source = None, "node"
        encoded = [self._encode(line, now, rank, stdtype, source) for line in lines]
        if self._size >= self._next_entry:
            self._next_entry = self._size + log_format.SPAN
            self._append(self._index, log_format.ENTRY.pack(self._size, self._lines, now))
        if self._append(self._log, b"".join(encoded)):
            self._lines += len(encoded)

    def mask(self, text: str) -> str:
        """A text as it may be shown."""
        return self._mask.sub(MASK, text.encode(errors="replace")).decode() if self._mask else text

    def close(self) -> None:
        for descriptor in (self._log, self._index):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _encode(self, line: bytes, now: float, rank: int | None, stdtype: str, source: str) -> bytes:
        if self._mask is not None:
            line = self._mask.sub(MASK, line)
        row = {
            "t": now,
            "r": rank,
            "n": self._node_rank,
            "s": stdtype,
            "l": _level(line),
            "g": source,
            "m": line.decode(errors="replace"),
        }
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)

    def _append(self, descriptor: int, data: bytes) -> bool:
        begun_at = self._size
        try:
            while data:
                written = os.write(descriptor, data)
                data = data[written:]
                if descriptor == self._log:
                    self._size += written
        except OSError:
            if descriptor == self._log and self._size > begun_at:
                # Half a line would spoil the next one as well.
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, begun_at)
                    self._size = begun_at
            return False
        return True


def secrets_of(environment: Mapping[str, str], config: Mapping[str, Any] | None) -> list[str]:
    """The values that must not be shown: variables whose names say so, and everything below ``data.secrets``."""
    found = [value for name, value in environment.items() if _SECRET_NAME.search(name)]
    pending: list[Any] = [((config or {}).get("data") or {}).get("secrets")]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, (list, tuple)):
            pending.extend(value)
        elif value is not None and not isinstance(value, bool):
            found.append(str(value))
    return found


def _pattern(secrets: Iterable[str]) -> re.Pattern[bytes] | None:
    # One of several lines is printed line by line.
    words = {line.strip() for secret in secrets for line in secret.splitlines()}
    words = {word for word in words if len(word) >= _SHORTEST_SECRET}
    if not words:
        return None
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    return re.compile(b"|".join(re.escape(word.encode()) for word in longest_first))


def _level(line: bytes) -> str | None:
    match = _LEVEL.search(line[:_LEVEL_WITHIN])
    return None if match is None else _SAME_LEVEL.get(match[1], match[1].decode())
