"""The sweeper: a tiny process that outlives its node process, to end whatever that one leaves behind.

Runs as a script of its own (``python -I -S sweeper.py MARKER [FOLDER]``), so it imports next to nothing. It reads lines
from the node process: ``sessions PID PID`` replaces the sessions it watches, ``done`` sends it home. When the node
process is gone without that word, it kills every process that carries the marker, and removes the folder.
"""

from __future__ import annotations

import os
import signal
import sys
import time

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


def _main(marker: str, folder: str | None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sessions: set[int] = set()
    pending = b""
    while True:
        data = os.read(0, 65536)
        if not data:
            break
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            if line == b"done":
                return
            sessions = {int(word) for word in line.split()[1:]}
    sweep(marker, sessions)
    if folder:
        _remove(folder)


def _remove(folder: str) -> None:
    try:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        pass  # Two sweepers may be at it.


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
