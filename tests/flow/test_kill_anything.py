"""Kill any process at any time: a search ends with the same answer, row for row."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import threading
from typing import Any

import psutil
import pytest

from tests.flow import stub
from tests.flow.cluster import ENDED, Cluster, cluster
from tests.flow.processes import wait_until

KILLS = 20
GRID = {
    "name": "grid of sixteen",
    "entrypoint": "python stub.py",
    "hyperparameters": {
        "a": {"type": "categorical", "vals": [1, 2, 3, 4]},
        "b": {"type": "categorical", "vals": [10, 20, 30, 40]},
        "step_seconds": 0.25,
    },
    "searcher": {"name": "grid", "metric": "error"},
    # A rank that is killed from outside looks like one that crashed: this search must outlive many of them.
    "max_restarts": 30,
    "checkpoint_storage": {"type": "shared_fs", "host_path": "", "save_trial_latest": 1, "save_trial_best": 1},
    "reproducibility": {"experiment_seed": 3},
}


def config(folder: pathlib.Path, **changes: Any) -> dict[str, Any]:
    storage = {**GRID["checkpoint_storage"], "host_path": str(folder / "checkpoints")}  # type: ignore[dict-item]
    return {**GRID, "checkpoint_storage": storage, **changes}


def code(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir(parents=True)
    shutil.copy(stub.__file__, folder / "stub.py")
    return folder


def table(started: Cluster, experiment_id: int) -> dict[int, Any]:
    """All that an experiment came to, by trial: nothing in it depends on when or how often something was killed."""
    found = {}
    for trial in started.trials(experiment_id):
        rows = [
            (row.group, row.steps_completed, json.dumps(row.metrics, sort_keys=True))
            for row in metrics(started, trial.id)
        ]
        assert len(rows) == len({row[:2] for row in rows}), f"trial {trial.number} has two rows for one step"
        kept = started.master.trial_checkpoints(trial.id, limit=100).items
        found[trial.number] = {
            "hparams": trial.hparams,
            "seed": trial.seed,
            "state": trial.state,
            "best": (trial.best_metric, trial.best_step),
            "rows": sorted(rows),
            "checkpoints": sorted(
                (each.steps_completed, each.searcher_metric) for each in kept if each.state == "COMPLETED"
            ),
        }
    return found


def metrics(started: Cluster, trial_id: int) -> list[Any]:
    return [row for row in started.master.all_trial_metrics(trial_id) if row.group in ("training", "validation")]


def settled(started: Cluster, experiment_id: int) -> bool:
    """Whether the checkpoints that nobody needs any more are gone: the best and the latest of each trial stay."""
    everything = started.master.experiment_checkpoints(experiment_id, limit=1000).items
    alive = [each for each in everything if each.state != "DELETED"]
    most = max(collections.Counter(each.trial_id for each in alive).values())
    return most <= 2 and all(each.state == "COMPLETED" for each in alive)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    with cluster(folder / "master") as started:
        experiment_id = started.submit(
            code(folder / "code"),
            config(folder),
        )
        assert started.wait(experiment_id).state == "COMPLETED"
        assert wait_until(lambda: settled(started, experiment_id))
        found = table(started, experiment_id)
    assert len(found) == 16
    return found


@pytest.mark.slow
def test_a_search_whose_processes_are_killed_at_twenty_moments_ends_the_same(
    tmp_path: pathlib.Path, undisturbed: dict[int, Any]
) -> None:
    draw = random.Random(20)
    pause = threading.Event()
    with cluster(tmp_path / "master") as started:
        experiment_id = started.submit(code(tmp_path / "code"), config(tmp_path))
        for number in range(KILLS):
            pause.wait(draw.uniform(0.1, 0.8))
            kind = ("master", "node", "rank")[number % 3]
            assert wait_until(lambda kind=kind: kill_one(started, kind, draw), 60), started.log  # type: ignore[misc]
            if kind == "master":
                started.start()
            assert started.master.experiment(experiment_id).state not in ENDED, (
                f"over after {number} kills: the trials are too short"
            )
        assert started.wait(experiment_id, 300).state == "COMPLETED", started.log
        assert wait_until(lambda: settled(started, experiment_id))
        found = table(started, experiment_id)
        for number, expected in undisturbed.items():
            assert found[number] == expected, f"trial {number}\n{started.log}"
        assert wait_until(lambda: not started.ranks() and not started.nodes(), 15)


def kill_one(started: Cluster, kind: str, draw: random.Random) -> bool:
    """kill -9 of one process of a kind, if there is one at this moment."""
    if kind == "master":
        started.kill()
        return True
    found = started.nodes() if kind == "node" else started.ranks()
    if not found:
        return False
    try:
        os.kill(draw.choice(sorted(found, key=lambda process: process.pid)).pid, signal.SIGKILL)
    except (ProcessLookupError, psutil.Error):
        return False
    return True


@pytest.mark.slow
def test_a_master_that_comes_back_at_another_port_hears_of_what_runs(tmp_path: pathlib.Path) -> None:
    with cluster(tmp_path / "master", slots=1) as started:
        experiment_id = started.submit(
            code(tmp_path / "code"),
            config(
                tmp_path,
                hyperparameters={"a": 1, "step_seconds": 0.05, "steps": 100_000, "every": 50_000},
                searcher={"name": "single", "metric": "error"},
            ),
        )

        def reported() -> int:
            return sum(trial.steps_completed for trial in started.trials(experiment_id))

        assert wait_until(lambda: reported() > 0, 60), started.log
        started.kill()
        with socket.create_server(("127.0.0.1", 0)) as elsewhere:
            started.port = elsewhere.getsockname()[1]
        started.start()
        before = reported()
        assert wait_until(lambda: reported() > before, 60), started.log


@pytest.mark.slow
def test_a_master_that_is_away_for_a_minute_costs_no_row_and_no_restart(tmp_path: pathlib.Path) -> None:
    trials, away_seconds, a_second = 24, 60.0, 5
    steps = int(away_seconds * 1.3) * a_second
    with cluster(tmp_path / "master", slots=trials) as started:
        experiment_id = started.submit(
            code(tmp_path / "code"),
            config(
                tmp_path,
                hyperparameters={
                    "a": {"type": "int", "minval": 1, "maxval": trials, "count": trials},
                    "step_seconds": 1 / a_second,
                    "steps": steps,
                    "every": steps // 4,
                },
                searcher={"name": "grid", "metric": "error", "max_concurrent_trials": 0},
                max_restarts=0,
            ),
        )
        assert wait_until(
            lambda: sum(trial.state == "RUNNING" for trial in started.trials(experiment_id)) == trials, 120
        )
        started.kill()
        threading.Event().wait(away_seconds)
        started.start()
        assert started.wait(experiment_id, 120).state == "COMPLETED"
        for trial in started.trials(experiment_id):
            assert (trial.state, trial.restarts, trial.run_epoch) == ("COMPLETED", 0, 1), f"{trial}\n{started.log}"
            rows = metrics(started, trial.id)
            assert [row.steps_completed for row in rows if row.group == "training"] == [*range(1, steps + 1)]
