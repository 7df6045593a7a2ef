"""The suite that every pool must pass.

>>> from determined import testing
>>> from determined.master.pools.local import LocalPool
>>> class TestMine(testing.PoolConformance):
...     def make_pool(self, folder):
...         return LocalPool(folder, slots=2)
"""

from __future__ import annotations

import abc
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from determined.master.pools.base import Exited, Gang, Pool, Running
from determined.master.scheduling import Placement
from determined.wire.node_spec import NodeSpec
from determined.wire.outcome import Ending, Outcome
from determined.wire.reports import Source

_FOREVER = "import os, time\nopen('begun', 'w').close()\ntime.sleep(600)\n"
_STUBBORN = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{_FOREVER}"
_REPORTS = """
import json, os, pathlib
folder = json.loads(pathlib.Path(os.environ["DET_NODE_SPEC"]).read_text())["allocation_folder"]
with open(pathlib.Path(folder) / "chief.spool", "w") as spool:
    for number in range(5):
        spool.write(json.dumps({"kind": "status", "status": f"line {number}"}) + "\\n")
    spool.write('{"kind": "sta')
"""


class PoolConformance(abc.ABC):
    """Subclass it as ``TestXxx`` and say how to make a pool; pytest does the rest."""

    # How long the engine may take for anything.
    patience_seconds = 60.0

    @abc.abstractmethod
    def make_pool(self, folder: pathlib.Path) -> Pool:
        """A pool on an engine of its own; made twice for one folder, the pool of a master that was started again."""

    @pytest.fixture
    def pool(self, tmp_path: pathlib.Path) -> Iterator[Pool]:
        pool = self.make_pool(tmp_path / "state")
        yield pool
        for allocation_id in pool.poll():
            pool.stop(allocation_id, 0.0)
            self.ending(pool, allocation_id)
        pool.close()

    @pytest.fixture
    def code(self, tmp_path: pathlib.Path) -> pathlib.Path:
        (tmp_path / "code").mkdir()
        return tmp_path / "code"

    def gang(self, pool: Pool, code: pathlib.Path, script: str, task: str = "job-1", **spec: Any) -> Gang:
        """A gang of one slot on the first machine, that runs a script in the folder of the code."""
        (code / f"{task}.py").write_text(script)
        node = pool.capacity()[0]
        document = NodeSpec(
            name=task,
            run_id=task,
            run_folder=code.parent / "runs" / task,
            code_folder=code,
            entrypoint=["python", f"{task}.py"],
            **spec,
        )
        return Gang(f"{task}.1", Placement({node.id: node.slots[:1]}), [document])

    def start(self, pool: Pool, code: pathlib.Path, script: str, task: str = "job-1", **spec: Any) -> str:
        gang = self.gang(pool, code, script, task, **spec)
        pool.start(gang)
        return gang.allocation_id

    def ending(self, pool: Pool, allocation_id: str) -> Ending:
        """How it ended, once it has."""

        def has_ended() -> bool:
            return isinstance(pool.poll().get(allocation_id), Exited)

        assert self.wait(has_ended), f"{allocation_id} does not end: {pool.engine_log(allocation_id)}"
        sighting = pool.poll()[allocation_id]
        assert isinstance(sighting, Exited)
        return sighting.ending

    def wait(self, condition: Callable[[], bool]) -> bool:
        deadline, pause = time.monotonic() + self.patience_seconds, threading.Event()
        while not condition():
            if time.monotonic() > deadline:
                return False
            pause.wait(0.02)
        return True

    def test_there_are_machines_with_slots(self, pool: Pool) -> None:
        nodes = pool.capacity()
        assert nodes and all(node.slots for node in nodes)
        assert len({node.id for node in nodes}) == len(nodes)
        assert all(len(set(node.slots)) == len(node.slots) for node in nodes)
        assert pool.poll() == {}

    def test_a_gang_runs_and_ends_and_is_told_of_until_forgotten(self, pool: Pool, code: pathlib.Path) -> None:
        id = self.start(pool, code, "print('hello')")
        assert id in pool.poll()
        assert self.ending(pool, id).outcome is Outcome.COMPLETED
        assert self.ending(pool, id).outcome is Outcome.COMPLETED
        pool.forget(id)
        assert id not in pool.poll()
        pool.forget(id)

    def test_a_failure_says_what_the_user_would_see(self, pool: Pool, code: pathlib.Path) -> None:
        id = self.start(pool, code, "raise ValueError('a mistake of mine')")
        ending = self.ending(pool, id)
        assert (ending.outcome, ending.exit_code) == (Outcome.FAILED, 1)
        assert ending.detail.startswith("Traceback") and ending.detail.endswith("ValueError: a mistake of mine")

    def test_started_twice_is_once(self, pool: Pool, code: pathlib.Path) -> None:
        gang = self.gang(pool, code, f"open('count', 'a').write('x')\n{_FOREVER}")
        pool.start(gang)
        pool.start(gang)
        assert self.wait((code / "begun").exists)
        pool.start(gang)
        pool.stop(gang.allocation_id, 0.0)
        self.ending(pool, gang.allocation_id)
        pool.start(gang)
        assert isinstance(pool.poll()[gang.allocation_id], Exited)
        assert (code / "count").read_text() == "x"

    def test_stopped_as_asked(self, pool: Pool, code: pathlib.Path) -> None:
        id = self.start(pool, code, _FOREVER)
        assert self.wait((code / "begun").exists)
        pool.stop(id, 30.0)
        pool.stop(id, 30.0)
        assert self.ending(pool, id).outcome is Outcome.STOPPED
        pool.stop(id, 30.0)
        assert self.ending(pool, id).outcome is Outcome.STOPPED

    def test_what_does_not_stop_is_ended(self, pool: Pool, code: pathlib.Path) -> None:
        id = self.start(pool, code, _STUBBORN)
        assert self.wait((code / "begun").exists)
        pool.stop(id, 600.0)
        assert isinstance(pool.poll()[id], Running)
        pool.stop(id, 0.0)
        assert self.ending(pool, id).outcome in (Outcome.STOPPED, Outcome.LOST)

    def test_stopped_before_it_has_begun(self, pool: Pool, code: pathlib.Path) -> None:
        id = self.start(pool, code, _FOREVER)
        pool.stop(id, 5.0)
        assert self.ending(pool, id).outcome is Outcome.STOPPED

    def test_what_is_unknown_does_not_matter(self, pool: Pool) -> None:
        pool.stop("job-9.1", 0.0)
        pool.forget("job-9.1")
        assert list(pool.unshipped("job-9.1", {})) == []
        assert isinstance(pool.engine_log("job-9.1"), str)
        assert pool.poll() == {}

    def test_a_master_that_is_started_again_finds_its_gangs_by_polling(
        self, pool: Pool, code: pathlib.Path, tmp_path: pathlib.Path
    ) -> None:
        running = self.start(pool, code, _FOREVER, "job-1")
        ended = self.start(pool, code, "raise SystemExit(3)", "job-2")
        assert self.wait((code / "begun").exists)
        self.ending(pool, ended)
        pool.close()
        other = self.make_pool(tmp_path / "state")
        assert isinstance(other.poll()[running], Running)
        assert self.ending(other, ended).exit_code == 3
        other.stop(running, 30.0)
        assert self.ending(other, running).outcome is Outcome.STOPPED
        other.close()

    def test_one_that_runs_is_not_forgotten(self, pool: Pool, code: pathlib.Path) -> None:
        id = self.start(pool, code, _FOREVER)
        assert self.wait((code / "begun").exists)
        pool.forget(id)
        assert isinstance(pool.poll()[id], Running)

    def test_what_was_not_shipped_is_handed_over_whole_and_in_order(self, pool: Pool, code: pathlib.Path) -> None:
        id = self.start(pool, code, _REPORTS)
        assert self.ending(pool, id).outcome is Outcome.COMPLETED
        for acknowledged in (0, 2, 5, 9):
            batches = [each for each in pool.unshipped(id, {Source.CHIEF: acknowledged}) if each.source is Source.CHIEF]
            found = {batch.first + at: report for batch in batches for at, report in enumerate(batch.reports)}
            assert list(found) == list(range(acknowledged, 5))
            assert [report.status for report in found.values()] == [  # type: ignore[union-attr]
                f"line {number}" for number in range(acknowledged, 5)
            ]
            assert all(batch.run_epoch == 1 for batch in batches)

    def test_watching_is_free(self, pool: Pool, code: pathlib.Path) -> None:
        called = threading.Event()
        pool.watch(called.set)
        id = self.start(pool, code, "")
        self.ending(pool, id)
