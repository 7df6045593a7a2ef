"""Population based training: rounds, copies, and who takes whose place."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, cast

from determined import config, search
from determined.search.method import Action, Create, Exit, Extend, Finish, Stop
from determined.search.population import Population
from determined.testing.imaginary_search import EVERY_FAULT, ImaginarySearch

LR = {"type": "log", "base": 10, "minval": -3, "maxval": -1}


def population(size: int = 5, rounds: int = 3, **searcher: Any) -> Population:
    asked = {
        "name": "pbt",
        "metric": "loss",
        "population_size": size,
        "num_rounds": rounds,
        "length_per_round": {"epochs": 2},
        **searcher,
    }
    written = {"searcher": asked, "hyperparameters": {"lr": LR, "fixed": 3}}
    return cast("Population", search.build_method(config.load(written), 0))


def told(method: Population, trial: int, epochs: int, loss: Any) -> Sequence[Action]:
    return method.on_validation(trial, {"epochs": epochs, "loss": loss})


def test_after_a_round_copies_of_the_best_take_the_places_of_the_worst() -> None:
    method = population()
    assert method.unit == "epochs"
    first = [action for action in method.start() if isinstance(action, Create)]
    assert [(action.trial, action.target, action.copy_of) for action in first] == [(n, 2, None) for n in range(5)]
    assert told(method, 4, 1, 9.0) == [], "not there yet"
    for trial, loss in enumerate((0.5, 0.1, 0.4, math.nan)):
        assert told(method, trial, 2, loss) == []
    stop, *extends, copy = told(method, 4, 2, 0.3)
    assert stop == Stop(3, "round 1: number 5 of 5, reached not a number")
    assert extends == [Extend(trial, 4) for trial in (0, 1, 2, 4)]
    assert isinstance(copy, Create)
    assert (copy.trial, copy.target, copy.copy_of) == (5, 2, 1), "it counts from 0"
    assert copy.hparams["fixed"] == 3 and copy.hparams["lr"] != first[1].hparams["lr"]
    for trial, epochs in ((0, 4), (1, 4), (2, 4), (4, 4)):
        assert told(method, trial, epochs, 0.5) == []
    assert [type(action) for action in told(method, 5, 2, 0.4)] == [Stop, Extend, Extend, Extend, Extend, Create]
    assert method.progress({}) == 2 / 3


def test_the_last_round_ends_with_everybody() -> None:
    method = population(size=2, rounds=1)
    method.start()
    told(method, 0, 2, 1.0)
    assert [action.trial for action in told(method, 1, 2, 0.5) if isinstance(action, Stop)] == [0, 1]
    assert method.on_exit(1, Exit.COMPLETED) == []
    assert method.on_exit(0, Exit.COMPLETED) == [Finish()]


def test_one_that_ended_is_made_up_for_and_one_that_failed_is_nobodys_parent() -> None:
    method = population(size=3)
    method.start()
    told(method, 0, 1, 0.01)
    assert method.on_exit(0, Exit.ERROR) == []
    told(method, 1, 1, 0.2)
    assert method.on_exit(1, Exit.CANCELED) == []
    extend, *copies = told(method, 2, 2, 0.5)
    assert extend == Extend(2, 4)
    assert [copy.copy_of for copy in copies if isinstance(copy, Create)] == [1, 1], "the best that has a checkpoint"


def test_invalid_members_are_replaced_within_the_round() -> None:
    method = population(size=2)
    method.start()
    [fresh] = method.on_exit(0, Exit.INVALID_HP)
    assert isinstance(fresh, Create) and fresh.trial == 2 and fresh.copy_of is None
    told(method, 1, 2, 0.5)
    assert {type(action) for action in told(method, 2, 2, 0.4)} == {Extend}, "a fifth of two is nobody"


def test_when_nobody_is_worth_going_on_the_search_fails() -> None:
    method = population(size=2)
    method.start()
    assert method.on_exit(0, Exit.ERROR) == []
    *stops, finish = told(method, 1, 2, math.nan)
    assert [type(stop) for stop in stops] == [Stop]
    assert finish == Finish("no trial of round 1 reached a number, so there is none to go on from")
    all_failed = population(size=2)
    all_failed.start()
    all_failed.on_exit(0, Exit.ERROR)
    assert isinstance(all_failed.on_exit(1, Exit.ERROR)[-1], Finish)


def test_sixteen_members_and_ten_rounds_survive_a_crash_after_every_event() -> None:
    def run(crashes: bool) -> ImaginarySearch:
        return ImaginarySearch(lambda: population(16, 10), random.Random(1), faults=EVERY_FAULT, crashes=crashes).run()

    undisturbed, crashed = run(False), run(True)
    assert crashed.actions == undisturbed.actions
    assert cast("Population", crashed.method).table == cast("Population", undisturbed.method).table
    copies = [trial for trial in crashed.trials.values() if trial.create.copy_of is not None]
    assert len(copies) >= 27
