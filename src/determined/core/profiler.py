"""System metrics of this machine, sampled in the background."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any


class ProfilerContext:
    """Samples processor, memory, disk, network and GPU use while it is on, into ``profile.jsonl`` of the run."""

    def __init__(
        self, path: Callable[[], pathlib.Path], rank: int, is_local_chief: bool, warn: Callable[[str], None]
    ) -> None:
        self._path = path
        self._rank = rank
        self._is_local_chief = is_local_chief
        self._warn = warn
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def on(self, sampling_interval: float = 1, samples_per_report: int = 10) -> None:
        """Take a sample every so many seconds, and write the mean of so many samples."""
        if sampling_interval < 0.1:
            raise ValueError(f"sampling_interval is at least 0.1 seconds, not {sampling_interval}")
        if samples_per_report < 1:
            raise ValueError(f"samples_per_report is at least 1, not {samples_per_report}")
        if not self._is_local_chief:
            return  # one rank measures the machine
        if self._thread is not None:
            self._warn("the profiler is on already")
            return
        self._stop.clear()
        self._thread = threading.Thread(
            target=self._run, args=(sampling_interval, samples_per_report), name="profiler", daemon=True
        )
        self._thread.start()

    def off(self) -> None:
        """Stop sampling."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def _run(self, interval: float, samples_per_report: int) -> None:
        try:
            probe = _Probe()
            samples: list[dict[str, dict[str, float]]] = []
            while not self._stop.wait(interval):
                samples.append(probe.sample())
                if len(samples) == samples_per_report:
                    self._write(samples)
                    samples = []
            if samples:
                self._write(samples)
        except Exception as error:
            self._warn(f"the profiler has stopped: {error}")

    def _write(self, samples: list[dict[str, dict[str, float]]]) -> None:
        now = time.time()
        lines = []
        for group in samples[0]:
            names = samples[0][group]
            means = {name: sum(each[group].get(name, 0.0) for each in samples) / len(samples) for name in names}
            lines.append(json.dumps({"group": group, "time": now, "rank": self._rank, "metrics": means}))
        with open(self._path(), "a") as file:
            file.write("\n".join(lines) + "\n")


class _Probe:
    """Reads the machine's counters and turns them into rates."""

    def __init__(self) -> None:
        import psutil

        self._psutil: Any = psutil
        self._gpus = _open_gpus()
        self._before = self._counters()
        self._at = time.monotonic()
        psutil.cpu_percent()

    def sample(self) -> dict[str, dict[str, float]]:
        now, counters = time.monotonic(), self._counters()
        seconds = max(now - self._at, 1e-6)
        rates = {name: (counters[name] - self._before[name]) / seconds for name in counters}
        self._at, self._before = now, counters
        memory = self._psutil.virtual_memory()
        groups = {
            "cpu": {"cpu_util_simple": self._psutil.cpu_percent()},
            "memory": {"memory_free": memory.available / 1e9, "memory_used": memory.used / 1e9},
            "disk": {name: value for name, value in rates.items() if name.startswith("disk")},
            "network": {name: value for name, value in rates.items() if name.startswith("net")},
        }
        if self._gpus is not None:
            groups["gpu"] = self._gpus()
        return groups

    def _counters(self) -> dict[str, float]:
        disk, network = self._psutil.disk_io_counters(), self._psutil.net_io_counters()
        return {
            "disk_throughput_read": disk.read_bytes if disk else 0.0,
            "disk_throughput_write": disk.write_bytes if disk else 0.0,
            "disk_iops": disk.read_count + disk.write_count if disk else 0.0,
            "net_throughput_recv": network.bytes_recv if network else 0.0,
            "net_throughput_sent": network.bytes_sent if network else 0.0,
        }


def _open_gpus() -> Callable[[], dict[str, float]] | None:
    if not os.path.exists("/dev/nvidiactl"):
        return None
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]

    def sample() -> dict[str, float]:
        values: dict[str, float] = {}
        for index, handle in enumerate(handles):
            values[f"gpu_util_{index}"] = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            values[f"gpu_free_memory_{index}"] = pynvml.nvmlDeviceGetMemoryInfo(handle).free / 1e9
        return values

    return sample
