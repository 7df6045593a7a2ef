"""The sweepers of a household, as its node process holds them: its own processes, or services that many share."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Protocol

from determined.worker import sweeper


class Sweeper(Protocol):
    """Sweeps when we are gone without a word."""

    @property
    def pid(self) -> int | None:
        """Its number if it is our child."""

    @property
    def is_alive(self) -> bool: ...

    def watch(self, sessions: Iterable[int]) -> None:
        """These sessions are to be ended too."""

    def dismiss(self) -> None:
        """There is nothing to sweep."""

    def close(self) -> None:
        """Let go of one that was killed, or wait for one that was dismissed."""


class OwnSweeper:
    """A process that was started for this household alone."""

    def __init__(self, marker: str, folder: pathlib.Path, kept: Sequence[int]) -> None:
        # Its environment is empty and its session its own: no sweep, and no Ctrl-C, may take it for one of the rest.
        options = ["-I", "-S"] if sys.platform.startswith("linux") else []
        self._process = subprocess.Popen(
            [sys.executable, *options, str(pathlib.Path(sweeper.__file__)), marker, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
            pass_fds=tuple(kept),
        )

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def watch(self, sessions: Iterable[int]) -> None:
        self._tell(sweeper.sessions_line(sessions))

    def dismiss(self) -> None:
        self._tell(sweeper.DONE)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), line)
        except OSError:
            pass  # It was killed, and is replaced.


class SharedSweeper:
    """A connection to a service. Raises OSError if there is none."""

    pid: int | None = None

    def __init__(self, address: str, marker: str, folder: pathlib.Path, kept: Sequence[int]) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        try:
            self._connection.connect(address)
            socket.send_fds(self._connection, [sweeper.household_line(marker, str(folder))], list(kept))
            self._connection.setblocking(False)
        except BaseException:
            self._connection.close()
            raise

    @property
    def is_alive(self) -> bool:
        try:
            return bool(self._connection.recv(1))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def watch(self, sessions: Iterable[int]) -> None:
        self._tell(sweeper.sessions_line(sessions))

    def dismiss(self) -> None:
        self._tell(sweeper.DONE)

    def close(self) -> None:
        self._connection.close()

    def _tell(self, line: bytes) -> None:
        try:
            self._connection.sendall(line)
        except OSError:
            pass  # It was killed, and is replaced.


class Service:
    """A service at an address nobody can guess; it ends with whoever started it, once nobody needs it."""

    def __init__(self) -> None:
        name = f"det-sweeper-{os.urandom(12).hex()}"
        self.address = f"\0{name}"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(pathlib.Path(sweeper.__file__)), "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
        self.pid = self._process.pid

    def let_go(self) -> None:
        """It stays for as long as node processes need it; we do not wait for that."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.returncode = self._process.returncode or 0
