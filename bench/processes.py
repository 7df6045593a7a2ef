"""Runs each contender in a process of its own, under a pseudo terminal, because that is where people train."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import pty
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
LIMIT_SECONDS = 600


class ContenderFailed(Exception):
    """A contender did not come to the end of its work; the text is the last it said."""


def measure(contender: str, cases: list[str], *, ranks: int, chunks: int, scratch: pathlib.Path) -> dict[str, Any]:
    """What ``bench.measure`` found for each case; ``chunks`` is at most how many to time, 0 for the case's own."""
    scratch.mkdir(parents=True, exist_ok=True)
    # On a disk, not in memory: run folders and checkpoints cost what they cost.
    with tempfile.TemporaryDirectory(dir=scratch, prefix="run-") as folder:
        out = pathlib.Path(folder) / "times.json"
        command = [sys.executable, "-m", "bench.measure", contender, ",".join(cases), str(chunks), str(out)]
        _run(command, pathlib.Path(folder), ranks)
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def _run(command: list[str], folder: pathlib.Path, ranks: int) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "DET_RUNS_DIR": str(folder / "runs"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
    }
    port = _free_port()
    screens = [
        _Screen(command, folder, {**environment, **(_place(rank, ranks, port) if ranks > 1 else {})})
        for rank in range(ranks)
    ]
    try:
        codes = [screen.wait() for screen in screens]
    finally:
        for screen in screens:
            screen.close()
    for code, screen in zip(codes, screens):
        if code:
            raise ContenderFailed(f"{' '.join(command[2:5])}: exit code {code}\n{screen.text()}")


def _place(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun tells a rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": f"bench-{port}",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class _Screen:
    """A process on a terminal of its own, and the end of what it wrote there."""

    def __init__(self, command: list[str], folder: pathlib.Path, environment: dict[str, str]) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self._ours = ours
        self._tail = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self) -> int:
        try:
            return self._process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise ContenderFailed(f"not done after {LIMIT_SECONDS} s\n{self.text()}") from None

    def text(self) -> str:
        self._reader.join(1)
        return self._tail.decode(errors="replace").replace("\r\n", "\n")

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join(1)
        os.close(self._ours)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:
                return
            if not data:
                return
            self._tail = (self._tail + data)[-4000:]
