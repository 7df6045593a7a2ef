"""A disk that fills up costs checkpoints, not training."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = """
import os
import pathlib
import torch
from torch import nn
from determined import pytorch

hog = pathlib.Path(os.environ["DET_RUNS_DIR"], "hog")

class Wide(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(nn.Sequential(nn.Linear(4, 600), nn.Linear(600, 300), nn.Linear(300, 2)))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters()))

    def build_training_data_loader(self):
        return pytorch.DataLoader(torch.utils.data.TensorDataset(torch.ones(32, 4), torch.zeros(32).long()), 8)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx == 6:
            hog.write_bytes(b"x" * 1_500_000)
        if batch_idx == 16:
            hog.unlink()
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch):
        return {"loss": nn.functional.cross_entropy(self.model(batch[0]), batch[1])}

with pytorch.init(hparams={}) as context:
    pytorch.Trainer(Wide(context), context).fit(
        max_length=pytorch.Batch(20), checkpoint_period=pytorch.Batch(4), reporting_period=pytorch.Batch(2)
    )
"""


@pytest.mark.slow
def test_training_outlives_a_full_disk_and_saves_again_when_there_is_room(tmp_path: pathlib.Path) -> None:
    runs = tmp_path / "small"
    runs.mkdir()
    (tmp_path / "train.py").write_text(SCRIPT)
    # A disk of 5 MB that only this process and its children see.
    train = f"mount -t tmpfs -o size=5M tmpfs {runs} && {sys.executable} train.py && cp -r {runs} {tmp_path}/remains"
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", train],
        cwd=tmp_path,
        env={**os.environ, "DET_RUNS_DIR": str(runs)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "A CHECKPOINT COULD NOT BE SAVED" in done.stderr
    assert "No space left on device" in done.stderr
    (final,) = (tmp_path / "remains").glob("*/checkpoints/*/metadata.json")
    assert json.loads(final.read_text())["steps_completed"] == 20
    rows = next((tmp_path / "remains").glob("*/metrics.jsonl")).read_text().splitlines()
    training = [json.loads(row)["steps_completed"] for row in rows if '"training"' in row]
    assert training == list(range(2, 21, 2))
