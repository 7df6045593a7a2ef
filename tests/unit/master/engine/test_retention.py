"""What no policy keeps is removed, what anybody needs is not, and a crash in between leaves nothing half done."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from determined.master.engine.retention import Retention
from determined.master.lifecycle import checkpoints, experiments
from determined.master.records import CheckpointState
from determined.master.states import ExperimentState
from determined.master.store import checkpoints as checkpoint_rows
from determined.master.store import experiments as experiment_rows
from determined.master.store import metrics, tables
from determined.master.store.database import Tx, temporary_database
from determined.storage import FolderStorage
from determined.testing.fake_pool import FakeGang
from determined.wire.outcome import Ending, Outcome
from determined.wire.reports import CheckpointReport, MetricsReport
from tests.unit.master.engine.scenes import Scene

RANDOM = {
    "searcher": {"name": "random", "metric": "loss", "max_trials": 3, "max_length": {"batches": 16}},
    "hyperparameters": {"x": {"type": "double", "minval": 0.0, "maxval": 1.0}},
}


class Saving:
    """A training that saves real checkpoints; the best of each trial is its second."""

    def __init__(self, storage: FolderStorage) -> None:
        self.storage = storage
        self.saved: dict[str, int] = {}
        self.files = {"weights": b"weights"}

    def __call__(self, gang: FakeGang) -> Ending:
        spec = gang.gang.specs[0]
        assert spec.trial is not None
        for step in range(spec.trial.steps_completed + 4, 17, 4):
            self.report(gang, step)
        return Ending(outcome=Outcome.COMPLETED, exit_code=0)

    def report(self, gang: FakeGang, step: int) -> str:
        staged = self.storage.begin()
        for path, content in self.files.items():
            (staged.path / path).parent.mkdir(exist_ok=True)
            (staged.path / path).write_bytes(content)
        name = staged.publish()
        self.saved[name] = step
        gang.report(MetricsReport(group="validation", steps_completed=step, metrics={"loss": abs(step - 8)}, time=1.0))
        resources = {path: len(content) for path, content in self.files.items()}
        gang.report(CheckpointReport(uuid=name, steps_completed=step, resources=resources, time=1.0))
        return name


class Kept(Scene):
    """A scene with a real checkpoint storage, and somebody who tidies it."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.storage = FolderStorage(self.settings.checkpoints_dir)
        self.saving = Saving(self.storage)
        self.retention = Retention(self.database, self.engine.site, lambda: self.now)
        self.retention.remove()

    def left(self) -> list[int]:
        """The steps of the checkpoints of which there are files."""
        return sorted(self.saving.saved[name] for name in self.storage.list())


@pytest.fixture
def scene(tmp_path: pathlib.Path) -> Iterator[Kept]:
    with temporary_database(str(tmp_path / "master.db")) as database:
        yield Kept(database, tmp_path)


def test_an_ended_experiment_keeps_the_best_and_the_latest_of_each_trial(scene: Kept) -> None:
    scene.submit(**RANDOM)
    scene.play(scene.saving)
    scene.retention.remove()
    assert scene.left() == [8, 8, 8, 16, 16, 16]
    experiment = scene.experiment()
    assert (experiment.checkpoint_count, experiment.checkpoint_size) == (6, 42)


def test_there_are_never_many_more_than_are_kept(scene: Kept) -> None:
    scene.submit(**RANDOM)
    scene.engine.round()
    gangs = scene.pool.running
    for step in range(4, 17, 4):
        for gang in gangs:
            scene.saving.report(gang, step)
            scene.ship(gang)
        scene.retention.remove()
        assert len(scene.left()) <= 2 * len(gangs)


def test_a_policy_that_keeps_nothing_spares_what_running_trials_need(scene: Kept) -> None:
    storage = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 0}
    scene.submit(**RANDOM, checkpoint_storage=storage)
    scene.engine.round()
    first, second, _ = scene.pool.running
    for gang in (first, second):
        for step in (4, 8):
            scene.saving.report(gang, step)
        scene.ship(gang)
    scene.retention.remove()
    assert scene.left() == [8, 8]
    scene.pool.end(first.gang.allocation_id, Outcome.COMPLETED)
    scene.engine.round()
    scene.retention.remove()
    assert scene.left() == [8]
    scene.play(scene.saving)
    scene.retention.remove()
    assert scene.left() == []


