"""Submitted, a script trains the model that it trains alone: the same weights and the same metrics, bit for bit."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from determined import core
from determined.core.run_folder import runs_in
from determined.core.upload import upload
from determined.experimental import client, core_v2
from determined.wire import requests
from tests import masters
from tests.flow.processes import wait_until

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SECONDS = 240.0

TRAINER = {"global_batch_size": 50, "hidden": 64, "learning_rate": 0.004}
# What is submitted, and the command that trains the same without a master.
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a trial class": (
        {},  # const.yaml
        ["-m", "determined.pytorch", "model_def:DigitsTrial", "--config", "const.yaml"],
    ),
    "the Trainer": (
        {
            "name": "trainer",
            "entrypoint": "python train.py --epochs 2",
            "hyperparameters": TRAINER,
            "searcher": {"name": "single", "metric": "accuracy", "smaller_is_better": False},
        },
        ["train.py", "--epochs", "2"],
    ),
    "the Trainer on two slots": (
        {
            "name": "distributed",
            "entrypoint": "python -m determined.launch.torch_distributed train.py --epochs 1",
            "hyperparameters": TRAINER,
            "resources": {"slots_per_trial": 2},
            "searcher": {"name": "single", "metric": "accuracy", "smaller_is_better": False},
        },
        ["-m", "determined.launch.torch_distributed", "--nproc", "2", "train.py", "--epochs", "1"],
    ),
    "one context": (
        {
            "name": "context",
            "entrypoint": "python3 train_context.py",
            "hyperparameters": {"global_batch_size": 32, "learning_rate": 0.1},
            "searcher": {"name": "single", "metric": "accuracy", "smaller_is_better": False},
        },
        ["train_context.py"],
    ),
    "the Core API": (
        {
            "name": "core",
            "entrypoint": ["python3", "core_train.py", "--epochs", "2"],
            "searcher": {"name": "single", "metric": "accuracy", "smaller_is_better": False},
        },
        ["core_train.py", "--epochs", "2"],
    ),
}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[client.Determined]:
    """A master of two slots."""
    place = tmp_path_factory.mktemp("master")
    environ = {
        **os.environ,
        "DET_MASTER_DIR": str(place / "master"),
        "DET_MASTER_PORT": "0",
        "DET_MASTER_SLOTS": "2",
        "XDG_CONFIG_HOME": str(place / "config"),
        "OMP_NUM_THREADS": "1",
    }
    with masters.stopped_afterwards(place / "master"):
        connected = client.Determined(environ=environ, say=lambda sentence: None)
        yield connected
        connected.master.close()


@pytest.fixture
def digits(tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(EXAMPLES / "digits", tmp_path / "digits"))


def weights_in(checkpoint: pathlib.Path) -> str:
    """A hash of the model in a checkpoint of any of the examples."""
    if (checkpoint / "state.pt").exists():
        model = torch.load(checkpoint / "state.pt")["model"]
    else:
        (model,) = torch.load(checkpoint / "state_dict.pth", weights_only=False)["models_state_dict"]
    digest = hashlib.sha256()
    for name, tensor in sorted(model.items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def in_order(rows: Iterator[tuple[str, int, dict[str, Any]]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@pytest.mark.parametrize("name", CASES)
def test_the_same_weights_and_the_same_rows(
    name: str, master: client.Determined, digits: pathlib.Path, runs_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    config, command = CASES[name]
    alone = subprocess.run(
        [sys.executable, *command],
        cwd=digits,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert alone.returncode == 0, alone.stderr[-4000:]
    (run,) = runs_in(runs_dir)
    rows = in_order((row["group"], row["steps_completed"], row["metrics"]) for row in run.rows())
    by_step = {json.loads((path / "metadata.json").read_text())["steps_completed"]: path for path in saved(run)}

    experiment = master.create_experiment(config or str(digits / "const.yaml"), digits)
    assert experiment.wait(interval=0.5) is client.ExperimentState.COMPLETED
    (trial,) = experiment.list_trials()
    found = in_order((row.group, row.steps_completed, dict(row.metrics)) for row in trial.iter_metrics())
    assert found == rows
    checkpoints = trial.list_checkpoints()
    assert {each.metadata["steps_completed"] for each in checkpoints} >= {max(by_step)}
    for each in checkpoints:
        steps = each.metadata["steps_completed"]
        if steps in by_step:
            there = pathlib.Path(each.download(str(tmp_path / each.uuid)))
            assert weights_in(there) == weights_in(by_step[steps]), f"after {steps} steps"


def saved(run: Any) -> list[pathlib.Path]:
    return [path for path in run.checkpoints.iterdir() if (path / "metadata.json").exists()]


def test_a_job_predicts_with_what_a_trial_has_learnt(master: client.Determined, digits: pathlib.Path) -> None:
    config = {
        "name": "to-predict-with",
        "entrypoint": "python3 train_context.py",
        "hyperparameters": {"global_batch_size": 50, "learning_rate": 0.1},
        "searcher": {"name": "single", "metric": "accuracy", "smaller_is_better": False},
    }
    experiment = master.create_experiment(config, digits)
    assert experiment.wait(interval=0.5) is client.ExperimentState.COMPLETED
    (trial,) = experiment.list_trials()
    (expected,) = re.findall(
        r"^accuracy ([\d.]+)$", "\n".join(line.rstrip() for line in trial.iter_logs()), re.MULTILINE
    )
    sha256 = master.master.experiment_config(experiment.id)["context_sha256"]
    job = {
        "name": "predict",
        "entrypoint": "python -m determined.launch.torch_distributed batch_inference.py",
        "data": {"trial_id": trial.id, "batch_size": 32, "output": "predictions.pt"},
        "resources": {"slots": 2},
    }
    task = master.master.create_task(
        requests.CreateTask(kind="job", config=json.dumps(job), context_sha256=sha256, python=sys.executable)
    )
    assert wait_until(lambda: master.master.task(task.id).ended_at is not None, SECONDS)
    printed = "\n".join(line.text for line in master.master.task_logs(task.id))
    assert master.master.task(task.id).state == "COMPLETED", printed
    assert f"accuracy {expected}, predictions in predictions.pt" in printed


PAUSED = """
import os, signal, sys, pathlib
import torch
from torch import nn
from determined import core, pytorch

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        x = torch.tensor([index / 64, index * 7 % 64 / 64])
        return x, x.sum()[None]

