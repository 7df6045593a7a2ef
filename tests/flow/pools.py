"""Running NodeSpecs on a local pool from a test, as a master would."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import orjson
import psutil

from determined.master.pools.base import Exited, Gang
from determined.master.pools.local import LocalPool
from determined.master.scheduling import Placement
from determined.wire.allocation_folder import AllocationFolder
from determined.wire.node_spec import MasterSpec, NodeSpec
from determined.wire.outcome import Ending
from tests.flow.processes import PATIENCE, wait_until

# Nobody listens there.
NOBODY = "http://127.0.0.1:9"


class Ground:
    """A state folder with a pool, and code to run on it."""

    def __init__(self, folder: pathlib.Path, *, warm: bool = False, **options: Any) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.code = folder / "code"
        self.code.mkdir(parents=True, exist_ok=True)
        self.options = {"slots": 2, "warm": warm, **options}
        self.pool = LocalPool(self.state, **self.options)
        self._count = 0

    def again(self) -> LocalPool:
        """The pool of a master that was started again."""
        self.pool.close()
        self.pool = LocalPool(self.state, **self.options)
        return self.pool

    def gang(self, script: str, *, kind: str = "job", slots: int = 1, master: str | None = None, **spec: Any) -> Gang:
        """A gang of one node that runs this script."""
        self._count += 1
        task_id = f"{kind}-{self._count}"
        (self.code / f"script{self._count}.py").write_text(script)
        told = master and MasterSpec(
            url=master, session_token="a-token-of-mine", allocation_id=f"{task_id}.1", run_epoch=1, task_id=task_id
        )
        document = {
            "name": "test",
            "run_id": str(self._count),
            "run_folder": self.state / "runs" / task_id,
            "code_folder": self.code,
            "entrypoint": ["python", f"script{self._count}.py"],
            "slots": slots,
            "master": told or None,
            **spec,
        }
        return Gang(f"{task_id}.1", Placement({"local": tuple(range(slots))}), [NodeSpec(**document)])

    def start(self, script: str, **spec: Any) -> str:
        gang = self.gang(script, **spec)
        self.pool.start(gang)
        return gang.allocation_id

    def run(self, script: str, **spec: Any) -> Ending:
        return self.ending(self.start(script, **spec))

    def ending(self, allocation_id: str, seconds: float = PATIENCE) -> Ending:
        """How it ended, once it has."""
        found: list[Ending] = []

        def has_ended() -> bool:
            sighting = self.pool.poll().get(allocation_id)
            if isinstance(sighting, Exited):
                found.append(sighting.ending)
            return bool(found)

        assert wait_until(has_ended, seconds), f"{self.pool.engine_log(allocation_id)}\n{self.log(allocation_id)}"
        return found[0]

    def at(self, allocation_id: str) -> AllocationFolder:
        return AllocationFolder(self.state / "allocations" / allocation_id)

    def log_file(self, allocation_id: str) -> pathlib.Path:
        return self.state / "logs" / allocation_id.rpartition(".")[0] / f"{allocation_id}.jsonl"

    def rows(self, allocation_id: str) -> list[dict[str, Any]]:
        """The lines of its log, as they are written."""
        try:
            return [orjson.loads(line) for line in self.log_file(allocation_id).read_bytes().splitlines()]
        except FileNotFoundError:
            return []

    def log(self, allocation_id: str) -> list[str]:
        return [row["m"] for row in self.rows(allocation_id)]

    def number_in(self, name: str) -> int:
        """A number that a script writes into the folder of the code."""
        path = self.code / name
        assert wait_until(lambda: path.exists() and path.read_text().endswith("\n")), name
        return int(path.read_text())

    def node_pid(self, allocation_id: str) -> int:
        assert wait_until(lambda: self.at(allocation_id).read_pid() is not None)
        pid = self.at(allocation_id).read_pid()
        assert pid is not None
        return pid

    def close(self) -> None:
        self.pool.close()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if str(self.state) in " ".join(process.cmdline()):
                    os.kill(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def ground(folder: pathlib.Path, **options: Any) -> Iterator[Ground]:
    """A pool whose processes are gone after the test."""
    made = Ground(folder, **options)
    try:
        yield made
    finally:
        for path in (made.state / "allocations").glob("*"):
            made.pool.stop(path.name, 0.0)
        made.close()
