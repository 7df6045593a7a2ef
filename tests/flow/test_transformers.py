"""Hugging Face's Trainer in processes of its own: stopped, killed and resumed, on one rank and on two."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from determined import core
from tests.flow.processes import wait_until
from tests.parity import forks
from tests.unit.transformers import tiny

pytestmark = pytest.mark.slow

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "huggingface"
TRAINING: dict[str, Any] = {
    "max_steps": 30,
    "logging_steps": 1,
    "save_steps": 7,
    "eval_strategy": "steps",
    "eval_steps": 10,
}


def train(folder: pathlib.Path, latest_checkpoint: str | None = None, pause_at: int | None = None) -> None:
    """What a user's script does. Each rank leaves a digest of the weights it ended with."""
    with core.init(name=folder.name, latest_checkpoint=latest_checkpoint) as context:

        def pause() -> None:
            (folder / f"paused-{context.distributed.rank}").touch()
            assert wait_until(lambda: context.preempt.asked)

        # The last rank alone: the others come to wait for it, as they would for one that is slow.
        is_last = context.distributed.rank == context.distributed.size - 1
        others = [tiny.At(pause_at, pause)] if pause_at is not None and is_last else []
        trainer, callback = tiny.train(context, folder / "out", *others, **TRAINING)
        if not callback.was_preempted:
            (folder / f"weights-{context.distributed.rank}").write_text(tiny.digest(trainer.model))


def start(folder: pathlib.Path, size: int, *how: str | int | None) -> list[forks.Child]:
    folder.mkdir(exist_ok=True)
    port = forks.free_port()
    ranks = [forks.rank_environment(rank, size, port) for rank in range(size)] if size > 1 else [{}]
    return [forks.Child(train, folder, *how, environment=each, log=folder / "log") for each in ranks]


def weights(folder: pathlib.Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("weights-*"))]


def rows(runs_dir: pathlib.Path, name: str, group: str) -> list[dict[str, object]]:
    """The metrics of the one run of this name that are on disk."""
    [metrics] = runs_dir.glob(f"{name}-*/metrics.jsonl")
    found = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [row for row in found if row["group"] == group]


@pytest.mark.parametrize(
    ("size", "sent"),
    [(1, signal.SIGTERM), (1, signal.SIGKILL), (2, signal.SIGTERM)],
    ids=["one rank, SIGTERM", "one rank, SIGKILL", "two ranks, SIGTERM to one"],
)
def test_an_interrupted_training_ends_with_the_weights_of_an_undisturbed_one(
    tmp_path: pathlib.Path, runs_dir: pathlib.Path, size: int, sent: signal.Signals
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for child in start(whole, size):
        child.succeed()

    # In mid-epoch, and past two checkpoints, for the one that is killed.
    children = start(broken, size, None, 16)
    assert wait_until((broken / f"paused-{size - 1}").exists), (broken / "log").read_text()
    os.kill(children[-1].pid, sent)
    codes = [child.wait() for child in children]
    assert codes == [-sent if sent is signal.SIGKILL else 0] * size, (broken / "log").read_text()
    assert not weights(broken)

    for child in start(broken, size, "latest"):
        child.succeed()
    assert weights(broken) == weights(whole)
    assert len(set(weights(whole))) == 1
    assert len(weights(whole)) == size
    measured = [
        [(row["steps_completed"], row["metrics"]) for row in rows(runs_dir, each.name, "validation")]
        for each in (whole, broken)
    ]
    assert measured[0] == measured[1]
    [run] = runs_dir.glob("broken-*")
    kept = [path.name for path in (run / "checkpoints").glob("*/rng_state*")]
    assert set(kept) == ({"rng_state.pth"} if size == 1 else {"rng_state_0.pth", "rng_state_1.pth"})


def test_the_example_reaches_the_accuracy_its_readme_states(tmp_path: pathlib.Path) -> None:
    stated = re.search(r"accuracy of at least (?P<number>[01]\.\d+)", (EXAMPLE / "README.md").read_text())
    assert stated is not None
    command = [sys.executable, str(EXAMPLE / "train.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    reached = re.search(r"^accuracy (?P<number>\d\.\d+)$", done.stdout, re.MULTILINE)
    assert reached is not None, done.stdout
    assert float(reached["number"]) >= float(stated["number"])
