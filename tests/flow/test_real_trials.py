"""Trials that train a network: killed, out of the way for others, on two slots, they come to the same weights."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from determined.core.run_folder import runs_in
from tests.flow.cluster import ENDED, Cluster, cluster
from tests.flow.processes import wait_until
from tests.flow.test_kill_anything import kill_one, metrics

pytestmark = pytest.mark.slow

KILLS = 5
MODEL = """
import os, time
import torch
from torch import nn
from determined import pytorch

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, index):
        # Data are drawn anew for each epoch, too.
        x = torch.tensor([index / 96, index * 7 % 96 / 96]) + torch.rand(2) / 100
        return x, x.sum()[None]

class Small(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 1)))
        learning_rate = context.get_hparam("learning_rate")
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=learning_rate))
        self.seconds = float(os.environ.get("BATCH_SECONDS", "0"))
    def build_training_data_loader(self):
        return pytorch.DataLoader(Points(), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)
    def build_validation_data_loader(self):
        return pytorch.DataLoader(Points(), batch_size=16)
    def train_batch(self, batch, epoch_idx, batch_idx):
        time.sleep(self.seconds)
        hung = os.environ.get("HANGS_ONCE")
        if hung and batch_idx == 33 and self.context.distributed.rank == 1 and not os.path.exists(hung):
            open(hung, "w").close()
            while True:
                time.sleep(1)
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}
    def evaluate_batch(self, batch):
        x, y = batch
        return {"loss": nn.functional.mse_loss(self.model(x), y)}
