"""Successive halving: shapes of brackets, and who goes on in both forms."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any, cast

import pytest

from determined import config, search
from determined.search import asha
from determined.search.adaptive_asha import bracket_shapes, share_places, share_trials
from determined.search.asha import Halving, rungs
from determined.search.method import Action, Create, Exit, Extend, Finish, Stop
from determined.testing.imaginary_search import EVERY_FAULT, ImaginarySearch

LR = {"type": "log", "base": 10, "minval": -3, "maxval": -1}


def halving(hparams: dict[str, Any] | None = None, **searcher: Any) -> Halving:
    asked = {"name": "asha", "metric": "loss", "time_metric": "batches", "divisor": 3, **searcher}
    if "max_length" in searcher:
        del asked["time_metric"]
    written = {"searcher": asked, "hyperparameters": hparams or {"lr": LR}}
    return cast("Halving", search.build_method(config.load(written), 0))


def told(method: Halving, trial: int, batches: int, loss: Any) -> Sequence[Action]:
    return method.on_validation(trial, {"batches": batches, "loss": loss})


def kinds(actions: Sequence[Action]) -> list[tuple[str, int]]:
    return [(type(action).__name__, getattr(action, "trial", -1)) for action in actions]


@pytest.mark.parametrize(
    ("trials", "divisor", "counts", "expected"),
    [
        (20, 3, [3, 2, 1], [12, 5, 3]),
        (50, 3, [4, 3], [35, 15]),
        (50, 4, [3, 2], [37, 13]),
        (100, 4, [4, 3, 2], [70, 22, 8]),
        (3, 4, [3, 2, 1], [1, 1, 1]),
    ],
)
def test_brackets_share_the_trials(trials: int, divisor: float, counts: list[int], expected: list[int]) -> None:
    assert share_trials(trials, divisor, counts) == expected


@pytest.mark.parametrize(
    ("concurrent", "divisor", "trials", "expected"),
    [(11, 3, [9, 3, 1], [4, 4, 3]), (0, 3, [9, 3, 1], [3, 3, 3]), (0, 4, [40, 10], [10, 10]), (1, 3, [9, 3], [1, 1])],
)
def test_brackets_share_the_places(concurrent: int, divisor: float, trials: list[int], expected: list[int]) -> None:
    assert share_places(concurrent, divisor, trials) == expected


def test_shapes_follow_from_the_mode() -> None:
    def shapes(*arguments: Any) -> list[tuple[int, int, int]]:
        made = bracket_shapes(*arguments)
        return [(len(shape.rungs), shape.max_trials, shape.concurrent) for shape in made]

    assert shapes(100, 10, 2, 4) == [(2, 7, 1), (1, 3, 1)]
    assert shapes(1000, 10, 5, 3, "conservative") == [(3, 7, 2), (2, 2, 2), (1, 1, 1)]
    assert shapes(1000, 10, 5, 3, "aggressive") == [(3, 10, 5)]
    assert shapes(1000, 2, 5, 3, "standard", 5, [1, 3, 2]) == [(3, 1, 1), (2, 1, 1)]
    assert len(bracket_shapes(125, 125, 16, 5, "aggressive")[0].rungs) == 4


def test_rungs() -> None:
    assert rungs(3, 3, 9) == (1, 3, 9)
    assert rungs(4, 2, 10) == (1, 2, 5, 10)
    assert rungs(3, 3, 900) == (100, 300, 900)
    assert rungs(5, 4, 16) == (1, 4, 16), "no two rungs are at the same distance"


def test_brackets_have_their_own_trials_in_one_numbering() -> None:
    method = halving(
        name="adaptive_asha", max_time=100, max_trials=10, max_concurrent_trials=3, mode="standard", divisor=4
    )
    assert kinds(method.start()) == [("Create", 0), ("Create", 1), ("Create", 2)]
    assert kinds(told(method, 2, 99, 1.0)) == []
    assert kinds(told(method, 2, 100, 1.0)) == [("Stop", 2), ("Create", 3)], "the bracket of one rung"
    assert kinds(told(method, 0, 25, 1.0)) == [], "the first on its rung is its best"
    assert kinds(told(method, 1, 25, 2.0)) == [("Stop", 1), ("Create", 4)]


class TestStopping:
    def test_the_best_part_of_a_rung_goes_on_and_the_others_stop_for_good(self) -> None:
        method = halving(max_time=9, num_rungs=3, max_trials=6, max_concurrent_trials=4)
        assert kinds(method.start()) == [("Create", number) for number in range(4)]
        assert told(method, 0, 1, 0.5) == []
        assert kinds(told(method, 1, 1, 0.6)) == [("Stop", 1), ("Create", 4)]
        assert told(method, 2, 1, 0.4) == []
        assert kinds(told(method, 0, 3, 0.3)) == [], "the first to come to the second rung"
        assert kinds(told(method, 2, 9, 0.35)) == [("Stop", 2), ("Create", 5)], "second of two"
        assert kinds(told(method, 0, 9, 0.2)) == [("Stop", 0)]
        for number in (0, 1, 2):
            assert method.on_exit(number, Exit.COMPLETED) == []
        for number in (3, 4):
            assert method.on_exit(number, Exit.COMPLETED) == []
        assert method.on_exit(5, Exit.COMPLETED) == [Finish()]

    def test_it_says_why_it_stops(self) -> None:
        method = halving(max_time=9, num_rungs=2, max_trials=6, metric="accuracy", smaller_is_better=False)
        method.start()
        values = {0: 0.9, 1: 0.87}
        for trial, value in values.items():
            actions = method.on_validation(trial, {"batches": 3, "accuracy": value})
        stop = actions[0]
        assert isinstance(stop, Stop) and stop.reason == "rung 1: 2nd of 2, reached 0.87, cut at 0.9"
        [stop, *_] = method.on_validation(0, {"batches": 9, "accuracy": 0.95})
        assert isinstance(stop, Stop) and stop.reason == "rung 2: the last one, reached 0.95"

    def test_one_validation_may_pass_several_rungs(self) -> None:
        method = halving(max_time=9, num_rungs=3, max_trials=2)
        method.start()
        assert kinds(told(method, 0, 100, 1.0)) == [("Stop", 0)]
        assert [len(rung) for rung in method.brackets[0].table] == [1, 1, 1]

    def test_equals_come_before(self) -> None:
        method = halving(max_time=9, num_rungs=2, max_trials=5)
        method.start()
        assert [kinds(told(method, trial, 3, 1.0)) for trial in range(3)] == [[], [], []]

    def test_not_a_number_never_goes_on(self) -> None:
        method = halving(max_time=9, num_rungs=2, max_trials=5)
        method.start()
        for trial, value in enumerate((math.nan, None, math.inf, -math.inf)):
            assert kinds(told(method, trial, 3, value)) == [("Stop", trial)]
        assert told(method, 4, 3, 1e9) == []

    def test_an_error_counts_as_the_worst_on_its_rung(self) -> None:
        method = halving(max_time=9, num_rungs=2, max_trials=5, max_concurrent_trials=2)
        method.start()
        assert kinds(method.on_exit(0, Exit.ERROR)) == [("Create", 2)]
        assert method.brackets[0].table[0] == [(math.inf, 0)]
        assert told(method, 1, 3, 5.0) == []

    def test_invalid_values_leave_no_trace(self) -> None:
        method = halving(max_time=9, num_rungs=2, max_trials=3, max_concurrent_trials=3)
        method.start()
        told(method, 0, 3, 0.1)
        assert kinds(method.on_exit(0, Exit.INVALID_HP)) == [("Create", 3)]
        assert method.brackets[0].table[0] == []
        assert kinds(told(method, 1, 3, 0.2)) == []
        assert kinds(told(method, 2, 3, 0.3)) == [("Stop", 2)]
        assert kinds(method.on_exit(2, Exit.INVALID_HP)) == [("Create", 4)], "also of one that was stopped"

    def test_without_a_limit_as_many_start_as_one_needs_to_reach_the_top(self) -> None:
        assert len(halving(max_time=9, num_rungs=3, max_trials=50, max_concurrent_trials=0).start()) == 9
        assert len(halving(max_time=9, num_rungs=3, max_trials=5, max_concurrent_trials=0).start()) == 5

    def test_a_stop_needs_no_target(self) -> None:
        method = halving(max_time=9, max_trials=5)
        assert method.unit is None
        assert all(isinstance(action, Create) and action.target is None for action in method.start())


class TestPromoting:
    def promoting(self, **searcher: Any) -> Halving:
        method = halving(**{"max_time": 9, "num_rungs": 3, "stop_once": False, **searcher})
        assert method.unit == "batches"
        return method

    def test_trials_wait_at_their_rung_until_they_turn_out_to_be_among_the_best(self) -> None:
        method = self.promoting(max_trials=5, max_concurrent_trials=1)
        [first] = method.start()
        assert isinstance(first, Create) and first.target == 1
        assert kinds(told(method, 0, 1, 0.5)) == [("Create", 1)]
        assert kinds(told(method, 1, 1, 0.3)) == [("Create", 2)]
        assert told(method, 2, 1, 0.4) == [Extend(1, 3)], "one of three goes on: the best"
        assert told(method, 1, 2, 0.1) == [], "not there yet"
        assert kinds(told(method, 1, 3, 0.1)) == [("Create", 3)]
        assert kinds(told(method, 3, 1, 0.9)) == [("Create", 4)]

    def test_when_all_have_come_the_best_go_on_and_the_rest_is_let_go(self) -> None:
        method = self.promoting(max_trials=2, max_concurrent_trials=2)
        method.start()
        assert told(method, 0, 1, 0.5) == []
        assert kinds(told(method, 1, 1, 0.3)) == [("Extend", 1), ("Stop", 0)]
        assert told(method, 1, 3, 0.3) == [Extend(1, 9)], "one at least"
        assert kinds(told(method, 1, 9, 0.3)) == [("Stop", 1)]

    def test_a_whole_search(self) -> None:
        draw = random.Random(5)
        done = ImaginarySearch(
            lambda: self.promoting(max_trials=27, max_concurrent_trials=4),
            draw,
            metrics=lambda create, _: {"loss": random.Random(create.seed).random()},
        ).run()
        reached = sorted(trial.reached for trial in done.trials.values())
        assert reached.count(9) >= 3 and reached.count(1) >= 14
        best = min(done.trials.values(), key=lambda trial: random.Random(trial.create.seed).random())
        assert best.reached == 9

    def test_nobody_waits_for_ever_when_all_are_worthless(self) -> None:
        method = self.promoting(max_trials=2, max_concurrent_trials=2)
        method.start()
        assert told(method, 0, 1, math.nan) == []
        assert kinds(told(method, 1, 1, math.nan)) == [("Stop", 0), ("Stop", 1)]

    def test_a_place_of_one_that_failed_is_given_away(self) -> None:
        method = self.promoting(max_trials=3, max_concurrent_trials=1)
        method.start()
        assert kinds(method.on_exit(0, Exit.ERROR)) == [("Create", 1)]
        assert kinds(method.on_exit(1, Exit.INVALID_HP)) == [("Create", 2)]
        assert kinds(method.on_exit(2, Exit.CANCELED)) == [("Create", 3)]


def test_records_are_batches_times_their_size() -> None:
    searcher = {"max_length": {"records": 100}, "num_rungs": 2, "max_trials": 2, "divisor": 2}
    method = halving({"global_batch_size": 32, "lr": LR}, **searcher)
    method.start()
    assert told(method, 0, 2, 1.0) == []
    assert kinds(told(method, 0, 3, 1.0)) == [("Stop", 0)], "three batches of 32 are a length of 100 records"
    lost = halving({"lr": LR}, **searcher)
    lost.start()
    *_, finish = told(lost, 0, 3, 1.0)
    assert isinstance(finish, Finish) and "global_batch_size" in str(finish.failure)


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({"batches": 3, "accuracy": 1.0}, "trial 0's validation after 3 batches has no metric loss, which the search"),
        ({"loss": 0.5}, "trial 0's validation has no metric batches, which the search counts its lengths in"),
        ({"batches": 3, "loss": "low"}, "trial 0's metric loss, which the search judges by, is 'low': not a number"),
    ],
)
def test_what_cannot_be_judged_fails_the_search(metrics: dict[str, Any], says: str) -> None:
    method = halving(max_time=9, max_trials=2)
    method.start()
    *stops, finish = method.on_validation(0, metrics)
    assert [type(stop) for stop in stops] == [Stop, Stop]
    assert isinstance(finish, Finish) and str(finish.failure).startswith(says)
    assert "\n" not in str(finish.failure)


@pytest.mark.parametrize("stop_once", [True, False])
def test_the_tables_of_two_hundred_trials_survive_a_crash_after_every_event(stop_once: bool) -> None:
    def make() -> Halving:
        return halving(
            max_time=16, divisor=4, num_rungs=3, max_trials=200, max_concurrent_trials=20, stop_once=stop_once
        )

    def run(crashes: bool) -> ImaginarySearch:
        return ImaginarySearch(make, random.Random(3), length=16, faults=EVERY_FAULT, crashes=crashes).run()

    undisturbed, crashed = run(False), run(True)
    assert crashed.actions == undisturbed.actions
    tables = [[bracket.table for bracket in cast("Halving", done.method).brackets] for done in (undisturbed, crashed)]
    assert tables[0] == tables[1] and len(tables[0][0][0]) > 100


def test_progress_follows_the_first_rung_and_then_the_exits() -> None:
    method = halving(max_time=9, num_rungs=2, max_trials=10)
    method.start()
    assert method.progress({}) == 0.0
    told(method, 0, 3, 1.0)
    assert method.progress({}) == pytest.approx(1 / 12)
    for trial in range(9):
        method.on_exit(trial, Exit.COMPLETED)
    assert method.progress({}) == pytest.approx(0.9)
    method.on_exit(9, Exit.COMPLETED)
    assert method.progress({}) == 1.0


def test_what_it_knows_is_text() -> None:
    method = halving(max_time=9, num_rungs=2, max_trials=10)
    method.start()
    told(method, 0, 3, math.nan)
    again = halving(max_time=9, num_rungs=2, max_trials=10)
    again.load(json.loads(json.dumps(method.dump(), allow_nan=False)))
    assert again.dump() == method.dump()


def test_ordinals() -> None:
    said = [asha.ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 22, 111, 101)]
    assert said == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "111th", "101st"]
