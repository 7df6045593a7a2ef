"""What the processes of an allocation use on this machine: sampled now and then, and once more when they have ended."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import resource
import shutil
import subprocess
import threading
import time

import psutil

PERIOD_SECONDS = 10.0
_GPU_PATIENCE_SECONDS = 5.0


class Usage:
    """Writes a UsageReport into the node's spool every ten seconds, from a thread of its own."""

    def __init__(
        self, spool: pathlib.Path, node_rank: int, gpus: list[int], period_seconds: float = PERIOD_SECONDS
    ) -> None:
        self._spool = spool
        self._node_rank = node_rank
        self._gpus = gpus if shutil.which("nvidia-smi") else []
        self._period_seconds = period_seconds
        self._began = self._last_at = time.monotonic()
        self._cpu_seconds: dict[int, float] = {}
        self._before: set[int] = set()
        self._memory = 0
        self._read = self._written = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    def start(self) -> None:
        """Begin to look; what this process has started so far apart from ranks does not count."""
        self._thread.start()

    def finish(self) -> None:
        """The processes have ended: add them up."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(2.0)
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        elapsed = max(time.monotonic() - self._began, 1e-3)
        self._write(
            {
                "cpu_percent": 100.0 * (spent.ru_utime + spent.ru_stime) / elapsed,
                "memory_bytes": float(max(self._memory, spent.ru_maxrss * 1024 if not self._memory else 0)),
                "read_bytes": float(max(self._read, spent.ru_inblock * 512)),
                "write_bytes": float(max(self._written, spent.ru_oublock * 512)),
            }
        )

    def _run(self) -> None:
        while not self._over.wait(self._period_seconds):
            self._write(self._sample())

    def _sample(self) -> dict[str, float]:
        now = time.monotonic()
        cpu, memory, read, written = 0.0, 0, 0, 0
        seen: dict[int, float] = {}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError, ValueError):
                times = process.cpu_times()
                spent = times.user + times.system
                memory += _memory(process)
                seen[process.pid] = spent
                cpu += max(spent - self._cpu_seconds.get(process.pid, 0.0), 0.0)
                if hasattr(process, "io_counters"):
                    moved = process.io_counters()
                    read, written = read + moved.read_bytes, written + moved.write_bytes
        elapsed, self._last_at, self._cpu_seconds = max(now - self._last_at, 1e-3), now, seen
        self._memory = max(self._memory, memory)
        self._read, self._written = max(self._read, read), max(self._written, written)
        return {
            "cpu_percent": 100.0 * cpu / elapsed,
            "memory_bytes": float(memory),
            "read_bytes": float(read),
            "write_bytes": float(written),
            **self._of_gpus(),
        }

    def _of_gpus(self) -> dict[str, float]:
        if not self._gpus:
            return {}
        fields = "utilization.gpu,memory.used"
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i"]
        try:
            done = subprocess.run(
                [*command, ",".join(map(str, self._gpus))],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_GPU_PATIENCE_SECONDS,
            )
        except (OSError, subprocess.SubprocessError):
            return {}
        found: dict[str, float] = {}
        for gpu, line in zip(self._gpus, done.stdout.decode(errors="replace").splitlines()):
            with contextlib.suppress(ValueError):
                percent, mebibytes = (float(number) for number in line.split(","))
                found |= {f"gpu_{gpu}_percent": percent, f"gpu_{gpu}_memory_bytes": mebibytes * (1 << 20)}
        return found

    def _write(self, usage: dict[str, float]) -> None:
        report = {"kind": "usage", "node_rank": self._node_rank, "time": time.time(), "usage": usage}
        with contextlib.suppress(OSError):
            descriptor = os.open(self._spool, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                file.write(json.dumps(report, separators=(",", ":")).encode() + b"\n")


def _memory(process: psutil.Process) -> int:
    """What a process has for itself, and its share of what it has with others: forked ranks share a lot."""
    try:
        with open(f"/proc/{process.pid}/smaps_rollup") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:")), 0)
    except OSError:
        return int(process.memory_info().rss)
