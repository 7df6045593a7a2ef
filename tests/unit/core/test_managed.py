"""A run that a master started, with no master there at all: everything it is to hear is in the spool, in order."""

from __future__ import annotations

import os
import pathlib
import signal
from typing import Any

import pytest

import determined as det
from determined import core, errors
from determined.core.run_folder import RunFolder
from determined.storage.folder import FolderStorage
from determined.wire import reports
from tests.unit.core.paper_master import PaperMaster
from tests.unit.core.reports_master import ReportsMaster


@pytest.fixture
def master(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> PaperMaster:
    (tmp_path / "state").mkdir()
    return PaperMaster(tmp_path / "state", monkeypatch)


def train(context: core.Context, start: int, stop: int) -> str:
    storage_id = ""
    for step in range(start + 1, stop + 1):
        context.train.report_training_metrics(step, {"loss": 1 / step})
        if step % 10 == 0:
            context.train.report_validation_metrics(step, {"acc": step / 100})
            with context.checkpoint.store_path({"steps_completed": step}) as (path, storage_id):
                (path / "weights").write_text(str(step))
    return storage_id


def test_a_trial_says_everything_once_and_in_order(master: PaperMaster) -> None:
    master.assign({"searcher": {"metric": "acc", "smaller_is_better": False}})
    with core.init() as context:
        assert (context.hparams, context.seed, context.steps_completed) == ({"lr": 0.5}, 11, 0)
        last = train(context, 0, 20)
        context.train.set_status("nearly there")
        context.train.report_progress(0.5)
        context.train.set_metadata({"note": {"a": 1}})
    heard = master.heard
    metrics = [(report.group, report.steps_completed) for report in master.of(reports.MetricsReport)]
    assert [step for group, step in metrics if group == "training"] == list(range(1, 21))
    assert [step for group, step in metrics if group == "validation"] == [10, 20]
    first, second = master.of(reports.CheckpointReport)
    assert (second.uuid, second.steps_completed) == (last, 20)
    assert second.storage == {"type": "directory", "container_path": str(master.storage)}
    assert second.metadata["steps_completed"] == 20 and second.resources["weights"] == 2
    # Whoever has the checkpoint has its metrics: that is the cut.
    assert len([each for each in heard[: heard.index(first)] if isinstance(each, reports.MetricsReport)]) == 11
    assert master.of(reports.StatusReport) == [reports.StatusReport(status="nearly there")]
    assert master.of(reports.ProgressReport) == [reports.ProgressReport(progress=0.5, steps_completed=20)]
    assert master.of(reports.MetadataReport) == [reports.MetadataReport(metadata={"note": {"a": 1}})]
    assert sorted(FolderStorage(master.storage).list()) == sorted([first.uuid, second.uuid])
    run = RunFolder.at(master.run_folder)
    assert run is not None and run.label.state == "completed"
    assert len(list(run.rows("training"))) == 20


def test_the_master_decides_what_is_deleted(master: PaperMaster) -> None:
    master.assign({"searcher": {"metric": "acc", "smaller_is_better": False}})
    with core.init() as context:
        context.keep_by_policy()
        train(context, 0, 40)
        assert len(context.checkpoint.list()) == 4
        gone = context.checkpoint.list()[0].storage_id
        context.checkpoint.delete(gone)
    assert [report.uuid for report in master.of(reports.CheckpointGoneReport)] == [gone]


def test_a_trial_goes_on_where_the_master_says(master: PaperMaster) -> None:
    master.assign()
    with core.init() as context:
        cut = train(context, 0, 10)
        train(context, 10, 15)
    master.assign(latest_checkpoint=cut, steps_completed=10)
    with core.init() as context:
        assert context.found is not None
        assert (context.found.storage_id, context.steps_completed) == (cut, 10)
        assert context.info is not None and context.info.latest_checkpoint == cut
        assert context.info.trial.steps_completed == 10
        assert context.resume("latest") == context.found
        assert context.resume("anything-else") == context.found
        train(context, 10, 20)
    assert [report.steps_completed for report in master.of(reports.MetricsReport)] == [*range(11, 20), 20, 20]
    run = RunFolder.at(master.run_folder)
    assert run is not None and run.run_epoch == 2
    assert [row["steps_completed"] for row in run.rows("training")] == list(range(1, 21))


def test_a_trial_without_a_checkpoint_begins_anew(master: PaperMaster) -> None:
    master.assign()
    with core.init() as context:
        train(context, 0, 5)
    master.assign()
    with core.init() as context:
        assert context.found is None and context.steps_completed == 0
        train(context, 0, 3)
    run = RunFolder.at(master.run_folder)
    assert run is not None and [row["steps_completed"] for row in run.rows()] == [1, 2, 3]


def test_what_nobody_was_told_of_is_not_left_behind(master: PaperMaster) -> None:
    """Killed in the moment between a checkpoint and the word of it."""
    master.assign()
    with core.init() as context:
        first, second = train(context, 0, 10), train(context, 10, 20)
    spool = master.allocation / "chief.spool"
    lines = spool.read_bytes().splitlines(keepends=True)
    spool.write_bytes(b"".join(line for line in lines if second.encode() not in line))
    for _ in range(3):
        master.assign(latest_checkpoint=first, steps_completed=10)
        with core.init() as context:
            train(context, 10, 15)
        assert list(FolderStorage(master.storage).list()) == [first]
    master.assign(latest_checkpoint=first, steps_completed=10)
    with core.init() as context:
        third = train(context, 10, 20)
    master.assign(latest_checkpoint=first, steps_completed=10)
    with core.init():
        pass
    assert sorted(FolderStorage(master.storage).list()) == sorted([first, third])  # the master knows what it does


def test_a_trial_may_begin_with_the_weights_of_another(master: PaperMaster) -> None:
    other = FolderStorage(master.storage).begin()
    (other.path / "metadata.json").write_text('{"steps_completed": 50}')
    other.publish()
    for _ in range(2):  # the second attempt finds that the first one left nothing to go on from
        master.assign(latest_checkpoint=other.storage_id)
        with core.init() as context:
            assert context.found is not None and context.found.storage_id == other.storage_id
            assert context.steps_completed == 0
            train(context, 0, 3)
        run = RunFolder.at(master.run_folder)
        assert run is not None and [row["steps_completed"] for row in run.rows()] == [1, 2, 3]


def test_a_checkpoint_that_is_kept_elsewhere_is_named_by_its_folder(
    master: PaperMaster, tmp_path: pathlib.Path
) -> None:
    other = FolderStorage(tmp_path / "elsewhere").begin()
    (other.path / "metadata.json").write_text('{"steps_completed": 50}')
    other.publish()
    master.assign(latest_checkpoint=str(tmp_path / "elsewhere" / other.storage_id))
    with core.init() as context:
        assert context.found is not None and context.found.storage_id == other.storage_id
        with context.checkpoint.reading(context.found.path) as path:
            assert (path / "metadata.json").exists()


def test_a_checkpoint_that_is_not_there(master: PaperMaster) -> None:
    master.assign(latest_checkpoint="0f0f0f0f-0000-4000-8000-000000000000", steps_completed=10)
    with pytest.raises(errors.CheckpointNotFound, match="0f0f0f0f"):
        core.init()


def test_the_search_has_the_last_word_about_hyperparameters(master: PaperMaster) -> None:
    master.assign(hparams={"lr": 0.1})
    with core.init(hparams={"lr": 9, "width": 3}, config={"name": "mine"}) as context:
        assert context.hparams == {"lr": 0.1, "width": 3}
        assert context.config == {"name": "digits"}


def test_asked_to_stop_it_says_that_it_is_not_done(master: PaperMaster) -> None:
    master.assign()
    with core.init() as context:
        os.kill(os.getpid(), signal.SIGTERM)
        assert context.preempt.should_preempt()
        train(context, 0, 10)
    run = RunFolder.at(master.run_folder)
    assert run is not None and run.label.state == "interrupted"


def test_hyperparameters_that_are_not_worth_it(master: PaperMaster) -> None:
    master.assign()
    with pytest.raises(SystemExit) as left, core.init():
        raise det.InvalidHP("lr is too large")
    assert left.value.code == 0
    assert master.of(reports.EarlyExitReport) == [
        reports.EarlyExitReport(reason="invalid_hp", message="lr is too large")
    ]


def test_progress_is_not_written_for_every_call(master: PaperMaster) -> None:
    master.assign()
    with core.init() as context:
        for step in range(5000):
            context.train.report_progress(step / 4999)
    said = master.of(reports.ProgressReport)
    assert said[-1].progress == 1.0 and len(said) < 100


def test_a_checkpoint_without_steps_is_of_the_last_report(master: PaperMaster) -> None:
    master.assign()
    with core.init() as context:
        context.train.report_training_metrics(33, {"loss": 1.0})
        with context.checkpoint.store_path():
            pass
    assert [report.steps_completed for report in master.of(reports.CheckpointReport)] == [33]


@pytest.mark.parametrize(
    ("max_length", "target", "lengths"),
    [
        ({"epochs": 20}, {"target": 5, "target_unit": "epochs"}, (5, 0.25)),
        ({"epochs": 20}, {}, (20, 1.0)),
        (None, {"target": 4, "target_unit": "epochs"}, (4, 1.0)),
        ({"batches": 100}, {"target": 33.4}, (34, 0.34)),
    ],
)
def test_operations_go_up_to_the_target(
    master: PaperMaster, max_length: dict[str, int] | None, target: dict[str, Any], lengths: tuple[int, float]
) -> None:
    master.assign({"searcher": {"max_length": max_length}} if max_length else {}, **target)
    with core.init() as context:
        operation = next(iter(context.searcher.operations()))
        assert operation.length == lengths[0]
        operation.report_completed(0.5)
    assert master.of(reports.ProgressReport)[-1].progress == pytest.approx(lengths[1])


def test_a_job_that_trains_nothing_leaves_nothing(master: PaperMaster) -> None:
    master.assign({"data": {"url": "here"}}, task_type="JOB")
    with core.init() as context:
        assert context.info is not None and context.info.user_data == {"url": "here"}
        with pytest.raises(RuntimeError, match="not a trial"):
            context.info.trial  # noqa: B018 - asking is what raises
    assert master.raw == []
    left = {path.name for path in master.run_folder.iterdir()}
    assert left <= {"run.json", ".lock", "config.json"}


def test_a_job_goes_on_from_what_it_saved(master: PaperMaster) -> None:
    master.assign(task_type="JOB")
    with core.init() as context, context.checkpoint.store_path({"steps_completed": 4}) as (_, storage_id):
        pass
    master.assign(task_type="JOB")
    with core.init() as context:
        assert context.found is not None and context.found.storage_id == storage_id
        assert context.found.steps_completed == 4


class Archive(ReportsMaster):
    """Knows checkpoints."""

    def __init__(self, checkpoints: list[dict[str, Any]]) -> None:
        super().__init__()
        self.checkpoints = checkpoints

    def other(self, path: str, body: Any) -> tuple[int, Any]:
        if path.startswith("/trials/5/checkpoints"):
            return 200, {"items": self.checkpoints, "total": len(self.checkpoints), "offset": 0, "limit": 100}
        for each in self.checkpoints:
            if path.startswith("/checkpoints/") and each["uuid"].startswith(path.removeprefix("/checkpoints/")):
                return 200, each
        return super().other(path, body)


def known(folder: pathlib.Path, steps: int, metric: float | None) -> dict[str, Any]:
    saved = FolderStorage(folder).begin()
    (saved.path / "metadata.json").write_text(f'{{"steps_completed": {steps}}}')
    return {
        "uuid": saved.publish(),
        "state": "COMPLETED",
        "steps_completed": steps,
        "searcher_metric": metric,
        "storage": {"type": "directory", "container_path": str(folder)},
        "reported_at": float(steps),
    }


def test_a_job_finds_what_a_trial_has_learnt(master: PaperMaster, tmp_path: pathlib.Path) -> None:
    rated = [known(tmp_path / "there", 20, 0.1), known(tmp_path / "there", 30, 0.2)]  # the best first
    unrated = [known(tmp_path / "there", 20, None), known(tmp_path / "there", 30, None)]
    with Archive(rated) as archive:
        master.url = archive.url
        master.assign(task_type="JOB")
        with core.init() as context:
            assert context.locate(trial=5).storage_id == rated[0]["uuid"]
            assert context.locate(rated[1]["uuid"][:8]).path == tmp_path / "there" / rated[1]["uuid"]
            assert context.locate(str(tmp_path / "there" / rated[1]["uuid"])).steps_completed == 30
            archive.checkpoints = unrated
            assert context.locate(trial="5").storage_id == unrated[1]["uuid"]
            for wish, problem in (
                ({"trial": 6}, "no trial 6"),
                ({"trial": "x"}, "has a number"),
                ({}, "trial_id="),
                ({"checkpoint": "0000"}, "no checkpoint 0000"),
            ):
                with pytest.raises(errors.CheckpointNotFound, match=problem):
                    context.locate(**wish)
            archive.checkpoints = []
            with pytest.raises(errors.CheckpointNotFound, match="trial 5 has no checkpoint"):
                context.locate(trial=5)