"""
RATES = [0.001, 0.002, 0.004, 0.008, 0.01, 0.02, 0.04, 0.08]
CONFIG: dict[str, Any] = {
    "name": "eight networks",
    "entrypoint": "model_def:Small",
    "hyperparameters": {"global_batch_size": 4, "learning_rate": {"type": "categorical", "vals": RATES}},
    "searcher": {"name": "grid", "metric": "loss", "max_length": {"batches": 60}},
    "min_validation_period": {"batches": 10},
    "min_checkpoint_period": {"batches": 10},
    "scheduling_unit": 5,
    "max_restarts": 30,
    "reproducibility": {"experiment_seed": 11},
    "environment": {"environment_variables": ["BATCH_SECONDS=0.04", "OMP_NUM_THREADS=1"]},
}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("real") / "master") as made:
        yield made


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "model_def.py").write_text(MODEL)
    return folder


@pytest.fixture(scope="module")
def undisturbed(started: Cluster, code: pathlib.Path) -> dict[int, Any]:
    experiment_id = started.submit(code, CONFIG)
    assert started.wait(experiment_id).state == "COMPLETED", started.log
    found = results(started, experiment_id)
    assert len(found) == 8 and len({weights for weights, _, _ in found.values()}) == 8
    return found


def results(started: Cluster, experiment_id: int) -> dict[int, Any]:
    """Of each trial the final weights, the best validation and every row."""
    return {
        trial.number: (final_weights(started, trial.id), (trial.best_metric, trial.best_step), rows(started, trial.id))
        for trial in started.trials(experiment_id)
    }


def rows(started: Cluster, trial_id: int) -> list[Any]:
    return [(row.group, row.steps_completed, row.metrics) for row in metrics(started, trial_id)]


def final_weights(started: Cluster, trial_id: int) -> str:
    there = [each for each in started.master.trial_checkpoints(trial_id, limit=100).items if each.state == "COMPLETED"]
    (last,) = [each for each in there if each.steps_completed == 60]
    return weights_in(started.folder / "checkpoints" / last.uuid)


def weights_in(checkpoint: pathlib.Path) -> str:
    (model,) = torch.load(checkpoint / "state_dict.pth", weights_only=False)["models_state_dict"]
    digest = hashlib.sha256()
    for name, tensor in sorted(model.items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def test_eight_networks_killed_on_the_way(started: Cluster, code: pathlib.Path, undisturbed: dict[int, Any]) -> None:
    draw, pause = random.Random(5), threading.Event()
    experiment_id = started.submit(code, CONFIG)
    for number in range(KILLS):
        pause.wait(draw.uniform(0.1, 0.5))
        kind = ("rank", "master", "node")[number % 3]
        assert wait_until(lambda kind=kind: kill_one(started, kind, draw), 60), started.log  # type: ignore[misc]
        if kind == "master":
            started.start()
        assert started.master.experiment(experiment_id).state not in ENDED, f"over after {number} kills"
    assert started.wait(experiment_id).state == "COMPLETED", started.log
    found = results(started, experiment_id)
    for number, expected in undisturbed.items():
        assert found[number] == expected, f"trial {number}\n{started.log}"
    attempts = [len(started.master.trial_allocations(trial.id)) for trial in started.trials(experiment_id)]
    assert sum(attempts) >= 8 + 3  # the ranks and the nodes


def test_who_matters_less_makes_room_and_loses_nothing(
    started: Cluster, code: pathlib.Path, undisturbed: dict[int, Any], tmp_path: pathlib.Path
) -> None:
    lowly = started.submit(code, {**CONFIG, "resources": {"priority": 80}})
    assert wait_until(lambda: sum(trial.steps_completed > 0 for trial in started.trials(lowly)) >= 2, 60), started.log
    (tmp_path / "say.py").write_text("print('it is my turn')\n")
    urgent = started.submit(
        tmp_path,
        {
            "name": "urgent",
            "entrypoint": "python say.py",
            "searcher": {"name": "single", "metric": "loss"},
            "resources": {"slots_per_trial": 2, "priority": 5},
        },
    )
    assert started.wait(urgent).state == "COMPLETED"
    # It did not wait for the eight to end.
    assert started.master.experiment(lowly).state not in ENDED
    assert started.wait(lowly).state == "COMPLETED", started.log
    trials = started.trials(lowly)
    outcomes = [each.outcome for trial in trials for each in started.master.trial_allocations(trial.id)]
    assert outcomes.count("stopped") == 2 and outcomes.count("completed") == 8
    assert [trial.restarts for trial in trials] == [0] * 8
    assert results(started, lowly) == undisturbed


TWO_SLOTS: dict[str, Any] = {
    **CONFIG,
    "hyperparameters": {"global_batch_size": 8, "learning_rate": 0.01},
    "searcher": {**CONFIG["searcher"], "name": "single"},
    "resources": {"slots_per_trial": 2},
}


@pytest.fixture(scope="module")
def two_processes(code: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    """The weights and rows of the same training in two processes that no master started."""
    runs = tmp_path_factory.mktemp("runs")
    (code / "const.json").write_text(json.dumps(TWO_SLOTS))
    launch = ["-m", "determined.launch.torch_distributed", "--nproc", "2"]
    subprocess.run(
        [sys.executable, *launch, "-m", "determined.pytorch", "model_def:Small", "--config", "const.json"],
        cwd=code,
        env={**os.environ, "OMP_NUM_THREADS": "1", "DET_RUNS_DIR": str(runs)},
        check=True,
        capture_output=True,
        timeout=240,
    )
    (run,) = runs_in(runs)
    steps = {
        json.loads(path.read_text())["steps_completed"]: path for path in run.checkpoints.glob("*-*/metadata.json")
    }
    found = [(row["group"], row["steps_completed"], row["metrics"]) for row in run.rows()]
    return weights_in(steps[60].parent), sorted(found, key=repr)


def test_two_slots_are_two_processes(
    started: Cluster, code: pathlib.Path, two_processes: tuple[str, list[Any]]
) -> None:
    experiment_id = started.submit(code, TWO_SLOTS)
    assert started.wait(experiment_id).state == "COMPLETED", started.log
    (trial,) = started.trials(experiment_id)
    (allocation,) = started.master.trial_allocations(trial.id)
    assert [len(slots) for slots in allocation.placement.values()] == [2]
    assert (final_weights(started, trial.id), sorted(rows(started, trial.id), key=repr)) == two_processes


def test_a_rank_that_hangs_is_named_and_its_trial_goes_on(
    started: Cluster, code: pathlib.Path, two_processes: tuple[str, list[Any]], tmp_path: pathlib.Path
) -> None:
    variables = [*CONFIG["environment"]["environment_variables"], f"HANGS_ONCE={tmp_path / 'hung'}"]
    config = {
        **TWO_SLOTS,
        "entrypoint": "python -m determined.launch.torch_distributed --hang-seconds 5 --trial model_def:Small",
        "environment": {"environment_variables": variables},
    }
    experiment_id = started.submit(code, config)
    assert started.wait(experiment_id).state == "COMPLETED", started.log
    (trial,) = started.trials(experiment_id)
    first, second = started.master.trial_allocations(trial.id)
    assert (first.outcome, second.outcome, trial.restarts) == ("failed", "completed", 1)
    said = "\n".join(line.text for line in started.master.trial_logs(trial.id, limit=1000))
    assert "no progress for 5 s on rank" in said and "rank 1 is " in said, said
    # Where it stands is said, too.
    assert 'model_def.py", line' in said and "in train_batch" in said
    assert (final_weights(started, trial.id), sorted(rows(started, trial.id), key=repr)) == two_processes
