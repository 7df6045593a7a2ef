"""Values drawn from a space, and values near others."""

from __future__ import annotations

import random
from typing import Any

from determined import config
from determined.search.space import Space, trial_rng, trial_seed

WRITTEN: dict[str, Any] = {
    "zeta": {"type": "double", "minval": -1, "maxval": 1},
    "batch": 64,
    "alpha": {"type": "int", "minval": 1, "maxval": 3},
    "nested": {"lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1}, "empty": {}},
    "shape": {"type": "const", "val": {"a": [1]}},
    "optimizer": {
        "type": "categorical",
        "vals": [
            {"name": "sgd", "momentum": {"type": "double", "minval": 0.5, "maxval": 1}},
            {"name": "adam", "warmup": {"type": "categorical", "vals": [1, True, 1.0, None]}},
            {"type": "int", "minval": 7, "maxval": 9},
        ],
    },
}


def space(written: dict[str, Any] = WRITTEN) -> Space:
    return Space(config.load({"hyperparameters": written}).hyperparameters)


def test_every_value_lies_in_its_range_and_every_one_comes_up() -> None:
    samples = [space().sample(random.Random(number)) for number in range(300)]
    assert {sample["alpha"] for sample in samples} == {1, 2, 3}
    for sample in samples:
        assert list(sample) == list(WRITTEN)
        assert -1 <= sample["zeta"] <= 1 and 1e-4 <= sample["nested"]["lr"] <= 1e-1
        assert sample["batch"] == 64 and sample["shape"] == {"a": [1]} and sample["nested"]["empty"] == {}
    exponents = sorted(sample["nested"]["lr"] for sample in samples)
    assert 1e-3 < exponents[150] < 1e-2, "log is even over the orders of magnitude"


def test_what_depends_on_a_choice_exists_only_where_it_was_chosen() -> None:
    chosen = [space().sample(random.Random(number))["optimizer"] for number in range(200)]
    names = [choice.get("name") if isinstance(choice, dict) else choice for choice in chosen]
    assert set(names) == {"sgd", "adam", 7, 8, 9}
    for choice in chosen:
        if isinstance(choice, dict):
            assert set(choice) == ({"name", "momentum"} if choice["name"] == "sgd" else {"name", "warmup"})
    warmups = {repr(choice["warmup"]) for choice in chosen if isinstance(choice, dict) and choice["name"] == "adam"}
    assert warmups == {"1", "True", "1.0", "None"}


def test_the_order_in_which_names_are_written_does_not_matter() -> None:
    turned = dict(reversed(WRITTEN.items()))
    for number in range(20):
        assert space().sample(random.Random(number)) == space(turned).sample(random.Random(number))


def test_a_trials_numbers_depend_on_the_seed_and_its_number_only() -> None:
    seeds = {trial_seed(trial_rng(seed, trial)) for seed in range(20) for trial in range(20)}
    assert len(seeds) == 400 and all(0 <= seed < 2**31 for seed in seeds)
    assert trial_seed(trial_rng(1, 2)) == trial_seed(trial_rng(1, 2)) != trial_seed(trial_rng(1, 2, "other"))


def test_changing_what_was_drawn_does_not_change_the_space() -> None:
    one = space()
    one.sample(random.Random(0))["shape"]["a"].append(2)
    assert one.sample(random.Random(0))["shape"] == {"a": [1]}


def test_near_values_stay_in_their_ranges_and_keep_their_choice() -> None:
    one = space()
    for number in range(200):
        draw = random.Random(number)
        old = one.sample(draw)
        new = one.explore(old, draw, 0.0, 0.2)
        assert new["batch"] == 64 and -1 <= new["zeta"] <= 1 and 1 <= new["alpha"] <= 3
        assert abs(new["nested"]["lr"] / old["nested"]["lr"] - 1) < 0.21
        assert abs(new["alpha"] - old["alpha"]) <= 1
        if isinstance(old["optimizer"], dict):
            assert new["optimizer"]["name"] == old["optimizer"]["name"]
            assert new["optimizer"].get("warmup", "x") == old["optimizer"].get("warmup", "x")
            assert type(new["optimizer"].get("warmup")) is type(old["optimizer"].get("warmup"))
        else:
            assert 7 <= new["optimizer"] <= 9


def test_small_whole_numbers_can_move() -> None:
    counting = space({"n": {"type": "int", "minval": 0, "maxval": 100}})
    moved = {counting.explore({"n": 1}, random.Random(number), 0.0, 0.2)["n"] for number in range(20)}
    assert moved == {0, 2}
    still = {counting.explore({"n": 1}, random.Random(number), 0.0, 0.0)["n"] for number in range(20)}
    assert still == {1}


def test_drawn_anew_with_probability_one_nothing_is_kept_but_constants() -> None:
    one = space()
    old = one.sample(random.Random(1))
    assert one.explore(old, random.Random(2), 1.0, 0.2)["zeta"] != old["zeta"]


def test_a_base_below_one_turns_the_bounds_round() -> None:
    small = space({"x": {"type": "log", "base": 0.5, "minval": 0, "maxval": 4}})
    for number in range(50):
        old = small.sample(random.Random(number))
        assert 0.0625 <= old["x"] <= 1
        assert 0.0625 <= small.explore(old, random.Random(number), 0.0, 0.9)["x"] <= 1
