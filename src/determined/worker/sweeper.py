"""The sweeper: a tiny process that outlives its node process, to end whatever that one leaves behind.

Runs as a script of its own (``python -I -S sweeper.py MARKER [FOLDER]``), so it imports next to nothing. It reads lines
from the node process: ``sessions PID PID`` replaces the sessions it watches, ``done`` sends it home. When the node
process is gone without that word, it kills every process that carries the marker, and removes the folder.

With ``--serve ADDRESS`` it does so for many node processes, each on a connection of its own that begins with a line
``household FOLDER MARKER`` and brings descriptors to hold on to; it leaves when its input has ended and none is left.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable

# Carried by everything a node process starts.
VARIABLE = "DET_HOUSEHOLD"

# Two looks that find nothing, so that a process which was being born during the first is seen by the second.
_LOOKS = 2
_PATIENCE_SECONDS = 20.0


def carriers(marker: str, sessions: set[int]) -> list[int]:
    """Living processes of this user that carry the marker, or belong to one of these sessions. Never this process.

    A marker "a" is also carried by what a nested allocation "a/b" started.
    """
    if not os.path.isdir("/proc/self"):
        return _carriers_elsewhere(marker, sessions)
    wanted = f"{VARIABLE}={marker}".encode()
    whole, nested = wanted + b"\0", wanted + b"/"
    me, uid = os.getpid(), os.getuid()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == me:
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid != uid:
                continue
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name of the program is in brackets and may hold anything, brackets too.
                fields = file.read().rpartition(b")")[2].split()
            if fields[0] in (b"Z", b"X"):
                continue
            if int(fields[3]) in sessions:
                found.append(int(name))
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = b"\0" + file.read() + b"\0"
        except (OSError, IndexError):
            continue  # It ended while we looked, or is not ours to look at.
        if b"\0" + whole in environment or b"\0" + nested in environment:
            found.append(int(name))
    return found


def _carriers_elsewhere(marker: str, sessions: set[int]) -> list[int]:
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.uids().real != os.getuid():
                continue
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            carried = process.environ().get(VARIABLE, "")
            if carried == marker or carried.startswith(marker + "/") or os.getsid(process.pid) in sessions:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def sweep(marker: str, sessions: set[int], patience_seconds: float = _PATIENCE_SECONDS) -> list[int]:
    """Kill all carriers until none is left. Returns those that would not die."""
    deadline = time.monotonic() + patience_seconds
    empty = 0
    pause = 0.001
    while True:
        left = carriers(marker, sessions)
        empty = 0 if left else empty + 1
        if empty == _LOOKS or time.monotonic() > deadline:
            return left
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


DONE = b"done\n"


def sessions_line(sessions: Iterable[int]) -> bytes:
    return f"sessions {' '.join(map(str, sessions))}\n".encode()


def household_line(marker: str, folder: str) -> bytes:
    # The marker comes last: it has no line end, and the folder is quoted.
    return f"household {folder.encode().hex()} {marker}\n".encode()


class _Client:
    """One node process, as far as it has told."""

    def __init__(self, marker: str = "", folder: str | None = None) -> None:
        self.marker = marker
        self.folder = folder
        self.sessions: set[int] = set()
        self.is_done = False
        self.held: list[int] = []
        self._pending = b""

    def hear(self, data: bytes) -> None:
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            word, _, rest = line.partition(b" ")
            if word == b"done":
                self.is_done = True
            elif word == b"sessions":
                self.sessions = {int(number) for number in rest.split()}
            elif word == b"household":
                folder, _, marker = rest.partition(b" ")
                self.folder, self.marker = bytes.fromhex(folder.decode()).decode(), marker.decode()

    def sweep(self) -> None:
        sweep(self.marker, self.sessions)
        if self.folder:
            _remove(self.folder)


def _main(marker: str, folder: str | None) -> None:
    _ignore_signals()
    client = _Client(marker, folder)
    while not client.is_done:
        data = os.read(0, 65536)
        if not data:
            client.sweep()
            return
        client.hear(data)


def _serve(address: str) -> None:
    import selectors
    import socket

    _ignore_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Whoever sweeps is nobody's to wait for.
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(128)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    clients: dict[socket.socket, _Client] = {}
    is_wanted = True
    while is_wanted or clients:
        for key, _ in selector.select():
            if key.fd == 0:
                is_wanted = False
                selector.unregister(0)
            elif key.fileobj is listener:
                connection, _ = listener.accept()
                credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                if int.from_bytes(credentials[4:8], sys.byteorder) != os.getuid():
                    connection.close()  # Nobody else has anything to sweep here.
                    continue
                clients[connection] = _Client()
                selector.register(connection, selectors.EVENT_READ)
            else:
                connection = key.fileobj  # type: ignore[assignment]
                client = clients[connection]
                try:
                    data, held, _, _ = socket.recv_fds(connection, 65536, 8)
                except OSError:
                    data, held = b"", []
                client.held += held
                client.hear(data)
                if data and not client.is_done:
                    continue
                if not client.is_done and client.marker and os.fork() == 0:
                    client.sweep()
                    os._exit(0)
                selector.unregister(connection)
                connection.close()
                for descriptor in client.held:
                    os.close(descriptor)
                del clients[connection]


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _remove(folder: str) -> None:
    try:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        pass  # Two sweepers may be at it.


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        _serve("\0" + sys.argv[2])
    else:
        _main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
