"""A run of this machine is brought to a master whole, and the same run is never there twice."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Iterator

import pytest

from determined import core, errors
from determined.client.transport import Session
from determined.core.run_folder import RunFolder, runs_in
from determined.core.upload import upload
from tests.unit.core.reports_master import RunsMaster


@pytest.fixture
def master() -> Iterator[RunsMaster]:
    with RunsMaster() as master:
        yield master


@pytest.fixture
def session(master: RunsMaster) -> Iterator[Session]:
    session = Session(master.url, "mine", attempts=1)
    yield session
    session.close()


def trained(runs_dir: pathlib.Path, steps: int = 25) -> RunFolder:
    with core.init(config={"name": "digits", "labels": ["a"]}, hparams={"lr": 0.1}, name="digits") as context:
        go_on(context, 0, steps)
    (run,) = runs_in(runs_dir)
    return run


def go_on(context: core.Context, start: int, stop: int) -> None:
    for step in range(start + 1, stop + 1):
        context.train.report_training_metrics(step, {"loss": 1 / step})
        if step % 10 == 0 and step <= 100:
            with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
                (path / "weights").write_text(str(step))


def test_everything_is_there_however_often_it_is_uploaded(
    runs_dir: pathlib.Path, master: RunsMaster, session: Session
) -> None:
    run = trained(runs_dir)
    views = [upload(run.path, session) for _ in range(3)]
    assert {view.trial_id for view in views} == {1} and len(master.runs) == 1
    known = master.run()
    assert known["rows"] == {("training", step): {"loss": 1 / step} for step in range(1, 26)}
    assert [each["steps_completed"] for each in known["checkpoints"].values()] == [20]  # the run itself deleted one
    (first, *_) = known["checkpoints"].values()
    assert first["storage"] == {"type": "directory", "container_path": str(run.checkpoints)}
    assert first["resources"]["weights"] == 2
    described = master.registered[0]
    assert (described["name"], described["labels"], described["hparams"]) == ("digits", ["a"], {"lr": 0.1})
    assert described["state"] == "completed" and described["started_at"] == next(run.rows())["time"]
    assert master.ended[-1]["ending"] == {"outcome": "completed", "exit_code": 0}


def test_a_run_that_went_on_is_brought_up_to_date(runs_dir: pathlib.Path, master: RunsMaster, session: Session) -> None:
    run = trained(runs_dir)
    upload(run.path, session)
    with core.init(latest_checkpoint=str(run.path)) as context:
        go_on(context, 20, 40)
    upload(run.path, session)
    assert sorted(steps for _, steps in master.run()["rows"]) == list(range(1, 41))
    assert sorted(each["steps_completed"] for each in master.run()["checkpoints"].values()) == [20, 30, 40]


def test_a_copy_of_the_folder_is_the_same_run(
    runs_dir: pathlib.Path, tmp_path: pathlib.Path, master: RunsMaster, session: Session
) -> None:
    run = trained(runs_dir)
    upload(run.path, session)
    upload(shutil.copytree(run.path, tmp_path / "copy"), session)
    assert len(master.runs) == 1


def test_a_way_that_breaks_in_the_middle(runs_dir: pathlib.Path, master: RunsMaster, session: Session) -> None:
    run = trained(runs_dir, steps=2500)
    master.trouble = lambda number: 503 if number == 2 else None
    with pytest.raises(errors.DeterminedError):
        upload(run.path, session)
    upload(run.path, session)
    assert sorted(steps for _, steps in master.run()["rows"]) == list(range(1, 2501))


def test_a_run_that_failed_is_shown_as_that(runs_dir: pathlib.Path, master: RunsMaster, session: Session) -> None:
    with pytest.raises(ZeroDivisionError), core.init(name="a") as context:
        go_on(context, 0, 3)
        raise ZeroDivisionError
    (run,) = runs_in(runs_dir)
    upload(run.path, session)
    assert master.registered[0]["state"] == "error"
    assert master.ended[0]["ending"]["outcome"] == "failed"


def test_a_run_in_training_is_left_alone(runs_dir: pathlib.Path, session: Session) -> None:
    with core.init(name="a") as context:
        go_on(context, 0, 3)
        with pytest.raises(errors.Refused, match="still being trained"):
            upload(context.run.path, session)


def test_a_folder_that_is_no_run(tmp_path: pathlib.Path, session: Session) -> None:
    with pytest.raises(errors.BadRequest, match="not the folder of a run"):
        upload(tmp_path, session)


def test_numbers_that_are_none_come_through(runs_dir: pathlib.Path, master: RunsMaster, session: Session) -> None:
    with core.init(name="a") as context:
        context.train.report_training_metrics(1, {"loss": float("nan")})
    (run,) = runs_in(runs_dir)
    upload(run.path, session)
    assert json.dumps(master.run()["rows"]["training", 1]) == '{"loss": NaN}'
