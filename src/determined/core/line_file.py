"""A file of lines that only grows: whole lines or none, whatever happens to the disk or to the process."""

from __future__ import annotations

import errno
import os
import pathlib
import time
from collections.abc import Callable, Iterable

FULL = (errno.ENOSPC, errno.EDQUOT)
_RETRY_SECONDS = 5.0


class LineFile:
    """Appends lines to a file; not for several threads at once.

    A full disk does not end training: lines wait in memory, one loud warning is given, and writing is tried again until
    it works. A line that an earlier writer left torn is cut off.
    """

    def __init__(
        self, path: Callable[[], pathlib.Path], warn: Callable[[str], None], what: str, *, mode: int = 0o644
    ) -> None:
        self._path = path
        self._warn = warn
        self._what = what
        self._mode = mode
        self._descriptor = -1
        self._waiting: list[bytes] = []
        self._try_again_at = 0.0
        self._is_full = False

    def append(self, lines: Iterable[bytes]) -> None:
        """Write some lines, each with its end; they go to the system, not yet to the disk."""
        self._waiting.extend(lines)
        if self._waiting and (not self._is_full or time.monotonic() >= self._try_again_at):
            self._write()

    def flush(self) -> None:
        """Make durable what was written."""
        if self._waiting:
            self._write()
        if self._descriptor >= 0:
            try:
                os.fdatasync(self._descriptor)
            except OSError as error:
                if error.errno not in FULL:
                    raise

    def close(self) -> None:
        """Flush and let go; raises OSError when lines are lost because the disk is still full."""
        self.flush()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._waiting:
            lost, self._waiting = len(self._waiting), []
            raise OSError(
                errno.ENOSPC, f"{lost} {self._what} could not be written, the disk is full", str(self._path())
            )

    def _write(self) -> None:
        data = b"".join(self._waiting)
        try:
            self._append(data)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._try_again_at = time.monotonic() + _RETRY_SECONDS
            if not self._is_full:
                self._is_full = True
                self._warn(
                    f"the disk is full: {self._what} cannot be written to {self._path()}. Training goes on, they are "
                    "kept in memory and written as soon as there is room; free some space"
                )
            return
        self._waiting.clear()
        if self._is_full:
            self._is_full = False
            self._warn(f"there is room on the disk again: all {self._what} kept back are written")

    def _append(self, data: bytes) -> None:
        if self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink == 0:
            os.close(self._descriptor)  # the file was rewound, which puts another in its place
            self._descriptor = -1
        if self._descriptor < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._path(), flags, self._mode)
            drop_torn_line(self._descriptor)
        size = os.fstat(self._descriptor).st_size
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            os.ftruncate(self._descriptor, size)  # whole lines or none
            raise


def drop_torn_line(descriptor: int) -> None:
    """Cut off what stands after the last end of a line."""
    end = os.fstat(descriptor).st_size
    at = end
    while at > 0:
        start = max(at - 65536, 0)
        newline = os.pread(descriptor, at - start, start).rfind(b"\n")
        if newline >= 0:
            at = start + newline + 1
            break
        at = start
    if at < end:
        os.ftruncate(descriptor, at)
