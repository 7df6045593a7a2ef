"""The TensorFlow launcher gives every rank its TF_CONFIG. TensorFlow itself is not needed for that."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from determined.launch import tensorflow

SCRIPT = """
import os, pathlib, sys
pathlib.Path("config-" + os.environ["RANK"]).write_text(os.environ["TF_CONFIG"])
from determined.core import DistributedContext
with DistributedContext.from_torch_distributed() as ranks:
    assert len(ranks.allgather(None)) == int(os.environ["WORLD_SIZE"])
print("arguments", *sys.argv[1:])
"""


def launch(folder: pathlib.Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "determined.launch.tensorflow", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_all_ranks_know_all_workers_and_their_own_place(tmp_path: pathlib.Path, runs_dir: pathlib.Path) -> None:
    done = launch(tmp_path, "--nproc", "2", "--", "train.py", "-x")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[rank=0] arguments -x", "[rank=1] arguments -x"]
    first, second = (json.loads((tmp_path / f"config-{rank}").read_text()) for rank in range(2))
    assert first["cluster"] == second["cluster"]
    assert len({*first["cluster"]["worker"]}) == 2
    assert all(worker.startswith("127.0.0.1:") for worker in first["cluster"]["worker"])
    assert [each["task"] for each in (first, second)] == [{"type": "worker", "index": rank} for rank in range(2)]
    assert [run.name[:6] for run in runs_dir.iterdir()] == ["train-"]


def test_there_is_one_rank_unless_more_are_asked_for(tmp_path: pathlib.Path) -> None:
    done = launch(tmp_path, "train.py")
    assert (done.returncode, done.stdout) == (0, "arguments\n"), done.stderr
    assert len(json.loads((tmp_path / "config-0").read_text())["cluster"]["worker"]) == 1


def test_a_trial_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert tensorflow.main(["--trial", "model_def:Mine"]) == 2
    assert "start a PyTorchTrial with `python -m determined.launch.torch_distributed" in capsys.readouterr().err


def test_help_says_which_options_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert tensorflow.main(["--help"]) == 0
    assert "--nproc" in capsys.readouterr().out
