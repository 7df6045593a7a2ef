"""How the local pool asks a starter (``determined.worker.starter``) for a node process, and sees that there is one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

_ANSWER_SECONDS = 2.0
# A starter that does not come up is not tried again at once.
_AGAIN_SECONDS = 30.0


class Starters:
    """The starters of this machine: a bare one at once, and one with torch for each interpreter that was wanted.

    What a starter cannot do is nobody's loss: ``start`` says None, and the caller starts cold.
    """

    def __init__(self, folder: pathlib.Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = dict(environ)
        self._tried: dict[str, float] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        # A starter stays for as long as somebody holds a connection to it.
        self._held: dict[str, socket.socket] = {}

    def prepare(self, python: str | None = None) -> None:
        """See that there will be the bare one, and that of an interpreter, without waiting for them."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._bring_up(sys.executable, is_bare=True)
        if python is not None:
            self._bring_up(python, is_bare=False)

    def start(self, python: str | None, spec: pathlib.Path, output: pathlib.Path, lock: int) -> int | None:
        """A node process from the starter of this interpreter, else from the bare one: its number, or None."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        wanted = [(python, False)] if python is not None else []
        for interpreter, is_bare in [*wanted, (sys.executable, True)]:
            pid = self._ask(self._socket(interpreter, is_bare), spec, output, lock)
            if pid is not None:
                self._hold(self._socket(interpreter, is_bare))
                return pid
            self._let_go(self._socket(interpreter, is_bare))
            self._bring_up(interpreter, is_bare=is_bare)
        return None

    def close(self) -> None:
        """Starters serve a master that follows soon, and leave by themselves; only our account of them ends."""
        for address in list(self._held):
            self._let_go(self._folder / address)
        for process in self._processes:
            _close_input(process)
        for process in self._processes:
            process.poll()
            process.returncode = process.returncode or 0  # Not ours to wait for.
        self._processes.clear()

    def _socket(self, python: str, is_bare: bool) -> pathlib.Path:
        key = hashlib.sha256(f"{python}\0{is_bare}".encode()).hexdigest()[:16]
        return self._folder / f"{key}.sock"

    def _ask(self, address: pathlib.Path, spec: pathlib.Path, output: pathlib.Path, lock: int) -> int | None:
        request = json.dumps({"spec": str(spec), "output": str(output), "environ": self._environ}).encode()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            try:
                with _short(address) as name:
                    connection.connect(name)
                socket.send_fds(connection, [len(request).to_bytes(8, "big")], [lock])
                connection.sendall(request)
                answer = connection.recv(64)
                return int(answer) if answer else None
            except (OSError, ValueError):
                return None

    def _hold(self, address: pathlib.Path) -> None:
        if address.name in self._held:
            return
        connection = socket.socket(socket.AF_UNIX)
        try:
            with _short(address) as name:
                connection.connect(name)
            connection.sendall(bytes(8))
        except OSError:
            connection.close()
            return
        self._held[address.name] = connection

    def _let_go(self, address: pathlib.Path) -> None:
        connection = self._held.pop(address.name, None)
        if connection is not None:
            connection.close()

    def _bring_up(self, python: str, *, is_bare: bool) -> None:
        for process in [process for process in self._processes if process.poll() is not None]:
            self._processes.remove(process)
            _close_input(process)
        address = self._socket(python, is_bare)
        now = time.monotonic()
        if now - self._tried.get(address.name, -_AGAIN_SECONDS) < _AGAIN_SECONDS:
            return
        self._tried[address.name] = now
        environ = {name: value for name, value in self._environ.items() if name != "OMP_NUM_THREADS"}
        # Room for the marker of a household: a forked process shows what it was started with.
        environ["DET_HOUSEHOLD"] = "-" * 200
        with contextlib.suppress(OSError):
            self._processes.append(
                subprocess.Popen(
                    [python, "-m", "determined.worker.starter", str(address), *(["--bare"] if is_bare else [])],
                    stdin=subprocess.PIPE,  # It stays at least until we close this.
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environ,
                    cwd=self._folder,
                    start_new_session=True,
                )
            )


def _close_input(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()


@contextlib.contextmanager
def _short(path: pathlib.Path) -> Iterator[str]:
    """A name for a socket that fits where only 107 bytes do, however long its folder's is."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
