"""A search ends with the same answer, whatever happens to it on the way."""

from __future__ import annotations

import functools
import gc
import logging
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.master.engine.disasters import Play

# More of them for a night: RESOLUTE_SEEDS=100000.
SEEDS = int(os.environ.get("RESOLUTE_SEEDS", "1000"))
X = {"x": {"type": "double", "minval": 0.0, "maxval": 1.0}}
SEARCHES: dict[str, dict[str, Any]] = {
    "grid": {
        "searcher": {"name": "grid", "metric": "loss", "max_length": {"batches": 4}},
        "hyperparameters": {"x": {"type": "double", "minval": 0.0, "maxval": 1.0, "count": 3}},
    },
    "random": {
        "searcher": {"name": "random", "metric": "loss", "max_length": {"batches": 4}, "max_trials": 3},
        "hyperparameters": X,
    },
    "asha": {
        "searcher": {
            "name": "async_halving",
            "metric": "loss",
            "max_length": {"batches": 4},
            "max_trials": 4,
            "num_rungs": 2,
            "divisor": 2,
        },
        "hyperparameters": X,
    },
    "pbt": {
        "searcher": {
            "name": "pbt",
            "metric": "loss",
            "population_size": 2,
            "num_rounds": 2,
            "length_per_round": {"batches": 2},
        },
        "hyperparameters": X,
    },
    "tpe": {
        "searcher": {"name": "tpe", "metric": "loss", "max_length": {"batches": 4}, "max_trials": 3},
        "hyperparameters": X,
    },
}


@pytest.fixture(autouse=True)
def few_things_to_collect() -> Iterator[None]:
    """Leave all that is there before the plays to itself: looking through it again and again is a third of the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


# Whatever the order in which their trials report, these come to the same.
ORDERLY = {"grid", "random"}
ONE_BY_ONE = {"asha", "tpe"}


def _config(name: str, seed: int) -> dict[str, Any]:
    # On one slot, on all of a machine, or on all machines: then a gang runs whole or not at all.
    resources = {"slots_per_trial": (1, 2, 4)[seed % 3]}
    config = {**SEARCHES[name], "resources": resources, "reproducibility": {"experiment_seed": seed % 5}}
    if name in ONE_BY_ONE and seed % 2:
        # One trial at a time leaves no order to choose.
        config["searcher"] = {**config["searcher"], "max_concurrent_trials": 1}
    return config


@functools.cache
def _undisturbed(name: str, seed: int, folder: pathlib.Path) -> Any:
    play = Play(folder, _config(name, seed), 0, is_calm=True)
    play.run()
    result = play.result(only_decisions=name == "asha")
    play.close()
    return result


@pytest.mark.parametrize("name", [*SEARCHES])
def test_the_same_answer_through_all_disasters(
    name: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    crashes = 0
    for seed in range(SEEDS // len(SEARCHES)):
        play = Play(tmp_path, _config(name, seed), seed)
        try:
            play.run()
            play.check_decisions()
            if name in ORDERLY or (name in ONE_BY_ONE and seed % 2):
                # One that is to stop may report once more before it does: what it was given is the same.
                assert play.result(only_decisions=name == "asha") == _undisturbed(name, seed % 10, tmp_path)
        except BaseException:
            print(f"it is seed {seed} of {name}")
            raise
        finally:
            crashes += play.crashes
            play.close()
    assert crashes > SEEDS // len(SEARCHES)
