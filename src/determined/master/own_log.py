"""The master's own log: private, of a limited size, and what goes wrong again and again is said once a minute."""

from __future__ import annotations

import contextlib
import io
import logging
import logging.handlers
import os
import pathlib
import sys
import time
from collections.abc import Callable

MOST_BYTES = 16 * 1024 * 1024
_QUIET_SECONDS = 60.0
_MOST_KNOWN = 1000


def start(path: pathlib.Path, level: str) -> None:
    """The log goes to this file, and to standard error unless that is the same file."""
    file = LimitedFile(path)
    handlers: list[logging.Handler] = [file]
    with contextlib.suppress(OSError, ValueError):
        if not file.is_stderr():
            handlers.append(logging.StreamHandler(sys.stderr))
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    root = logging.getLogger()
    root.setLevel(level)
    for handler in handlers:
        handler.setFormatter(formatter)
        handler.addFilter(Repeats())
        root.addHandler(handler)
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level)))
    logging.getLogger("alembic").setLevel(logging.WARNING)


class LimitedFile(logging.handlers.RotatingFileHandler):
    """A log file that becomes ``.1`` when it is full. Standard error goes along, if it was the same file."""

    def __init__(self, path: pathlib.Path, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(path, maxBytes=most_bytes, backupCount=1, encoding="utf-8", errors="backslashreplace")

    def is_stderr(self) -> bool:
        """Whether standard error is this file."""
        return os.path.samestat(os.fstat(2), os.fstat(self._descriptor))

    def _open(self) -> io.TextIOWrapper:
        self._descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.fchmod(self._descriptor, 0o600)
        return open(self._descriptor, "a", encoding=self.encoding, errors=self.errors)

    def doRollover(self) -> None:
        along = False
        with contextlib.suppress(OSError, ValueError):
            along = self.is_stderr()
        super().doRollover()
        if along:
            for descriptor in (1, 2):
                os.dup2(self._descriptor, descriptor)


class Repeats(logging.Filter):
    """Lets a problem through once a minute; the next time it says how often it was left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._known: dict[tuple[str, str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        said = record.__dict__.setdefault("said", record.getMessage())  # another handler's filter may have added to it
        key = (record.name, said, repr(record.exc_info[1]) if record.exc_info else "")
        now = self._clock()
        quiet_until, left_out = self._known.get(key, (now, 0))
        if now < quiet_until:
            self._known[key] = (quiet_until, left_out + 1)
            return False
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[key] = (now + _QUIET_SECONDS, 0)
        record.msg, record.args = (f"{said} ({left_out} times more since the last time)" if left_out else said), ()
        return True
