"""What a search will do, before anything is spent."""

from __future__ import annotations

from typing import Any

import pytest

from determined import config
from determined.search.simulate import Preview, simulate

LR = {"type": "log", "base": 10, "minval": -3, "maxval": -1, "count": 5}


def preview(searcher: dict[str, Any], resources: dict[str, Any] | None = None, **options: Any) -> Preview:
    hyperparameters = options.pop("hyperparameters", {"lr": LR})
    asked = {"hyperparameters": hyperparameters, "searcher": searcher, "resources": resources or {}}
    return simulate(config.load(asked), 0, **options)


def rows(found: Preview) -> list[tuple[int, float | None]]:
    return [(row.trials, row.target) for row in found.rows]


ADAPTIVE = {
    "name": "adaptive_asha",
    "metric": "loss",
    "divisor": 3,
    "max_rungs": 10,
    "max_time": 900,
    "time_metric": "batches",
    "max_trials": 10,
}


@pytest.mark.parametrize("stop_once", [True, False])
@pytest.mark.parametrize("slots", [None, 1, 3])
def test_successive_halving_lets_so_many_trials_train_for_so_long(stop_once: bool, slots: int | None) -> None:
    found = preview({**ADAPTIVE, "stop_once": stop_once}, slots=slots)
    assert rows(found) == [(5, 100), (3, 300), (2, 900)]
    assert (found.trials, found.total, found.rows[0].unit) == (10, 3200, "batches")


def test_luck_decides_when_trials_are_told_what_they_measure() -> None:
    improving = preview(ADAPTIVE, metric=lambda trial, _: -trial, slots=1)
    assert rows(improving) == [(10, 900)], "each is better than all before it"
    hopeless = preview(ADAPTIVE, metric=lambda trial, _: trial, slots=1)
    assert rows(hopeless)[-1] == (2, 900), "the first of each bracket"


def test_trials_that_do_not_depend_on_each_other() -> None:
    searcher = {"name": "random", "max_trials": 33, "max_concurrent_trials": 8, "max_length": {"epochs": 10}}
    found = preview(searcher, slots=4, seconds_per_unit=36)
    assert rows(found) == [(33, 10)]
    assert (found.total, found.elapsed) == (330, 90)
    assert (found.slot_hours, found.hours) == pytest.approx((3.3, 0.9))
    assert len(found.examples) == 4 or len(found.examples) == 5
    assert all(0.001 <= example["lr"] <= 0.1 for example in found.examples)


def test_gangs_take_more_slots() -> None:
    searcher = {"name": "random", "max_trials": 4, "max_length": {"epochs": 10}}
    found = preview(searcher, {"slots_per_trial": 4}, slots=8, seconds_per_unit=3600)
    assert (found.elapsed, found.slot_hours, found.hours) == (20, 160, 20)
    assert "could not run there" in preview(searcher, {"slots_per_trial": 4}, slots=2).notices[0]


def test_a_grid_too_large_to_list_is_counted() -> None:
    axis = {"type": "int", "minval": 1, "maxval": 10**6, "count": 10**6}
    found = preview({"name": "grid", "max_length": {"batches": 2}}, hyperparameters={"a": axis, "b": axis})
    assert rows(found) == [(10**12, 2)]


def test_a_population() -> None:
    searcher = {"name": "pbt", "metric": "loss", "population_size": 10, "num_rounds": 4}
    found = preview({**searcher, "length_per_round": {"epochs": 2}})
    assert found.trials == 16 and found.total == 80 and found.elapsed == 8
    assert sum(row.trials for row in found.rows) == 16


def test_what_cannot_be_known_is_said() -> None:
    found = preview({"name": "single"})
    assert rows(found) == [(1, None)] and found.total == 0 and found.slot_hours is None
    assert found.notices[0].startswith("how long a trial trains is left to the script")
    constant = preview({"name": "random", "max_trials": 2}, hyperparameters={"lr": 1})
    assert "all trials have the same values" in constant.notices[-1]
    pruned = preview(
        {"name": "tpe", "metric": "loss", "max_trials": 5, "pruner": "median", "max_length": {"epochs": 2}}
    )
    assert rows(pruned) == [(5, 2)] and "as if no trial were stopped" in pruned.notices[-1]
