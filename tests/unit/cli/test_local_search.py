"""`det experiment create --local`: whole searches on this machine, with real node processes and no master."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest

from determined.cli import main
from tests.flow.processes import wait_until

SCRIPT = """
import os, pathlib, sys, time
import determined as det
from determined import core

info = det.get_cluster_info()
hparams = info.trial.hparams
with core.init() as context:
    start = 0
    if info.latest_checkpoint:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            start = int((path / "steps").read_text())
    if hparams.get("refused"):
        raise det.InvalidHP("no good")
    for step in range(start + 1, 5):
        context.train.report_validation_metrics(step, {"loss": hparams["x"] / step})
        with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
            (path / "steps").write_text(str(step))
        if step == 2 and hparams.get("waits") and not start:
            pathlib.Path(hparams["waits"], f"at-{info.trial.trial_id}").write_text("")
            while not context.preempt.should_preempt():
                time.sleep(0.02)
        if context.preempt.should_preempt():
            sys.exit(0)
    if hparams.get("fails"):
        raise ValueError("this one \\x1b[31mfails")
"""


class Project:
    """A script and a configuration that searches its hyperparameters."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder / "project"
        self.folder.mkdir()
        (self.folder / "script.py").write_text(SCRIPT)

    def config(self, hyperparameters: Any, **others: Any) -> str:
        path = self.folder / "search.yaml"
        content = {
            "name": "tiny",
            "entrypoint": "python3 script.py",
            "hyperparameters": hyperparameters,
            "searcher": {"name": "grid", "metric": "loss"},
            "max_restarts": 0,
            **others,
        }
        path.write_text(json.dumps(content))
        return str(path)

    def create(self, hyperparameters: Any, *options: str, **others: Any) -> int:
        config = self.config(hyperparameters, **others)
        return main.main(["e", "create", config, str(self.folder), "--local", *options])


@pytest.fixture
def project(tmp_path: pathlib.Path) -> Project:
    return Project(tmp_path)


def search_folder(runs_dir: pathlib.Path) -> pathlib.Path:
    (found,) = runs_dir.glob("*/search.json")
    return found.parent


def values(*entries: Any) -> dict[str, Any]:
    return {"type": "categorical", "vals": list(entries)}


def test_a_grid_ends_with_a_table_and_the_best_checkpoint(
    project: Project, runs_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert project.create({"x": values(4.0, 2.0, 8.0)}) == main.DONE
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["TRIAL", "STATE", "STEPS", "METRIC", "HYPERPARAMETERS"]
    assert lines[1].split() == ["1", "completed", "4", "0.5", "●", "x", "2"]
    best = next(line for line in lines if line.startswith("its checkpoint: ")).removeprefix("its checkpoint: ")
    assert (pathlib.Path(best) / "steps").read_text() == "4"
    assert "trial 1: completed, loss 0.5 after 4 batches" in err
    # Every trial is a run like any other.
    assert main.main(["run", "list", "--json"]) == main.DONE
    runs = json.loads(capsys.readouterr().out)
    assert {run["state"] for run in runs} == {"completed"}
    assert len(runs) == 3
    # The best and the latest of each are kept, here the same.
    assert [run["checkpoints"] for run in runs] == [1, 1, 1]


def test_the_error_of_a_trial_is_its_own_and_the_others_go_on(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert project.create({"x": 1.0, "fails": values(True, False)}) == main.DONE
    out, err = capsys.readouterr()
    assert "ValueError: this one fails" in err
    assert "\x1b" not in err
    assert "error" in out and "completed" in out


def test_a_search_whose_trials_all_fail_fails(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert project.create({"x": 1.0, "fails": True}, max_restarts=1) == main.FAILED
    assert "none of the 1 trials completed" in capsys.readouterr().err


def test_values_that_the_code_refuses_are_no_failure(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert project.create({"x": 1.0, "refused": values(True, False)}) == main.DONE
    assert "invalid" in capsys.readouterr().out


def test_a_trial_that_wants_more_slots_than_there_are_is_refused(
    project: Project, runs_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert project.create({"x": 1.0}, "--slots", "2", resources={"slots_per_trial": 64}) == main.FAILED
    assert "a trial needs 64 slots" in capsys.readouterr().err


def test_every_mistake_is_told_before_anything_is_started(
    project: Project, runs_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert project.create({"x": 1.0}, max_restarts=-1, entrypont="x") == main.FAILED
    error = capsys.readouterr().err
    assert "max_restarts must be at least 0, not -1" in error
    assert "entrypont is not a field; did you mean entrypoint?" in error
    assert not runs_dir.exists()


def run_det(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "determined.cli.main", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_search_goes_on_and_ends_as_if_nothing_had_happened(
    project: Project,
    runs_dir: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    how: signal.Signals,
) -> None:
    hyperparameters = {"x": values(4.0, 2.0, 8.0), "waits": str(tmp_path)}
    config = project.config(hyperparameters)
    search = run_det("e", "create", config, str(project.folder), "--local", "--slots", "2")
    assert wait_until(lambda: len(list(tmp_path.glob("at-*"))) == 2)
    search.send_signal(how)
    _, said = search.communicate(timeout=30)
    name = search_folder(runs_dir).name
    if how is signal.SIGINT:
        assert search.returncode == main.INTERRUPTED
        assert f"Go on: det experiment continue --local {name}" in said
    # The third trial waits for a wish to stop as the others did; this time it is not to wait.
    state = search_folder(runs_dir) / "journal.jsonl"
    before = state.read_bytes()
    again = run_det("e", "continue", "--local", name)
    assert wait_until(lambda: len(list(tmp_path.glob("at-*"))) == 3)
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=30)
    assert main.main(["e", "continue", "--local", name[:6]]) == main.DONE
    out = capsys.readouterr().out
    assert [line.split()[:4] for line in out.splitlines()[1:4]] == [
        ["1", "completed", "4", "0.5"],
        ["2", "completed", "4", "1"],
        ["0", "completed", "4", "2"],
    ]
    assert state.read_bytes().startswith(before.rpartition(b"\n")[0])
    validations = [event for event in map(json.loads, state.read_text().splitlines()) if event["event"] == "validation"]
    assert len(validations) == len({(event["trial"], event["steps"]) for event in validations}) == 12


def test_a_search_that_is_not_there_is_said_so(runs_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["e", "continue", "--local", "nope"]) == main.FAILED
    assert "there is no search 'nope'" in capsys.readouterr().err
