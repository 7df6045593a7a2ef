"""The Core API as a module opens local runs, and the same external ids are the same run."""

from __future__ import annotations

import doctest
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from determined.experimental import core_v2
from tests.parity.forks import Child, free_port, rank_environment


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    core_v2.close()


def run_folders(runs_dir: pathlib.Path) -> list[pathlib.Path]:
    return sorted(runs_dir.iterdir())


def save(steps: int) -> str:
    with core_v2.checkpoint.store_path({"steps_completed": steps}) as (path, storage_id):
        (path / "weights").write_text(str(steps))
    return storage_id


def test_the_documented_example_runs() -> None:
    assert doctest.testmod(core_v2).failed == 0


def test_a_run_is_described_by_its_config(runs_dir: pathlib.Path) -> None:
    core_v2.init(
        config=core_v2.Config(
            name="named", hparams={"lr": 0.5}, data={"url": "x"}, labels=["a"], workspace="w", project="p"
        )
    )
    assert core_v2.info.trial.hparams == {"lr": 0.5}
    assert core_v2.info.user_data == {"url": "x"}
    assert core_v2.info.latest_checkpoint is None
    assert core_v2.distributed.size == 1
    assert not core_v2.preempt.should_preempt()
    core_v2.train.report_validation_metrics(1, {"loss": 2.0})
    core_v2.close()
    (folder,) = run_folders(runs_dir)
    assert folder.name.startswith("named-")
    assert json.loads((folder / "metrics.jsonl").read_text())["metrics"] == {"loss": 2.0}
    config = json.loads((folder / "config.json").read_text())
    assert (config["labels"], config["workspace"], config["project"]) == (["a"], "w", "p")


def test_checkpoints_go_where_the_config_says(tmp_path: pathlib.Path) -> None:
    core_v2.init(config=core_v2.Config(checkpoint_storage=str(tmp_path / "store")))
    assert (tmp_path / "store" / save(1) / "weights").read_text() == "1"


def test_repeated_external_ids_resume_the_run(runs_dir: pathlib.Path) -> None:
    mine = core_v2.Config(external_experiment_id="study", external_trial_id="7")
    core_v2.init(config=mine)
    core_v2.train.report_training_metrics(1, {"loss": 1.0})
    storage_id = save(1)
    core_v2.train.report_training_metrics(2, {"loss": 0.5})
    core_v2.close()
    (first,) = run_folders(runs_dir)

    core_v2.init(config=mine)
    assert core_v2.info.latest_checkpoint == storage_id
    assert core_v2.info.trial.steps_completed == 1
    with core_v2.checkpoint.restore_path(storage_id) as path:
        assert (path / "weights").read_text() == "1"
    core_v2.close()
    assert run_folders(runs_dir) == [first]
    rows = [json.loads(line) for line in (first / "metrics.jsonl").read_text().splitlines()]
    assert [row["steps_completed"] for row in rows] == [1], "what came after the checkpoint is trained again"


@pytest.mark.parametrize("trial", ["8", None])
def test_other_external_ids_are_another_run(runs_dir: pathlib.Path, trial: str | None) -> None:
    core_v2.init(config=core_v2.Config(external_experiment_id="study", external_trial_id="7"))
    save(1)
    core_v2.close()
    core_v2.init(config=core_v2.Config(external_experiment_id="study", external_trial_id=trial))
    assert core_v2.info.latest_checkpoint is None
    assert len(run_folders(runs_dir)) == 2


def test_a_run_without_a_checkpoint_starts_over() -> None:
    mine = core_v2.Config(external_trial_id="7")
    for _ in range(2):
        core_v2.init(config=mine)
        assert core_v2.info.latest_checkpoint is None
        core_v2.train.report_training_metrics(1, {"loss": 1.0})
        core_v2.close()


def test_defaults_and_unmanaged_may_be_given_apart() -> None:
    core_v2.init(
        defaults=core_v2.DefaultConfig(hparams={"lr": 1}),
        unmanaged=core_v2.UnmanagedConfig(external_experiment_id="study"),
    )
    assert core_v2.info.trial.hparams == {"lr": 1}
    core_v2.close()
    with pytest.raises(ValueError, match="give either config, or defaults and unmanaged"):
        core_v2.init(config=core_v2.Config(), defaults=core_v2.DefaultConfig())


@pytest.mark.parametrize("name", ["train", "distributed", "preempt", "checkpoint", "info", "searcher", "profiler"])
def test_before_init_there_is_a_hint_instead_of_a_part(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"core_v2.{name} is there after core_v2.init\(\)"):
        getattr(core_v2, name)


def test_init_twice_is_refused() -> None:
    core_v2.init()
    with pytest.raises(RuntimeError, match="called twice"):
        core_v2.init()


def test_a_script_that_forgets_to_close_loses_nothing(tmp_path: pathlib.Path, runs_dir: pathlib.Path) -> None:
    script = (
        "import sys\n"
        "from determined.experimental import core_v2\n"
        "core_v2.init()\n"
        "core_v2.train.report_training_metrics(1, {'loss': 1.0})\n"
        "assert 'torch' not in sys.modules\n"
    )
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (folder,) = run_folders(runs_dir)
    row: dict[str, Any] = json.loads((folder / "metrics.jsonl").read_text())
    assert row["metrics"] == {"loss": 1.0}
    assert json.loads((folder / "run.json").read_text())["state"] == "completed"


def test_all_ranks_resume_the_same_run(runs_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def one_start(expected: int) -> None:
        core_v2.init(config=core_v2.Config(external_experiment_id="study"))
        steps = core_v2.info.trial.steps_completed
        assert steps == expected
        assert (core_v2.info.latest_checkpoint is None) == (expected == 0)
        if core_v2.distributed.rank == 0:
            save(steps + 1)
        core_v2.close()

    for start in range(3):
        port = free_port()
        ranks = [
            Child(one_start, start, environment=rank_environment(rank, 2, port), log=tmp_path / f"{start}-{rank}")
            for rank in range(2)
        ]
        for rank in ranks:
            rank.succeed()
    assert len(run_folders(runs_dir)) == 1