class Small(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 1)))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.01))
    def build_training_data_loader(self):
        return pytorch.DataLoader(Points(), batch_size=4, shuffle=True)
    def build_validation_data_loader(self):
        return pytorch.DataLoader(Points(), batch_size=16)
    def train_batch(self, batch, epoch_idx, batch_idx):
        ordeal = pathlib.Path(os.environ.get("ORDEALS", "/nowhere")) / str(batch_idx)
        if ordeal.exists():
            how = ordeal.read_text()
            ordeal.unlink()
            if how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif how == "fail":
                raise ValueError("as ordered")
            (ordeal.parent / "here").write_text("")
            while not self.context.core_context.preempt.asked:  # somebody pauses the experiment now
                torch.rand(0)
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}
    def evaluate_batch(self, batch):
        x, y = batch
        return {"loss": nn.functional.mse_loss(self.model(x), y)}
"""
SMALL = {
    "name": "ordeals",
    "entrypoint": "model_def:Small",
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 60}},
    "min_validation_period": {"batches": 12},
    "min_checkpoint_period": {"batches": 12},
    "scheduling_unit": 10,
}


def test_paused_killed_and_failed_it_is_still_the_same_training(
    master: client.Determined, tmp_path: pathlib.Path, runs_dir: pathlib.Path
) -> None:
    project, ordeals = tmp_path / "project", tmp_path / "ordeals"
    project.mkdir()
    ordeals.mkdir()
    (project / "model_def.py").write_text(PAUSED)
    (project / "const.yaml").write_text(json.dumps(SMALL))
    command = [sys.executable, "-m", "determined.pytorch", "model_def:Small", "--config", "const.yaml"]
    subprocess.run(command, cwd=project, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
    (run,) = runs_in(runs_dir)
    rows = in_order((row["group"], row["steps_completed"], row["metrics"]) for row in run.rows())

    for batch, how in (("17", "die"), ("29", "wait"), ("41", "fail")):
        (ordeals / batch).write_text(how)
    variables = {"environment": {"environment_variables": [f"ORDEALS={ordeals}"]}}
    experiment = master.create_experiment({**SMALL, **variables}, project)
    assert wait_until((ordeals / "here").exists, SECONDS)
    experiment.pause()
    (trial,) = experiment.list_trials()
    assert wait_until(lambda: not any(a.ended_at is None for a in master.master.trial_allocations(trial.id)), SECONDS)
    experiment.activate()
    assert experiment.wait(interval=0.5) is client.ExperimentState.COMPLETED
    assert list(ordeals.iterdir()) == [ordeals / "here"]
    found = in_order((row.group, row.steps_completed, dict(row.metrics)) for row in trial.iter_metrics())
    assert found == rows
    last = max(saved(run), key=lambda path: json.loads((path / "metadata.json").read_text())["steps_completed"])
    (best,) = [each for each in trial.list_checkpoints() if each.metadata["steps_completed"] == 60]
    assert weights_in(pathlib.Path(best.download(str(tmp_path / "best")))) == weights_in(last)
    assert len(master.master.trial_allocations(trial.id)) == 4


def test_a_run_of_this_machine_is_brought_to_the_master(
    master: client.Determined, tmp_path: pathlib.Path, runs_dir: pathlib.Path
) -> None:
    with core.init(config={"name": "at-home"}, hparams={"lr": 0.5}) as context:
        for step in range(1, 31):
            context.train.report_training_metrics(step, {"loss": 1 / step})
            if step % 10 == 0:
                context.train.report_validation_metrics(step, {"loss": 2 / step})
                with context.checkpoint.store_path({"steps_completed": step}):
                    pass
    (run,) = runs_in(runs_dir)
    session = master.master.session
    first, again = upload(run.path, session), upload(run.path, session)
    assert first.trial_id == again.trial_id
    trial = master.get_trial(first.trial_id)
    found = in_order((row.group, row.steps_completed, dict(row.metrics)) for row in trial.iter_metrics())
    assert found == in_order((row["group"], row["steps_completed"], row["metrics"]) for row in run.rows())
    assert trial.hparams == {"lr": 0.5}
    assert master.get_experiment(first.experiment_id).state is client.ExperimentState.COMPLETED
    assert [each.metadata["steps_completed"] for each in trial.list_checkpoints()] == [30]


def test_a_detached_script_is_a_trial_of_the_master(
    master: client.Determined, monkeypatch: pytest.MonkeyPatch, runs_dir: pathlib.Path
) -> None:
    monkeypatch.setenv("DET_MASTER", master.master.url)
    monkeypatch.setenv("DET_TOKEN", str(master.master.session.token))
    mine = core_v2.Config(name="detached", hparams={"lr": 0.1}, external_experiment_id="mine")
    for first in (0, 5):
        core_v2.init(config=mine)
        assert core_v2.info.trial.steps_completed == first
        trial_id = core_v2.info.trial.trial_id
        for step in range(first + 1, first + 6):
            core_v2.train.report_training_metrics(step, {"loss": 1 / step})
        with core_v2.checkpoint.store_path({"steps_completed": first + 5}):
            pass
        core_v2.close()
    trial = master.get_trial(trial_id)
    assert [row.steps_completed for row in trial.iter_metrics("training")] == list(range(1, 11))
    assert trial.state is client.TrialState.COMPLETED
