"""A master without its API: a database, an engine and an imaginary pool; and trainings that take no time."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from determined import config as configs
from determined.master.engine.loop import Engine
from determined.master.lifecycle import experiments, reports
from determined.master.records import Experiment, Trial
from determined.master.scheduling import Node
from determined.master.settings import Settings
from determined.master.store import experiments as experiment_rows
from determined.master.store import tables
from determined.master.store import trials as trial_rows
from determined.master.store.database import Database, Tx
from determined.testing.fake_pool import FakeGang, FakePool
from determined.wire.outcome import Ending, Outcome
from determined.wire.reports import CheckpointReport, MetricsReport, ReportReply, Source

NODES = (Node("one", (0, 1)), Node("two", (0, 1)))


def prepare(tx: Tx) -> None:
    """What every database has: a project."""
    workspace = {"id": 1, "name": "Uncategorized", "immutable": True, "created_at": 0.0}
    tx.execute(sa.insert(tables.workspaces), workspace)
    tx.execute(
        sa.insert(tables.projects),
        {"id": 1, "workspace_id": 1, "name": "Uncategorized", "immutable": True, "created_at": 0.0},
    )


class Scene:
    """One pool and all that is around it. ``restart`` throws the master away and makes a new one."""

    def __init__(self, database: Database, folder: pathlib.Path, nodes: Sequence[Node] = NODES) -> None:
        self.database = database
        self.settings = Settings(dir=folder)
        self.pool = FakePool(nodes)
        self.now = 0.0
        database.write_now(prepare)
        self.engine = self._engine()

    def _engine(self) -> Engine:
        return Engine(self.database, {"default": self.pool}, self.settings, lambda: self.now)

    def restart(self) -> None:
        """A new master on the same database and the same world."""
        self.database.write_now(lambda tx: tx.memory.clear())
        self.engine = self._engine()

    def submit(self, **written: Any) -> int:
        """A new experiment; its id."""
        config = configs.load({"entrypoint": "model_def:Digits", **written})
        return self.database.write_now(experiments.create, experiments.NewExperiment(config=config)).id

    def experiment(self, experiment_id: int = 1) -> Experiment:
        return self.database.read_now(experiment_rows.require, experiment_id)

    def trials(self, experiment_id: int = 1) -> list[Trial]:
        return self.database.read_now(trial_rows.of_experiment, experiment_id)

    def ship(self, gang: FakeGang, source: Source = Source.CHIEF) -> ReportReply:
        """Send what is in a spool."""
        return self.database.write_now(reports.ingest, gang.gang.allocation_id, gang.batch(source))

    def play(self, train: Callable[[FakeGang], Ending], rounds: int = 200) -> None:
        """Rounds of the engine, in which every gang trains to its end, until nothing is left to do."""
        for _ in range(rounds):
            self.engine.round()
            self.now += 1.0
            running = self.pool.running
            if not running and not self.pool.gangs:
                return
            for gang in running:
                ending = train(gang)
                self.ship(gang)
                self.pool.end(gang.gang.allocation_id, ending)
        raise AssertionError(f"still running after {rounds} rounds: {[*self.pool.gangs]}")


@dataclasses.dataclass
class Training:
    """Trains in no time: validates and saves every ``every`` steps up to ``length``, or to its target."""

    length: int = 16
    every: int = 4
    loss: Callable[[Mapping[str, Any], int], float] = lambda hparams, step: float(hparams.get("x", 1.0)) / step

    def __call__(self, gang: FakeGang) -> Ending:
        spec = gang.gang.specs[0]
        assert spec.trial is not None
        end = int(min(spec.trial.target or self.length, self.length))
        for step in range(spec.trial.steps_completed + self.every, end + 1, self.every):
            self.report(gang, step)
        return Ending(outcome=Outcome.COMPLETED, exit_code=0)

    def report(self, gang: FakeGang, step: int) -> None:
        """What there is to tell after so many steps: metrics of both groups, and a checkpoint."""
        spec = gang.gang.specs[0]
        assert spec.trial is not None
        loss = self.loss(spec.trial.hparams, step)
        for group in ("training", "validation"):
            gang.report(MetricsReport(group=group, steps_completed=step, metrics={"loss": loss}, time=float(step)))
        gang.report(CheckpointReport(uuid=f"{gang.gang.allocation_id}-{step}", steps_completed=step, time=float(step)))
