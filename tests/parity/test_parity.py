"""One file, started in every way there is, trains the same model bit for bit."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.parity import trials
from tests.parity.forks import free_port, rank_environment

SCRIPT = """
import torch
from torch import nn
from determined import pytorch

class Small(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 2)))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.01))
        generator = torch.Generator().manual_seed(0)
        self.data = torch.utils.data.TensorDataset(
            torch.randn(48, 6, generator=generator), torch.randint(0, 2, (48,), generator=generator)
        )

    def build_training_data_loader(self):
        return pytorch.DataLoader(self.data, self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(self.data, self.context.get_per_slot_batch_size())

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch):
        return {"loss": nn.functional.cross_entropy(self.model(batch[0]), batch[1])}

if __name__ == "__main__":
    with pytorch.init(hparams={"global_batch_size": 8}) as context:
        pytorch.Trainer(Small(context), context).fit(
            max_length=pytorch.Batch(20),
            reporting_period=pytorch.Batch(5),
            validation_period=pytorch.Epoch(1),
            checkpoint_period=pytorch.Batch(8),
        )
"""


def start_plain(folder: pathlib.Path, ranks: int) -> list[subprocess.Popen[str]]:
    if ranks == 1:
        return [popen(folder, [sys.executable, "train.py"])]
    port = free_port()
    return [popen(folder, [sys.executable, "train.py"], rank_environment(rank, ranks, port)) for rank in range(ranks)]


def start_launcher(folder: pathlib.Path, ranks: int) -> list[subprocess.Popen[str]]:
    launch = [sys.executable, "-m", "determined.launch.torch_distributed", "--nproc", str(ranks)]
    return [popen(folder, [*launch, "train.py"])]


def start_torchrun(folder: pathlib.Path, ranks: int) -> list[subprocess.Popen[str]]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--master_port", "0"]
    return [popen(folder, [*launch, f"--rdzv-endpoint=127.0.0.1:{free_port()}", "train.py"])]


def start_entrypoint(folder: pathlib.Path, ranks: int) -> list[subprocess.Popen[str]]:
    (folder / "experiment.json").write_text(
        json.dumps(
            {
                "entrypoint": "train:Small",
                "hyperparameters": {"global_batch_size": 8},
                "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 20}},
                "min_validation_period": {"epochs": 1},
                "min_checkpoint_period": {"batches": 8},
                "scheduling_unit": 5,
            }
        )
    )
    launch = [sys.executable, "-m", "determined.launch.torch_distributed", "--nproc", str(ranks)]
    environment = {"DET_EXPERIMENT_CONFIG": str(folder / "experiment.json")}
    return [popen(folder, [*launch, "--trial", "train:Small"], environment)]


def popen(folder: pathlib.Path, command: list[str], environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "DET_RUNS_DIR": str(folder / "runs"), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_script_launcher_torchrun_and_entrypoint_train_the_same_model(ranks: int, tmp_path: pathlib.Path) -> None:
    found = {}
    for start in (start_plain, start_launcher, start_torchrun, start_entrypoint):
        folder = tmp_path / start.__name__
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT)
        processes = start(folder, ranks)
        printed = [process.communicate(timeout=120)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(printed)
        found[start.__name__] = trials.remains(folder / "runs", steps=20)
    for name, remains in found.items():
        assert remains == found["start_plain"], name
