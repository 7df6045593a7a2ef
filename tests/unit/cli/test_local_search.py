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


IN_PARTS = """
import os
import determined as det
from determined import core

info = det.get_cluster_info()
weights = []
with core.init() as context:
    if info.latest_checkpoint:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            weights = (path / "weights").read_text().split()
    for operation in context.searcher.operations():
        for step in range(int(os.environ["DET_STEPS_COMPLETED"]) + 1, operation.length + 1):
            loss = info.trial.hparams["x"] / step
            context.train.report_validation_metrics(step, {"loss": loss})
            weights.append(f"{info.trial.trial_id}@{step}")
            with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
                (path / "weights").write_text(" ".join(weights))
        operation.report_completed(loss)
"""


def learnt(runs_dir: pathlib.Path) -> dict[str, int]:
    """What each checkpoint that is left has learnt, and how many steps of its own trial that is."""
    folder = search_folder(runs_dir)
    found = {}
    for path in (folder / "checkpoints").glob("*/weights"):
        steps = path.read_text().split()
        found[" ".join(steps)] = len(steps)
    return found


def events(runs_dir: pathlib.Path, kind: str) -> list[dict[str, Any]]:
    lines = (search_folder(runs_dir) / "journal.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.mark.slow
def test_trials_are_promoted_where_asha_lets_them_wait(project: Project, runs_dir: pathlib.Path) -> None:
    (project.folder / "script.py").write_text(IN_PARTS)
    searcher = {
        "name": "async_halving", "metric": "loss", "max_length": {"batches": 4}, "num_rungs": 2, "divisor": 2,
        "max_trials": 3, "max_concurrent_trials": 1, "stop_once": False,
    }  # fmt: skip
    x = {"type": "double", "minval": 1.0, "maxval": 9.0}
    storage = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 1}
    assert project.create({"x": x}, searcher=searcher, checkpoint_storage=storage) == main.DONE
    # Whoever was promoted went on from where it had stopped, and did nothing twice.
    left = learnt(runs_dir)
    assert sorted(left.values()) in ([2, 2, 4], [2, 4, 4]), left
    assert all(len({step.partition("@")[0] for step in text.split()}) == 1 for text in left)
    promoted = [text for text, steps in left.items() if steps == 4]
    assert all([step.partition("@")[2] for step in text.split()] == ["1", "2", "3", "4"] for text in promoted)
    assert {event["exit"] for event in events(runs_dir, "exit")} == {"completed"}


@pytest.mark.slow
def test_copies_of_a_population_begin_with_what_was_judged(project: Project, runs_dir: pathlib.Path) -> None:
    (project.folder / "script.py").write_text(IN_PARTS)
    searcher = {
        "name": "pbt", "metric": "loss", "population_size": 2, "num_rounds": 2,
        "replace_function": {"truncate_fraction": 0.5},
        "length_per_round": {"batches": 2},
    }  # fmt: skip
    x = {"type": "double", "minval": 1.0, "maxval": 9.0}
    storage = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 0}
    assert project.create({"x": x}, "--slots", "2", searcher=searcher, checkpoint_storage=storage) == main.DONE
    exits = events(runs_dir, "exit")
    assert sorted(event["trial"] for event in exits) == [0, 1, 2]
    saved = {event["uuid"] for event in events(runs_dir, "checkpoint") if event["trial"] == 2}
    assert len(saved) == 2
    # The copy's latest is kept until the end: the search might have begun another with it.
    copies = [text for text in learnt(runs_dir) if text.endswith("2@2")]
    assert len(copies) == 1 and copies[0] in ("0@1 0@2 2@1 2@2", "1@1 1@2 2@1 2@2")


def test_the_best_of_all_trials_are_kept(project: Project, runs_dir: pathlib.Path) -> None:
    storage = {"save_experiment_best": 1, "save_trial_best": 0, "save_trial_latest": 0}
    assert project.create({"x": values(4.0, 2.0, 8.0)}, checkpoint_storage=storage) == main.DONE
    left = list((search_folder(runs_dir) / "checkpoints").glob("*/steps"))
    assert [path.read_text() for path in left] == ["4"]
    assert len(events(runs_dir, "removed")) == 11
