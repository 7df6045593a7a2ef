"""Single, random and grid search."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from determined import config, search
from determined.search import base
from determined.search.method import Action, Create, Exit, Finish, Stop

LR = {"type": "log", "base": 10, "minval": -3, "maxval": -1, "count": 3}


def method(searcher: dict[str, Any], hyperparameters: dict[str, Any], seed: int = 0) -> search.SearchMethod:
    return search.build_method(config.load({"searcher": searcher, "hyperparameters": hyperparameters}), seed)


def grid(hyperparameters: dict[str, Any], concurrent: int = 0) -> list[dict[str, Any]]:
    searching = method({"name": "grid", "max_concurrent_trials": concurrent}, hyperparameters)
    return [dict(action.hparams) for action in created(searching.start())]


def created(actions: Any) -> list[Create]:
    return [action for action in actions if isinstance(action, Create)]


def test_single_is_one_trial_that_draws_from_its_ranges() -> None:
    one = method({"name": "single"}, {"lr": LR, "n": 3})
    [trial] = created(one.start())
    assert trial.trial == 0 and trial.target is None and 0.001 <= trial.hparams["lr"] <= 0.1
    assert one.on_exit(0, Exit.COMPLETED) == [Finish()]


def test_random_keeps_as_many_running_as_it_may() -> None:
    one = method({"name": "random", "max_trials": 5, "max_concurrent_trials": 2}, {"lr": LR})
    assert [trial.trial for trial in created(one.start())] == [0, 1]
    assert [trial.trial for trial in created(one.on_exit(1, Exit.COMPLETED))] == [2]
    assert [trial.trial for trial in created(one.on_exit(0, Exit.ERROR))] == [3]
    assert one.progress({2: 0.5, 3: 0.5}) == pytest.approx(3 / 5)
    assert [trial.trial for trial in created(one.on_exit(2, Exit.CANCELED))] == [4]
    assert one.on_exit(3, Exit.COMPLETED) == []
    assert one.on_exit(4, Exit.COMPLETED) == [Finish()]
    assert one.progress({}) == 1.0


def test_no_limit_means_all_at_once() -> None:
    one = method({"name": "random", "max_trials": 50, "max_concurrent_trials": 0}, {"lr": LR})
    assert len(created(one.start())) == 50


def test_invalid_values_are_replaced_and_do_not_count() -> None:
    one = method({"name": "random", "max_trials": 1}, {"lr": LR})
    one.start()
    for number in range(5):
        assert [trial.trial for trial in created(one.on_exit(number, Exit.INVALID_HP))] == [number + 1]
    assert one.on_exit(5, Exit.COMPLETED) == [Finish()]


def test_where_all_values_are_constant_invalid_ones_are_not_tried_again() -> None:
    one = method({"name": "single"}, {"lr": 0.1})
    one.start()
    assert one.on_exit(0, Exit.INVALID_HP) == [Finish()]


def test_a_space_without_valid_values_fails_the_search() -> None:
    one = method({"name": "random", "max_trials": 2}, {"lr": LR})
    open_trials = [trial.trial for trial in created(one.start())]
    actions: list[Action] = []
    for _ in range(base.INVALID_IN_A_ROW):
        actions = [*one.on_exit(open_trials.pop(0), Exit.INVALID_HP)]
        open_trials += [trial.trial for trial in created(actions)]
    stop, finish = actions
    assert isinstance(stop, Stop) and stop.trial == open_trials[0]
    assert isinstance(finish, Finish) and str(finish.failure).startswith("100 trials in a row said")


def test_the_grid_is_every_combination_once_the_last_one_first() -> None:
    hyperparameters = {
        "b": {"type": "int", "minval": 1, "maxval": 2, "count": 5},
        "a": {"type": "categorical", "vals": ["x", "y"]},
        "c": {"d": {"type": "double", "minval": 0, "maxval": 1, "count": 3}, "e": {}},
        "f": "const",
    }
    expected = [
        {"b": b, "a": a, "c": {"d": d, "e": {}}, "f": "const"}
        for a, b, d in itertools.product(["x", "y"], [1, 2], [0.0, 0.5, 1.0])
    ]
    assert grid(hyperparameters) == expected[::-1]
    first = grid(hyperparameters, concurrent=2)
    assert first == expected[::-1][:2]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"type": "int", "minval": 0, "maxval": 10, "count": 3}, [0, 5, 10]),
        ({"type": "int", "minval": 0, "maxval": 5, "count": 3}, [0, 3, 5]),
        ({"type": "int", "minval": -5, "maxval": 0, "count": 3}, [-5, -3, 0]),
        ({"type": "int", "minval": 0, "maxval": 3, "count": 1}, [2]),
        ({"type": "int", "minval": 0, "maxval": 2, "count": 9}, [0, 1, 2]),
        ({"type": "double", "minval": 0, "maxval": 1, "count": 1}, [0.5]),
        ({"type": "double", "minval": 0.1, "maxval": 0.7, "count": 2}, [0.1, 0.7]),
        ({"type": "log", "base": 10, "minval": -2, "maxval": 0, "count": 3}, [0.01, 0.1, 1.0]),
    ],
)
def test_points_of_the_grid_along_a_range(written: dict[str, Any], expected: list[float]) -> None:
    points = [trial["x"] for trial in grid({"x": written})][::-1]
    assert points == pytest.approx(expected)
    assert [type(point) for point in points] == [type(point) for point in expected]


def test_a_grid_goes_into_choices() -> None:
    momentum = {"type": "double", "minval": 0, "maxval": 1, "count": 2}
    choice = {"type": "categorical", "vals": [{"name": "sgd", "m": momentum}, {"name": "adam"}, 5]}
    assert [trial["o"] for trial in grid({"o": choice})][::-1] == [
        {"name": "sgd", "m": 0.0},
        {"name": "sgd", "m": 1.0},
        {"name": "adam"},
        5,
    ]


def test_a_grid_does_not_replace_what_is_invalid() -> None:
    one = method({"name": "grid"}, {"lr": LR})
    trials = created(one.start())
    assert len(trials) == 3
    assert [*one.on_exit(0, Exit.INVALID_HP)] == [] == [*one.on_exit(1, Exit.ERROR)]
    assert one.on_exit(2, Exit.INVALID_HP) == [Finish()]


def test_a_grid_without_ranges_is_one_trial() -> None:
    assert grid({"lr": 0.1}) == [{"lr": 0.1}]


def test_a_huge_grid_costs_nothing_to_begin() -> None:
    axis = {"type": "int", "minval": 0, "maxval": 10**6 - 1, "count": 10**6}
    one = method({"name": "grid", "max_concurrent_trials": 2}, {"a": axis, "b": axis, "c": axis})
    assert [trial.hparams["c"] for trial in created(one.start())] == [10**6 - 1, 10**6 - 2]
