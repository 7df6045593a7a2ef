"""Our search methods pass the suite for search methods."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from determined import config, search, testing
from determined.testing import imaginary_search

SPACE: dict[str, Any] = {
    "global_batch_size": 1,
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1, "count": 3},
    "layers": {"type": "int", "minval": 1, "maxval": 4, "count": 2},
    "optimizer": {
        "type": "categorical",
        "vals": [
            {"name": "sgd", "momentum": {"type": "double", "minval": 0, "maxval": 1, "count": 2}},
            {"name": "adam", "beta": 0.9},
        ],
    },
}


class Conformance(testing.SearchConformance):
    searcher: ClassVar[dict[str, Any]]

    @functools.cached_property
    def config(self) -> config.ExperimentConfig:
        return config.load({"searcher": self.searcher, "hyperparameters": SPACE})

    def make_method(self, seed: int) -> search.SearchMethod:
        return search.build_method(self.config, seed)


class TestSingle(Conformance):
    searcher = {"name": "single"}
    judges = False
    is_order_free = True


class TestRandom(Conformance):
    searcher = {"name": "random", "max_trials": 30, "max_concurrent_trials": 4}
    judges = False
    is_order_free = True


class TestGrid(Conformance):
    searcher = {"name": "grid", "max_concurrent_trials": 5}
    judges = False
    is_order_free = True


class TestAsha(Conformance):
    searcher = {"name": "asha", "metric": "loss", "max_trials": 40, "max_length": {"epochs": 16}, "num_rungs": 3}


class TestAshaByRecords(Conformance):
    searcher = {"name": "asha", "metric": "loss", "max_trials": 20, "max_length": {"records": 16}, "num_rungs": 3}


class TestAshaWithPromotions(Conformance):
    searcher = {**TestAsha.searcher, "stop_once": False, "max_concurrent_trials": 7, "smaller_is_better": False}


class TestAdaptiveAsha(Conformance):
    searcher = {
        "name": "adaptive_asha",
        "metric": "loss",
        "max_trials": 40,
        "max_length": {"epochs": 16},
        "mode": "conservative",
        "divisor": 2,
    }


class TestAdaptiveAshaWithPromotions(Conformance):
    searcher = {**TestAdaptiveAsha.searcher, "stop_once": False, "max_concurrent_trials": 0}


class TestPopulation(Conformance):
    searcher = {
        "name": "pbt",
        "metric": "loss",
        "population_size": 8,
        "num_rounds": 5,
        "length_per_round": {"epochs": 3},
    }
    is_order_free = True
    has_own_values = False


class Sampled(Conformance):
    has_own_values = False
    seeds = range(3)


class TestTpe(Sampled):
    searcher = {"name": "tpe", "metric": "loss", "max_trials": 30, "max_concurrent_trials": 3}


class TestTpeWithMedianPruner(Sampled):
    searcher = {**TestTpe.searcher, "pruner": "median", "max_length": {"epochs": 16}, "smaller_is_better": False}


class TestTpeWithHalvingPruner(Sampled):
    searcher = {**TestTpe.searcher, "pruner": "successive_halving"}


class TestTpeWithSeveralObjectives(Sampled):
    searcher = {
        "name": "tpe",
        "objectives": [{"metric": "loss"}, {"metric": "accuracy", "smaller_is_better": False}],
        "max_trials": 25,
        "max_concurrent_trials": 3,
    }

    def metrics(self, create: search.Create, reached: int) -> Mapping[str, float]:
        draw = random.Random(create.seed)
        return {"loss": draw.random(), "accuracy": 1 - math.exp(-reached) * draw.random()}


class TestCmaEs(Sampled):
    seeds = range(1)
    searcher = {"name": "cmaes", "metric": "loss", "max_trials": 25, "max_concurrent_trials": 2}


class TestCmaEsWithHyperband(Sampled):
    searcher = {**TestCmaEs.searcher, "pruner": "hyperband", "max_length": {"epochs": 16}}


class TestQmc(Sampled):
    seeds = range(1)
    searcher = {"name": "qmc", "metric": "loss", "max_trials": 20, "max_concurrent_trials": 3}


class TestGp(Sampled):
    searcher = {"name": "gp", "metric": "loss", "max_trials": 14, "max_concurrent_trials": 2}
    seeds = range(1)


THOUSAND = (TestRandom, TestGrid, TestAsha, TestAshaWithPromotions, TestAdaptiveAsha, TestPopulation)


@pytest.mark.slow
@pytest.mark.parametrize("kind", THOUSAND, ids=lambda kind: str(kind.__name__))
def test_of_a_thousand_disturbed_searches_none_is_stuck_or_lost(kind: type[Conformance]) -> None:
    """A failure is seen again from its seed: ``TestX().search(seed, order=3, faults=...)``."""
    suite = kind()
    for seed in range(1000 // len(THOUSAND) + 1):
        draw = random.Random(seed)
        faults = imaginary_search.Faults(*(draw.choice((0.0, 0.02, 0.2)) for _ in range(5)))
        done = suite.search(seed, order=3, faults=faults, places=draw.choice((None, 1, 4)))
        assert all(trial.exit is not None for trial in done.trials.values()), f"seed {seed}"
