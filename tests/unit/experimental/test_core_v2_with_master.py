"""A script that reports to a master though none started it: online, offline, again, and from another machine."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from determined.client.transport import Session
from determined.core.run_folder import runs_in
from determined.core.upload import upload
from determined.experimental import core_v2
from tests.unit.core.reports_master import RunsMaster

MINE = core_v2.Config(name="mine", hparams={"lr": 0.5}, external_experiment_id="study", external_trial_id="7")


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    core_v2.close()


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[RunsMaster]:
    with RunsMaster() as master:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("DET_MASTER", master.url)
        monkeypatch.setenv("DET_TOKEN", "mine")
        yield master


def train(start: int, stop: int, save_at: int | None = None) -> None:
    for step in range(start + 1, stop + 1):
        core_v2.train.report_training_metrics(step, {"loss": 1 / step})
        if step == save_at:
            with core_v2.checkpoint.store_path({"steps_completed": step}) as (path, _):
                (path / "weights").write_text(str(step))


def steps_of(master: RunsMaster) -> list[int]:
    return sorted(steps for _, steps in master.run()["rows"])


def leftovers(runs_dir: pathlib.Path) -> list[pathlib.Path]:
    return list(runs_dir.rglob("*.spool"))


def test_it_is_a_trial_of_the_master(runs_dir: pathlib.Path, master: RunsMaster) -> None:
    core_v2.init(config=MINE)
    assert (core_v2.info.trial.trial_id, core_v2.info.cluster_id) == (1, "here")
    assert core_v2.info.master_url == master.url
    train(0, 5, save_at=4)
    core_v2.train.report_progress(0.5)
    # While it runs, not only at its end.
    master.wait(lambda: len(master.run()["checkpoints"]) == 1 and len(master.run()["rows"]) == 5)
    core_v2.close()
    assert {"kind": "progress", "progress": 0.5, "steps_completed": 5} in master.run()["other"]
    assert master.ended == [{"run_epoch": 1, "ending": {"outcome": "completed", "exit_code": 0}}]
    assert master.registered[0]["hparams"] == {"lr": 0.5}
    assert leftovers(runs_dir) == []
    (run,) = runs_in(runs_dir)
    assert run.label.state == "completed" and len(list(run.rows())) == 5


def test_the_same_ids_go_on_with_the_same_trial(runs_dir: pathlib.Path, master: RunsMaster) -> None:
    core_v2.init(config=MINE)
    train(0, 7, save_at=5)
    core_v2.close()
    core_v2.init(config=MINE)
    assert core_v2.info.trial.steps_completed == 5
    train(5, 9)
    core_v2.close()
    assert steps_of(master) == list(range(1, 10)) and len(master.runs) == 1


def test_a_master_that_is_away_stops_nobody(
    runs_dir: pathlib.Path, master: RunsMaster, capsys: pytest.CaptureFixture[str]
) -> None:
    master.is_away = True
    core_v2.init(config=MINE)
    assert core_v2.info.trial.trial_id == 0
    train(0, 7, save_at=5)
    core_v2.close()
    assert "det run upload" in capsys.readouterr().err
    assert len(leftovers(runs_dir)) == 1
    # The next start tells it everything.
    master.is_away = False
    core_v2.init(config=MINE)
    assert core_v2.info.trial.steps_completed == 5 and core_v2.info.trial.trial_id == 1
    train(5, 9)
    core_v2.close()
    assert steps_of(master) == list(range(1, 10))
    assert [each["steps_completed"] for each in master.run()["checkpoints"].values()] == [5]
    assert leftovers(runs_dir) == []


def test_a_master_that_comes_back_hears_everything(runs_dir: pathlib.Path, master: RunsMaster) -> None:
    master.is_away = True
    core_v2.init(config=MINE)
    train(0, 3)
    master.is_away = False
    master.wait(lambda: bool(master.runs) and len(master.run()["rows"]) == 3)
    train(3, 6)
    core_v2.close()
    assert steps_of(master) == list(range(1, 7)) and leftovers(runs_dir) == []


def test_what_was_done_without_a_master_is_told_later(
    runs_dir: pathlib.Path, master: RunsMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as alone:
        alone.delenv("DET_MASTER")
        core_v2.init(config=MINE)
        train(0, 5, save_at=5)
        core_v2.close()
    core_v2.init(config=MINE)
    train(5, 6)
    core_v2.close()
    assert steps_of(master) == list(range(1, 7))


def test_uploaded_by_hand_it_is_the_same_trial(
    runs_dir: pathlib.Path, master: RunsMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    core_v2.init(config=MINE)
    train(0, 5, save_at=5)
    core_v2.close()
    (run,) = runs_in(runs_dir)
    session = Session(master.url, "mine")
    assert upload(run.path, session).trial_id == 1
    session.close()
    assert len(master.runs) == 1 and steps_of(master) == list(range(1, 6))


def test_another_machine_goes_on_with_it(
    runs_dir: pathlib.Path, tmp_path: pathlib.Path, master: RunsMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = core_v2.Config(**{**MINE.__dict__, "checkpoint_storage": str(tmp_path / "shared")})
    core_v2.init(config=shared)
    train(0, 7, save_at=5)
    core_v2.close()
    shutil.rmtree(runs_dir)
    core_v2.init(config=shared)
    assert core_v2.info.trial.steps_completed == 5
    train(5, 9)
    core_v2.close()
    assert steps_of(master) == list(range(1, 10)) and len(master.runs) == 1


def test_the_master_may_ask_it_to_stop(master: RunsMaster) -> None:
    core_v2.init(config=MINE)
    master.stop = {"reason": "canceled", "grace_seconds": 30.0}
    train(0, 1)
    master.wait(lambda: core_v2.preempt.should_preempt())
    core_v2.close()
    assert master.ended[-1]["ending"]["outcome"] == "stopped"


def test_a_script_that_never_closes_and_one_that_fails(master: RunsMaster, tmp_path: pathlib.Path) -> None:
    script = (
        "import sys\n"
        "from determined.experimental import core_v2\n"
        "core_v2.init(config=core_v2.Config(name='a', external_experiment_id=sys.argv[1]))\n"
        "core_v2.train.report_training_metrics(1, {'loss': 1.0})\n"
        "if sys.argv[1] == 'bad': raise ValueError('no')\n"
    )
    for name in ("good", "bad"):
        subprocess.run([sys.executable, "-c", script, name], cwd=tmp_path, capture_output=True, timeout=60)
    assert [each["ending"]["outcome"] for each in master.ended] == ["completed", "failed"]
    assert all(len(run["rows"]) == 1 for run in master.runs.values())
