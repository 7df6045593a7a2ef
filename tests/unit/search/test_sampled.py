"""Optuna's samplers behind our contract."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import pytest

from determined import config, errors, search
from determined.search.method import Create, Exit, Finish, Stop

SPACE = {
    "x": {"type": "double", "minval": -2, "maxval": 2},
    "y": {"type": "log", "base": 10, "minval": -4, "maxval": 0},
    "n": {"type": "int", "minval": 1, "maxval": 8},
    "kind": {"type": "categorical", "vals": ["a", {"name": "b", "z": {"type": "double", "minval": 0, "maxval": 1}}]},
}


def sampled(space: dict[str, Any] | None = None, seed: int = 0, **searcher: Any) -> search.SearchMethod:
    asked = {"name": "tpe", "max_trials": 60, "max_concurrent_trials": 1, **searcher}
    if "objectives" not in searcher:
        asked["metric"] = "loss"
    return search.build_method(config.load({"searcher": asked, "hyperparameters": space or SPACE}), seed)


def bowl(hparams: Any) -> float:
    return float((hparams["x"] - 0.7) ** 2 + 0.1 * abs(math.log10(hparams["y"]) + 2))


def trials_of(method: search.SearchMethod, loss: Any = bowl) -> list[Create]:
    """All its trials, one after the other."""
    queue = [action for action in method.start() if isinstance(action, Create)]
    done = []
    while queue:
        trial = queue.pop(0)
        done.append(trial)
        actions = [*method.on_validation(trial.trial, {"batches": 5, "loss": loss(trial.hparams)})]
        actions += method.on_exit(trial.trial, Exit.COMPLETED)
        queue += [action for action in actions if isinstance(action, Create)]
    return done


@pytest.mark.parametrize(("name", "trials"), [("tpe", 60), ("cmaes", 60), ("gp", 16)])
def test_it_learns_where_good_values_are(name: str, trials: int) -> None:
    losses = [bowl(trial.hparams) for trial in trials_of(sampled(name=name, max_trials=trials))]
    assert sum(losses[-5:]) / 5 < sum(losses[:10]) / 10 / 2


def test_it_turns_round_for_a_metric_of_which_more_is_better() -> None:
    trials = trials_of(sampled(smaller_is_better=False), lambda hparams: -bowl(hparams))
    assert [trial.hparams for trial in trials] == [trial.hparams for trial in trials_of(sampled())]


def test_quasi_random_points_fill_the_space_evenly() -> None:
    trials = trials_of(sampled(name="qmc", max_trials=64))
    for low in (-2, -1, 0, 1):
        assert 13 <= sum(low <= trial.hparams["x"] < low + 1 for trial in trials) <= 19


def test_conditional_values_exist_where_they_were_chosen() -> None:
    kinds = [trial.hparams["kind"] for trial in trials_of(sampled())]
    assert "a" in kinds
    assert all(kind == "a" or (kind["name"] == "b" and 0 <= kind["z"] <= 1) for kind in kinds)
    assert any(kind != "a" for kind in kinds)


def test_a_suggestion_is_a_function_of_the_history_and_not_of_the_object() -> None:
    method = sampled(max_concurrent_trials=4)
    queue = [action for action in method.start() if isinstance(action, Create)]
    for _ in range(30):
        trial = queue.pop(0)
        other = sampled(max_concurrent_trials=4)
        other.load(json.loads(json.dumps(method.dump(), allow_nan=False)))
        told = {"batches": 5, "loss": bowl(trial.hparams)}
        assert other.on_validation(trial.trial, told) == method.on_validation(trial.trial, told)
        after = method.on_exit(trial.trial, Exit.COMPLETED)
        assert other.on_exit(trial.trial, Exit.COMPLETED) == after
        queue += [action for action in after if isinstance(action, Create)]


def test_another_seed_draws_other_values() -> None:
    assert trials_of(sampled(max_trials=3)) != trials_of(sampled(max_trials=3, seed=1))


def test_where_trials_fail_it_does_not_go_again() -> None:
    method = sampled(max_trials=80)
    queue = [action for action in method.start() if isinstance(action, Create)]
    bad = []
    while queue:
        trial = queue.pop(0)
        is_bad = trial.hparams["x"] > 0
        bad.append(is_bad)
        if not is_bad:
            method.on_validation(trial.trial, {"loss": 1.0})
        actions = method.on_exit(trial.trial, Exit.ERROR if is_bad else Exit.COMPLETED)
        queue += [action for action in actions if isinstance(action, Create)]
    assert sum(bad[-30:]) < sum(bad[:15])


def test_not_a_number_is_no_result() -> None:
    trials = trials_of(sampled(max_trials=30), lambda hparams: math.nan if hparams["x"] > 0 else 1.0)
    assert len(trials) == 30
    assert sum(trial.hparams["x"] > 0 for trial in trials[-10:]) <= 5


def test_a_pruner_stops_what_is_worse_than_the_others_were_then() -> None:
    method = sampled(pruner="median", pruner_options={"n_startup_trials": 3}, max_length={"epochs": 4})
    method.start()
    for trial in range(4):
        for epoch in range(1, 5):
            assert method.on_validation(trial, {"epochs": epoch, "loss": 1.0 / epoch}) == []
        method.on_exit(trial, Exit.COMPLETED)
    assert method.on_validation(4, {"epochs": 1, "loss": 0.9}) == []
    assert not method.on_validation(5, {"epochs": 1, "loss": 0.9}), "not open"
    stopped = method.on_validation(4, {"epochs": 4, "loss": 0.8})
    assert stopped == [Stop(4, "median pruner after 4 epochs: reached 0.8")]
    assert method.on_validation(4, {"epochs": 3, "loss": 0.0}) == []
    [create] = method.on_exit(4, Exit.COMPLETED)
    assert isinstance(create, Create)


def test_several_objectives_need_all_their_metrics() -> None:
    both = [{"metric": "loss"}, {"metric": "accuracy", "smaller_is_better": False}]
    method = sampled(objectives=both)
    method.start()
    assert method.on_validation(0, {"loss": 1.0, "accuracy": 0.5}) == []
    *_, finish = method.on_validation(0, {"loss": 1.0})
    assert isinstance(finish, Finish) and "has no metric accuracy" in str(finish.failure)


@pytest.mark.parametrize("name", ["tpe", "cmaes", "qmc", "gp"])
def test_constants_alone_are_a_space_too(name: str) -> None:
    trials = trials_of(sampled({"x": 0.5, "y": 0.1}, name=name, max_trials=12))
    assert [dict(trial.hparams) for trial in trials] == [{"x": 0.5, "y": 0.1}] * 12


@pytest.mark.parametrize("name", ["tpe", "cmaes", "qmc"])
def test_one_dimension_is_enough(name: str) -> None:
    space = {"x": {"type": "double", "minval": -2, "maxval": 2}, "y": 0.1}
    assert len(trials_of(sampled(space, name=name, max_trials=25))) == 25


def test_options_reach_the_sampler() -> None:
    assert len(trials_of(sampled(options={"n_startup_trials": 3, "n_ei_candidates": 4}, max_trials=8))) == 8


@pytest.mark.parametrize(
    ("searcher", "says"),
    [
        ({"options": {"n_startup": 3}}, "searcher.options.n_startup is not an option of searcher tpe; it has"),
        ({"options": {"seed": 3}}, "searcher.options.seed has no place: the seed is reproducibility.experiment_seed"),
        ({"name": "qmc", "options": {"qmc_type": "x"}}, "searcher.options cannot be used: "),
        ({"pruner": "median", "pruner_options": {"x": 1}}, "searcher.pruner_options.x is not an option of pruner"),
        (
            {"pruner": "percentile", "pruner_options": {"percentile": 101}},
            "searcher.pruner_options cannot be used: Percentile must be between",
        ),
        ({"pruner": "hyperband"}, "searcher.pruner_options.max_resource must be a number with pruner hyperband"),
        (
            {"pruner": "successive_halving", "pruner_options": {"min_resource": "auto"}},
            "searcher.pruner_options.min_resource must be a number",
        ),
    ],
)
def test_what_a_sampler_or_pruner_does_not_take_is_refused(searcher: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.InvalidConfigurationException) as refused:
        sampled(**searcher)
    assert str(refused.value).startswith(says)


def test_optuna_says_nothing(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.INFO):
        trials_of(sampled(max_trials=15))
    assert capfd.readouterr() == ("", "")
