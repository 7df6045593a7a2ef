"""The suite that every search method must pass.

>>> from determined import config, search, testing
>>> class TestMine(testing.SearchConformance):
...     def make_method(self, seed):
...         asked = {"searcher": {"name": "random", "max_trials": 20}, "hyperparameters": {"lr": 0.1}}
...         return search.build_method(config.load(asked), seed)
"""

from __future__ import annotations

import abc
import random
from collections.abc import Mapping
from typing import ClassVar

import pytest

from determined.search.method import Create, Exit, SearchMethod
from determined.testing.imaginary_search import EVERY_FAULT, NO_FAULTS, Faults, ImaginarySearch, by_chance


class SearchConformance(abc.ABC):
    """Subclass it as ``TestXxx`` and say how to make a method; pytest does the rest.

    ``length`` is how far a trial trains that is given no target. Override ``metrics`` for a method that judges by other
    metrics than ``loss``, or by several.
    """

    length: ClassVar[int] = 16
    seeds: ClassVar[range] = range(10)
    has_own_values: ClassVar[bool] = True  # a trial's values depend on its number alone, not on other trials' results
    is_order_free: ClassVar[bool] = False  # what it does with each trial does not depend on who comes first
    judges: ClassVar[bool] = True  # it needs its metric

    @abc.abstractmethod
    def make_method(self, seed: int) -> SearchMethod:
        """The method before its start; twice the same for the same seed."""

    def metrics(self, create: Create, reached: int) -> Mapping[str, float]:
        """What a trial measures."""
        return by_chance(create, reached)

    def search(
        self,
        seed: int,
        *,
        order: int = 0,
        faults: Faults = NO_FAULTS,
        crashes: bool = False,
        places: int | None = None,
    ) -> ImaginarySearch:
        """A whole search."""
        return ImaginarySearch(
            lambda: self.make_method(seed),
            random.Random(f"{seed} {order}"),
            length=self.length,
            faults=faults,
            crashes=crashes,
            places=places,
            metrics=self.metrics,
        ).run()

    def test_a_search_creates_trials_and_comes_to_its_end(self) -> None:
        done = self.search(0)
        assert done.trials
        assert done.finish is not None and done.finish.failure is None

    def test_the_same_events_give_the_same_actions(self) -> None:
        for seed in self.seeds:
            assert self.search(seed, faults=EVERY_FAULT).history == self.search(seed, faults=EVERY_FAULT).history

    def test_a_crash_after_any_event_changes_nothing(self) -> None:
        for seed in self.seeds:
            undisturbed = self.search(seed, faults=EVERY_FAULT)
            crashed = self.search(seed, faults=EVERY_FAULT, crashes=True)
            assert crashed.actions == undisturbed.actions, f"seed {seed}"
            assert crashed.method.dump() == undisturbed.method.dump(), f"seed {seed}"

    def test_whatever_goes_wrong_it_comes_to_its_end(self) -> None:
        for seed in self.seeds:
            draw = random.Random(seed)
            faults = Faults(*(draw.choice((0.0, 0.02, 0.3)) for _ in range(5)))
            self.search(seed, order=1, faults=faults, places=draw.choice((None, 1, 3)))

    def test_it_comes_to_its_end_when_every_trial_fails(self) -> None:
        for exit_ in ("error", "invalid", "canceled", "not_a_number"):
            self.search(0, faults=Faults(**{exit_: 1.0}))

    def test_values_do_not_depend_on_the_order_of_events(self) -> None:
        if not self.has_own_values:
            return
        for seed in self.seeds:
            one, other = (self.search(seed, order=order, faults=EVERY_FAULT) for order in (1, 2))
            for number in one.trials.keys() & other.trials.keys():
                mine, theirs = one.trials[number].create, other.trials[number].create
                assert (mine.hparams, mine.seed) == (theirs.hparams, theirs.seed), f"seed {seed}, trial {number}"

    def test_permuted_completions_and_speeds_change_nothing(self) -> None:
        if not self.is_order_free:
            return
        undisturbed = self.search(0)
        for order in range(1, 101):
            done = self.search(0, order=order, places=(None, 1, 2, 5)[order % 4])
            assert {n: trial.create for n, trial in done.trials.items()} == {
                n: trial.create for n, trial in undisturbed.trials.items()
            }, f"order {order}"
            assert {n: trial.reached for n, trial in done.trials.items()} == {
                n: trial.reached for n, trial in undisturbed.trials.items()
            }, f"order {order}"

    def test_a_validation_without_the_metric_fails_the_search_in_one_sentence(self) -> None:
        if not self.judges:
            return
        method = self.make_method(0)
        created = [action for action in method.start() if isinstance(action, Create)]
        told = {"batches": 1, "epochs": 1, "records": 1, "something_else": 0.5}
        *_, finish = method.on_validation(created[0].trial, told)
        failure = getattr(finish, "failure", None)
        assert failure and "\n" not in failure and "something_else" in failure
        assert not method.on_validation(created[-1].trial, self.metrics(created[-1], 1))
        assert not method.on_exit(created[-1].trial, Exit.COMPLETED)

    @pytest.mark.parametrize("seed", [0, 2**31 - 1])
    def test_any_seed_will_do(self, seed: int) -> None:
        assert self.search(seed).trials