def test_what_was_marked_before_a_crash_is_removed_after_it(scene: Kept) -> None:
    scene.submit(**RANDOM)
    scene.play(scene.saving)
    for name in scene.database.read_now(checkpoints.deletable, 1):
        scene.database.write_now(checkpoints.mark_deleting, name)
        scene.storage.delete(name)  # the files went, and then the master
        break
    fresh = Retention(scene.database, scene.engine.site, lambda: scene.now)
    fresh.remove()
    assert scene.left() == [8, 8, 8, 16, 16, 16]
    assert scene.database.read_now(checkpoint_rows.deleting) == []


def test_some_files_of_a_checkpoint_are_removed_and_the_rest_is_whole(scene: Kept) -> None:
    scene.saving.files = {"model.bin": b"12345", "optimizer/a.bin": b"1", "optimizer/b.bin": b"2"}
    scene.submit(**RANDOM)
    scene.play(scene.saving)
    scene.retention.remove()
    uuid = scene.storage.list()[0]
    scene.database.write_now(checkpoints.mark_deleting, uuid, ["optimizer/**"])
    scene.retention.remove()
    left = scene.database.read_now(checkpoint_rows.require, uuid)
    assert (left.state, left.resources, left.size) == (CheckpointState.PARTIALLY_DELETED, {"model.bin": 5}, 5)
    scene.storage.verify(uuid)
    assert [*scene.storage.files(uuid)] == ["model.bin"]
    scene.database.write_now(checkpoints.mark_deleting, uuid, ["*"])
    scene.retention.remove()
    assert scene.database.read_now(checkpoint_rows.require, uuid).state is CheckpointState.DELETED
    assert uuid not in scene.storage.list()


def test_what_cannot_be_removed_is_tried_again(scene: Kept, caplog: pytest.LogCaptureFixture) -> None:
    scene.submit(**RANDOM)
    scene.play(scene.saving)
    [name, *_] = scene.database.read_now(checkpoints.deletable, 1)
    with scene.storage.reading(name):
        scene.retention.remove()
        assert name in scene.storage.list()
        assert "is tried again" in caplog.text
    scene.now += 60.0
    scene.retention.remove()
    assert name not in scene.storage.list()


def test_a_deleted_experiment_leaves_nothing(scene: Kept) -> None:
    scene.submit(**RANDOM)
    scene.play(scene.saving)
    run = scene.settings.runs_dir / "trial-1"
    log = scene.settings.logs_dir / "trial-1"
    for folder in (run, log):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    scene.database.write_now(experiments.delete, 1)
    assert scene.experiment().state is ExperimentState.DELETING
    scene.retention.remove()
    assert scene.database.read_now(experiment_rows.get, 1) is None
    assert (scene.left(), run.exists(), log.exists()) == ([], False, False)
    assert scene.database.read_now(metrics.rows, 1) == []

    def count(tx: Tx) -> list[int]:
        return [
            tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in (tables.trials, tables.allocations, tables.tokens, tables.spools, tables.checkpoints)
        ]

    assert scene.database.read_now(count) == [0] * 5


def test_old_logs_go_and_those_of_what_runs_stay(scene: Kept) -> None:
    scene.retention = Retention(scene.database, scene.engine.site, lambda: scene.now)
    scene.submit(**RANDOM, retention_policy={"log_retention_days": 0})
    scene.submit(**RANDOM)
    scene.play(scene.saving)
    scene.submit(**RANDOM, retention_policy={"log_retention_days": 0})
    scene.engine.round()
    for trial_id in (1, 4, 7):
        (scene.settings.logs_dir / f"trial-{trial_id}").mkdir(parents=True)
    scene.retention.expire()
    assert sorted(folder.name for folder in scene.settings.logs_dir.iterdir()) == ["trial-4", "trial-7"]


def test_states_of_removed_checkpoints(scene: Kept) -> None:
    scene.submit(**RANDOM)
    scene.play(scene.saving)
    scene.retention.remove()
    found = scene.database.read_now(checkpoint_rows.all_of, experiment_id=1)
    assert len(found) == 12
    kept = [checkpoint for checkpoint in found if checkpoint.state is CheckpointState.COMPLETED]
    assert {checkpoint.uuid for checkpoint in kept} == {*scene.storage.list()}
