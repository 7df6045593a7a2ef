"""A database with a project in it, and short words for what happens to experiments: tests read like stories."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, TypeVar

import pytest
import sqlalchemy as sa
from typing_extensions import ParamSpec

from determined import config as configs
from determined.master.lifecycle import allocations, checkpoints, experiments, queue, searching, trials
from determined.master.operations import Operation
from determined.master.records import Allocation, Checkpoint, Experiment, Trial
from determined.master.scheduling import Placement
from determined.master.store import allocations as allocation_rows
from determined.master.store import experiments as experiment_rows
from determined.master.store import metrics, searches, tables
from determined.master.store import trials as trial_rows
from determined.master.store.database import Database, Tx, open_database, temporary_database
from determined.master.store.series import Rows
from determined.search.method import Action
from determined.wire.outcome import Ending, Outcome
from determined.wire.reports import CheckpointReport

P = ParamSpec("P")
T = TypeVar("T")

SCRIPTED = "tests.unit.master.lifecycle.scripted:Scripted"
HERE = Placement({"here": (0,)})


@dataclasses.dataclass
class World:
    """What a test does to the database, one transaction each."""

    db: Database
    clock: list[float]

    def do(self, change: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.db.write_now(change, *args, **kwargs)

    def look(self, read: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.db.read_now(read, *args, **kwargs)

    def later(self, seconds: float = 1.0) -> None:
        self.clock[0] += seconds

    # Experiments.

    def create(self, searcher: dict[str, Any] | None = None, **config: Any) -> Experiment:
        new = {key: config.pop(key) for key in _NEW if key in config}
        written = {"searcher": searcher or {"name": "single", "metric": "loss"}, "entrypoint": "x:Y", **config}
        return self.do(
            experiments.create, experiments.NewExperiment(config=configs.load(written), **{"seed": 7, **new})
        )

    def scripted(self, script: dict[str, Any] | None = None, trials: int = 1, **config: Any) -> Experiment:
        options = {"trials": trials, "script": script or {}}
        if "target" in config:
            options["target"] = config.pop("target")
        return self.create({"name": SCRIPTED, "metric": "loss", "options": options}, **config)

    def experiment(self, experiment_id: int) -> Experiment:
        return self.look(experiment_rows.require, experiment_id)

    def operate(self, experiment_id: int, operation: Operation) -> Experiment:
        return self.do(experiments.operate, experiment_id, operation)

    def heard(self, experiment_id: int) -> list[str]:
        """What its search was told, as the scripted method writes it."""
        told = []
        for event in self.look(searches.events, experiment_id):
            match event.kind:
                case "validation":
                    told.append(f"validation {event.trial} {event.told['batches']}")
                case "exit":
                    told.append(f"exit {event.trial} {event.told}")
                case kind:
                    told.append(kind)
        return told

    def replayed(self, experiment_id: int) -> tuple[Any, list[list[Action]], list[list[Action]]]:
        """What its search knows when replayed from the first event; what it answers then, and what it answered."""
        events = self.look(searches.events, experiment_id)
        experiment = self.experiment(experiment_id)
        method, answers = searching.replay(events, configs.load(experiment.config), experiment.seed)
        return method.dump(), answers, [searching.answered(event) for event in events]

    # Trials.

    def trials(self, experiment_id: int) -> list[Trial]:
        return self.look(trial_rows.of_experiment, experiment_id)

    def trial(self, trial: Trial) -> Trial:
        return self.look(trial_rows.require, trial.id)

    def states(self, experiment_id: int) -> list[str]:
        return [trial.state.value for trial in self.trials(experiment_id)]

    def assign(self, trial: Trial) -> Allocation | None:
        return self.do(allocations.assign, f"trial-{trial.id}", HERE, "local")

    def start(self, trial: Trial) -> Allocation:
        allocation = self.assign(trial)
        assert allocation is not None
        return self.do(allocations.record_running, allocation.id)

    def live(self, trial: Trial) -> Allocation:
        allocation = self.look(allocation_rows.live_of, f"trial-{trial.id}")
        assert allocation is not None
        return allocation

    def validate(self, trial: Trial, steps: int, loss: float, **more: Any) -> Trial:
        return self.do(_validate, trial, steps, {"loss": loss, **more})

    def checkpoint(self, trial: Trial, steps: int, uuid: str | None = None) -> Checkpoint:
        uuid = uuid or f"{trial.id:08}-{steps}"
        report = CheckpointReport(uuid=uuid, steps_completed=steps, resources={"a": 10, "b": 5}, time=self.clock[0])
        return self.do(checkpoints.record, self.live(trial), report)

    def exit(self, trial: Trial, outcome: Outcome = Outcome.COMPLETED, **ending: Any) -> Trial:
        ending = {"exit_code": 0 if outcome is Outcome.COMPLETED else 1, **ending}
        self.do(allocations.record_exit, self.live(trial).id, Ending(outcome=outcome, **ending))
        return self.trial(trial)

    def train(self, trial: Trial, loss: float = 1.0, steps: int = 100) -> Trial:
        """From its place in the queue to its end."""
        self.start(trial)
        self.validate(trial, steps, loss)
        self.checkpoint(trial, steps)
        return self.exit(trial)

    def queue(self) -> list[str]:
        return [request.id for request in self.look(queue.requests) if request.running is None]


_NEW = [field.name for field in dataclasses.fields(experiments.NewExperiment) if field.name != "config"]


def _validate(tx: Tx, trial: Trial, steps: int, values: dict[str, Any]) -> Trial:
    epoch = trial_rows.require(tx, trial.id).run_epoch
    metrics.insert_many(tx, trial.id, "validation", epoch, Rows([steps], [tx.now], [values]))
    return trials.feed_validation(tx, trial, values, steps)


def add_project(tx: Tx, archived: bool = False) -> int:
    """A project, in a workspace of its own."""
    inserted = tx.execute(sa.insert(tables.workspaces), {"name": f"w{tx.now}{archived}", "created_at": tx.now})
    assert inserted.inserted_primary_key is not None
    values = {
        "workspace_id": inserted.inserted_primary_key[0],
        "name": "p",
        "archived": archived,
        "created_at": tx.now,
    }
    project = tx.execute(sa.insert(tables.projects), values).inserted_primary_key
    assert project is not None
    return int(project[0])


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A database with a project in it, to be copied: making the tables takes longer than most tests."""
    path = tmp_path_factory.mktemp("empty") / "master.db"
    with temporary_database(str(path)) as db:
        db.write_now(add_project)
    return path


@pytest.fixture
def world(tmp_path: pathlib.Path, empty_database: pathlib.Path) -> Iterator[World]:
    with open_world(tmp_path, empty_database) as world:
        yield world


@contextlib.contextmanager
def open_world(folder: pathlib.Path, empty_database: pathlib.Path) -> Iterator[World]:
    """A world of its own in a folder."""
    clock = [1_700_000_000.0]
    shutil.copy(empty_database, folder / "master.db")
    db = open_database(str(folder / "master.db"), lambda: clock[0])

    @sa.event.listens_for(db.engine, "connect")
    def hurry(connection: Any, _: Any) -> None:
        # Nothing here pulls the plug, and a sync for every change is most of what these tests would do.
        connection.execute("PRAGMA synchronous = OFF")

    try:
        yield World(db, clock)
    finally:
        db.close()
