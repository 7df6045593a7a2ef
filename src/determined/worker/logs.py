"""What ranks print: cut into lines, named by rank, and written on without ever blocking the node process."""

from __future__ import annotations

import collections
import os
import re
import select
import stat
import time
from typing import Protocol

_LINE_END = re.compile(rb"\r\n|\n|\r")
_LONGEST_LINE = 1 << 20
_TRACEBACK = b"Traceback (most recent call last):"
_CHAINED = (
    b"During handling of the above exception, another exception occurred:",
    b"The above exception was the direct cause of the following exception:",
)
# torch writes this before every line of a traceback; whoever shows the lines says whose they are.
_TORCHS_PREFIX = re.compile(rb"^\[rank\d+\]: ?")
_LINES_KEPT = 400
_LINES_SHOWN = 60


def prefix_of(rank: int) -> bytes:
    """How a rank's lines are marked among those of others."""
    return f"[rank={rank}] ".encode()


class Lines:
    """Cuts a stream of bytes into lines. A carriage return ends a line too: progress bars print little else."""

    def __init__(self) -> None:
        self._rest = b""
        self._after_return = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now, without their ends."""
        if self._after_return and data:
            self._after_return = False
            data = data.removeprefix(b"\n")  # The second half of one line end.
        if data:
            self._after_return = data.endswith(b"\r")
        *lines, self._rest = _LINE_END.split(self._rest + data)
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        return lines

    def finish(self) -> list[bytes]:
        """What was left without a line end."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


class Tail:
    """The last lines a rank wrote to standard error, and when it began to say why it fails."""

    def __init__(self) -> None:
        self._lines: collections.deque[bytes] = collections.deque(maxlen=_LINES_KEPT)
        self.traceback_at: float | None = None

    def add(self, line: bytes) -> None:
        line = _TORCHS_PREFIX.sub(b"", line)
        if line.startswith(_TRACEBACK) and not self._is_chained():
            self.traceback_at = time.monotonic()
        self._lines.append(line)

    def text(self) -> str:
        """The last traceback with those it is chained to, or the last lines if there is none."""
        lines = list(self._lines)
        start = max(len(lines) - 20, 0)
        heads = [at for at, line in enumerate(lines) if line.startswith(_TRACEBACK)]
        while heads:
            start = heads.pop()
            before = [line.strip() for line in lines[max(start - 2, 0) : start]]
            if not any(line in _CHAINED for line in before):
                break
        lines = lines[start:]
        if len(lines) > _LINES_SHOWN:
            cut = len(lines) - _LINES_SHOWN
            lines = [*lines[:10], f"... {cut} lines ...".encode(), *lines[10 + cut :]]
        return b"\n".join(lines).decode(errors="replace").rstrip()

    def _is_chained(self) -> bool:
        return any(line.strip() in _CHAINED for line in list(self._lines)[-2:])


class Sink(Protocol):
    """Where lines are shown."""

    @property
    def is_full(self) -> bool: ...

    @property
    def has_pending(self) -> bool: ...

    def write(self, data: bytes) -> None: ...

    def flush(self, patience_seconds: float) -> None: ...


class Silence:
    """Nobody looks on: whoever wants to know reads the log."""

    is_full = False
    has_pending = False

    def write(self, data: bytes) -> None:
        pass

    def flush(self, patience_seconds: float) -> None:
        pass


class Outlet:
    """A descriptor to write to. A reader that is slow, or has gone, costs memory or output but never time."""

    # Above this the ranks are made to wait instead.
    FULL = 1 << 20

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._pending = bytearray()
        self._closed = False
        self._is_file = _is_file(descriptor)
        if not self._is_file:
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLOUT)

    @property
    def is_full(self) -> bool:
        return len(self._pending) > self.FULL

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def write(self, data: bytes) -> None:
        """Take this; write what can be written at once."""
        if not self._closed:
            self._pending += data
            self.flush(0.0)

    def flush(self, patience_seconds: float) -> None:
        """Write what is pending, waiting at most so long for a slow reader."""
        deadline = time.monotonic() + patience_seconds
        while self._pending and not self._closed:
            wait = max(deadline - time.monotonic(), 0.0)
            if not self._is_file and not self._poll.poll(wait * 1000):
                return
            try:
                # A pipe that can be written to takes this much without blocking.
                count = os.write(self.descriptor, self._pending[: None if self._is_file else select.PIPE_BUF])
                del self._pending[:count]
            except BlockingIOError:
                return
            except OSError:
                # Nobody reads any more (`| head`, a closed terminal). Training goes on; the log files have it all.
                self._closed = True
                self._pending.clear()


def _is_file(descriptor: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        return False
