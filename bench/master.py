"""A master in a folder of its own, as somebody would start it, for as long as a measurement needs it."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import yaml

from bench.processes import ContenderFailed
from determined.client.context import pack
from determined.client.master import Master
from determined.wire import requests

START_SECONDS = 120.0
_ENDED = ("COMPLETED", "CANCELED", "ERROR")


class OwnMaster:
    """Started on construction; ``seconds`` is how long it took until it answered."""

    def __init__(self, folder: pathlib.Path, *, slots: int = 2, warm: bool = True) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DET_")},
            "DET_MASTER_DIR": str(folder),
            "DET_MASTER_SLOTS": str(slots),
            "DET_MASTER_PORT": "0",
            "DET_MASTER_WARM_START": str(warm).lower(),
            "OMP_NUM_THREADS": "1",
        }
        began = time.perf_counter()
        with open(folder / "console.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "determined.master"],
                env=self.environ,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self.url = self._wait(began)
        except BaseException:
            self._kill()
            raise
        self.seconds = time.perf_counter() - began
        times = psutil.Process(self.pid).cpu_times()
        self.processor_seconds = times.user + times.system
        self.client = Master(self.url, (folder / "token").read_text().strip())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def megabytes(self) -> float:
        """Memory of the master's own process that is in use, in MiB; not that of what it has started."""
        return float(psutil.Process(self.pid).memory_info().rss) / 2**20

    def _wait(self, began: float) -> str:
        """Where it serves, once it does: a request is answered."""
        while time.perf_counter() - began < START_SECONDS:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError, ValueError):
                written = json.loads((self.folder / "master.json").read_bytes())
                if written["pid"] == self.pid and Master(written["url"]).health():
                    return str(written["url"])
            time.sleep(0.01)
        raise ContenderFailed(f"the master did not start\n{(self.folder / 'console.log').read_text()[-4000:]}")

    def wait_until_warm(self) -> None:
        """Return when trials are forked, no longer started cold."""
        deadline = time.monotonic() + START_SECONDS
        while len(list((self.folder / "starter").glob("*.sock"))) < 2:
            if time.monotonic() > deadline:
                raise ContenderFailed("the starters of the master do not come up")
            time.sleep(0.1)

    def submit(self, code: pathlib.Path, config: Mapping[str, Any]) -> int:
        """Create an experiment with this folder of code."""
        packed = pack(code)
        if not self.client.has_context(packed.sha256):
            self.client.upload_context(packed.sha256, packed.content)
        return self.order(packed.sha256, config)

    def order(self, context_sha256: str, config: Mapping[str, Any]) -> int:
        """The same with code that it has already."""
        text = yaml.safe_dump(dict(config))
        asked = requests.CreateExperiment(config=text, context_sha256=context_sha256, python=sys.executable)
        created = self.client.create_experiment(asked).experiment
        assert created is not None
        return created.id

    def wait(self, experiment_id: int, seconds: float = 300.0, every: float = 0.05) -> None:
        """Return when an experiment has ended well."""
        deadline = time.monotonic() + seconds
        while (state := self.client.experiment(experiment_id).state) not in _ENDED and time.monotonic() < deadline:
            time.sleep(every)
        if state != "COMPLETED":
            raise ContenderFailed(f"experiment {experiment_id} is {state}\n{self.log}")

    @property
    def log(self) -> str:
        found = [*self.folder.glob("console.log"), *self.folder.glob("logs/*/*.jsonl")]
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in found[:4])

    def close(self) -> None:
        """End it as a person would, and then everything that it has started."""
        self.client.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(15)
        self._kill()

    def _kill(self) -> None:
        left = [self._process.pid] if self._process.poll() is None else []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if self._is_ours(process):
                    left.append(process.pid)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _is_ours(self, process: psutil.Process) -> bool:
        """Starters and node processes, by the folder that they name."""
        if process.pid == os.getpid():
            return False
        below = f"{self.folder}/"
        return any(below in word for word in process.cmdline()) or below in process.environ().get("DET_NODE_SPEC", "")


@contextlib.contextmanager
def own_master(folder: pathlib.Path, *, slots: int = 2, warm: bool = True) -> Iterator[OwnMaster]:
    """A master that is gone afterwards with everything it started."""
    master = OwnMaster(folder, slots=slots, warm=warm)
    try:
        yield master
    finally:
        master.close()
