"""A master of a test's own, with its pool of this machine: started, killed, started again, asked."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import yaml

from determined.client import autostart
from determined.client.context import pack
from determined.client.master import Master
from determined.wire import requests
from determined.wire.views import ExperimentView, TrialView
from tests import masters
from tests.flow.processes import wait_until

ENDED = ("COMPLETED", "CANCELED", "ERROR")


class Cluster:
    """One master's folder, and the master that serves it, if any."""

    def __init__(self, folder: pathlib.Path, slots: int = 2, **settings: str) -> None:
        self.folder = folder
        self.port = 0
        self._settings = {"DET_MASTER_SLOTS": str(slots), **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Master | None = None
        self.start()

    def start(self) -> None:
        """Start the master, on the port it had before, and wait until it serves."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        environ = {**os.environ, "DET_MASTER_DIR": str(self.folder), "DET_MASTER_PORT": str(self.port)}
        with open(self.folder / "console.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "determined.master"],
                env={**environ, **self._settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        process = self._process
        wait_until(lambda: autostart.find(self.folder) is not None or process.poll() is not None, 120)
        found = autostart.find(self.folder)
        if found is None:
            self.kill()
            raise AssertionError(self.log)
        assert found.pid == process.pid
        self.port = int(found.url.rpartition(":")[2])
        if self._client is not None:
            self._client.close()
        self._client = Master(found.url, found.token)

    def kill(self) -> None:
        """kill -9 of the master; what runs runs on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    @property
    def master(self) -> Master:
        """The owner's client."""
        assert self._client is not None
        return self._client

    def close(self) -> None:
        self.master.close()
        self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return "\n".join(
            (self.folder / name).read_text(errors="replace")[-4000:]
            for name in ("console.log", "master.log")
            if (self.folder / name).exists()
        )

    def submit(self, code: pathlib.Path, config: Mapping[str, Any], **more: Any) -> int:
        """Create an experiment with this folder of code."""
        packed = pack(code)
        if not self.master.has_context(packed.sha256):
            self.master.upload_context(packed.sha256, packed.content)
        created = self.master.create_experiment(
            requests.CreateExperiment(
                config=yaml.safe_dump(dict(config)), context_sha256=packed.sha256, python=sys.executable, **more
            )
        )
        assert created.experiment is not None
        return created.experiment.id

    def wait(self, experiment_id: int, seconds: float = 240.0, states: tuple[str, ...] = ENDED) -> ExperimentView:
        """The experiment, once it has come to one of these states."""
        assert wait_until(lambda: self.master.experiment(experiment_id).state in states, seconds), (
            f"{self.master.experiment(experiment_id)}\n{self.log}"
        )
        return self.master.experiment(experiment_id)

    def trials(self, experiment_id: int) -> list[TrialView]:
        return self.master.experiment_trials(experiment_id, limit=1000).items

    def processes(self) -> list[psutil.Process]:
        """Everything alive that was started for this master, itself included."""
        return masters.processes_of(self.folder)

    def ranks(self) -> list[psutil.Process]:
        """Training processes: what the node processes started, apart from the sweepers that clean up after them."""
        found = []
        for node in self.nodes():
            with contextlib.suppress(psutil.Error):
                found += [child for child in node.children() if "sweeper" not in " ".join(child.cmdline())]
        return found

    def nodes(self) -> list[psutil.Process]:
        """Node processes, as they wrote themselves down."""
        found = []
        for path in self.folder.glob("allocations/*/pid"):
            with contextlib.suppress(OSError, ValueError, IndexError, psutil.Error):
                found.append(psutil.Process(int(path.read_text().split()[0])))
        return found


@contextlib.contextmanager
def cluster(folder: pathlib.Path, slots: int = 2, **settings: str) -> Iterator[Cluster]:
    """A master that is gone after the test with everything it started."""
    with masters.stopped_afterwards(folder):
        started = Cluster(folder, slots, **settings)
        try:
            yield started
        finally:
            started.close()
