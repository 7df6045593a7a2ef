"""First values of a search space, and what is told about them."""

from __future__ import annotations

import math
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from determined import config, errors
from determined.config import hparams


def test_constants_stay_and_ranges_give_their_first_value_with_a_notice_each() -> None:
    values, notices = config.first_values(
        {
            "batch": 64,
            "layers": [1, 2],
            "lr": {"type": "log", "base": 10, "minval": -3, "maxval": -1},
            "n": {"type": "int", "minval": 3, "maxval": 9},
            "opt": {
                "name": {"type": "categorical", "vals": ["sgd", "adam"]},
                "momentum": {"type": "double", "minval": 0, "maxval": 1},
                "fixed": {"type": "const", "val": {"a": 1}},
            },
        }
    )
    assert values == {
        "batch": 64,
        "layers": [1, 2],
        "lr": 0.001,
        "n": 3,
        "opt": {"name": "sgd", "momentum": 0.0, "fixed": {"a": 1}},
    }
    assert type(values["opt"]["momentum"]) is float
    assert len(notices) == 4
    assert notices[0].startswith("lr = 0.001: the first value of its range (log)")
    assert notices[2].startswith("opt.name = 'sgd'")


def test_no_ranges_no_notices() -> None:
    assert config.first_values({"a": None}) == ({"a": None}, ())
    assert config.first_values({}) == ({}, ())


def test_a_wrong_space_lists_its_mistakes() -> None:
    with pytest.raises(errors.InvalidConfigurationException) as caught:
        config.first_values({"a": {"type": "int"}, "b": {"type": "x"}})
    message = str(caught.value)
    assert message.startswith("hyperparameters has 3 mistakes")
    assert "hyperparameters.a.minval is required" in message
    assert "hyperparameters.b.type must be one of" in message


def test_a_range_without_a_type_is_pointed_out() -> None:
    loaded = config.load({"hyperparameters": {"lr": {"minval": 0, "maxval": 1}, "opt": {"x": {"vals": [1]}}}})
    assert loaded.notices == (
        "hyperparameters.lr has no type, so it is a map of constants and nothing is searched",
        "hyperparameters.opt.x has no type, so it is a map of constants and nothing is searched",
    )


names = strategies.text("abcdefg_", min_size=1, max_size=5).filter(lambda name: name != "type")
numbers = strategies.floats(-8, 8, allow_nan=False).map(lambda number: round(number, 3))
bounds = strategies.tuples(numbers, numbers).filter(lambda pair: pair[0] < pair[1])
whole_bounds = strategies.tuples(strategies.integers(-99, 99), strategies.integers(-99, 99)).filter(
    lambda pair: pair[0] < pair[1]
)
constants = strategies.none() | strategies.booleans() | strategies.integers(-9, 9) | strategies.text(max_size=5)
ranges = strategies.one_of(
    constants,
    strategies.lists(constants, max_size=3),
    bounds.map(lambda pair: {"type": "double", "minval": pair[0], "maxval": pair[1], "count": 3}),
    whole_bounds.map(lambda pair: {"type": "int", "minval": pair[0], "maxval": pair[1]}),
    bounds.map(lambda pair: {"type": "log", "base": 2, "minval": pair[0], "maxval": pair[1]}),
    strategies.lists(constants, min_size=1, max_size=3).map(lambda vals: {"type": "categorical", "vals": vals}),
    constants.map(lambda value: {"type": "const", "val": {"map": value}}),
)
spaces = strategies.recursive(
    strategies.dictionaries(names, ranges, max_size=4),
    lambda inner: strategies.dictionaries(names, inner | ranges, max_size=3),
    max_leaves=6,
)


@hypothesis.given(spaces)
def test_first_values_lie_in_the_space_and_every_range_is_told_of(space: dict[str, Any]) -> None:
    checked = hparams.checked(space)
    values, notices = hparams.first_values(checked)
    assert len(notices) == len(list(checked.ranges()))
    assert _lies_in(values, checked)


@hypothesis.given(spaces)
def test_a_space_survives_being_written_and_read_again(space: dict[str, Any]) -> None:
    loaded = config.load({"hyperparameters": space})
    assert config.load(loaded.as_dict()) == loaded


def _lies_in(value: Any, space: Any) -> bool:
    if isinstance(space, hparams.Hyperparameters):
        return value.keys() == space.root.keys() and all(_lies_in(value[name], inner) for name, inner in space.items())
    if isinstance(space, hparams.Const):
        return bool(value == space.val)
    if isinstance(space, hparams.Categorical):
        return value in space.vals
    if isinstance(space, hparams.Log):
        exponent = math.log(value, space.base)
        return space.minval - 1e-9 <= exponent <= space.maxval + 1e-9
    return bool(space.minval <= value <= space.maxval) and (isinstance(value, int) or isinstance(space, hparams.Double))


CONDITIONAL = {
    "optimizer": {
        "type": "categorical",
        "vals": [
            {"name": "sgd", "momentum": {"type": "double", "minval": 0, "maxval": 1, "count": 2}},
            {"name": "adam"},
            {"type": "conv", "size": 3},
            {"type": "int", "minval": 1, "maxval": 5, "count": 2},
        ],
    }
}


def test_a_value_to_choose_may_hold_ranges_and_others_stay_as_they_are() -> None:
    loaded = config.load({"hyperparameters": CONDITIONAL})
    choice = loaded.hyperparameters["optimizer"]
    assert isinstance(choice, hparams.Categorical)
    searched, *literal, number = choice.vals
    assert isinstance(searched, hparams.Hyperparameters) and isinstance(searched["momentum"], hparams.Double)
    assert literal == [{"name": "adam"}, {"type": "conv", "size": 3}]
    assert isinstance(number, hparams.Int)
    assert config.load(loaded.as_dict()) == loaded
    assert config.first_values(loaded.hyperparameters)[0] == {"optimizer": {"name": "sgd", "momentum": 0.0}}


def test_mistakes_inside_a_choice_are_found_where_they_are() -> None:
    spaces = [{"x": {"type": "double", "minval": 2, "maxval": 1}}, {"type": "log", "minval": 0, "maxval": 1, "cont": 3}]
    with pytest.raises(errors.InvalidConfigurationException) as caught:
        config.load(
            {"searcher": {"name": "grid"}, "hyperparameters": {"a": {"type": "categorical", "vals": [*spaces, "x"]}}}
        )
    message = str(caught.value)
    assert "hyperparameters.a.vals[0].x.minval must be less than maxval" in message
    assert "hyperparameters.a.vals[0].x.count is required by the grid searcher" in message
    assert "hyperparameters.a.vals[1].cont is not a field; did you mean count?" in message
