"""Reducers see every batch of every rank, in order, and end up under the name they were given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from determined import core
from determined.pytorch import MetricReducer, Reducer
from determined.pytorch.reducers import Reducers, SimpleReducer, reduce_over_batches, reduce_over_ranks


def alone() -> Reducers:
    return Reducers(core.DistributedContext(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1))


class Sum(MetricReducer):
    def reset(self) -> None:
        self.total = 0

    def update(self, value: int) -> None:
        self.total += value

    def per_slot_reduce(self) -> Any:
        return self.total

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        return sum(per_slot_metrics)


def test_a_class_reducer_is_returned_and_reported_under_its_name() -> None:
    reducers = alone()
    reducer = Sum()
    assert reducers.wrap(reducer, "total", True, True) is reducer
    reducers.reset()
    reducer.update(2)
    reducer.update(3)
    assert reducers.reduce(for_training=True) == {"total": 5}
    reducers.reset()
    assert reducers.reduce(for_training=True) == {"total": 0}


def test_a_function_gets_all_values_in_batch_order() -> None:
    seen: list[Any] = []

    def count(values: list[Any]) -> int:
        seen.extend(values)
        return len(values)

    reducer = SimpleReducer(count)
    assert reducer.cross_slot_reduce([[0, 2, 4], [1, 3]]) == 5
    assert seen == [0, 1, 2, 3, 4]


def test_a_nameless_reducer_reports_its_dict() -> None:
    reducers = alone()
    wrapped: Any = reducers.wrap(lambda values: {"n": len(values)}, None, True, False)
    wrapped.update(1)
    assert reducers.reduce(for_training=True) == {"n": 1}
    assert reducers.reduce(for_training=False) == {}


def test_name_and_dict_exclude_each_other() -> None:
    named = alone()
    named.wrap(lambda values: {}, "n", True, True)
    with pytest.raises(AssertionError, match="with name set but it returned a dict anyway"):
        named.reduce(for_training=True)
    nameless = alone()
    nameless.wrap(lambda values: 1, None, True, True)
    with pytest.raises(AssertionError, match="name=None but it did not return a dict"):
        nameless.reduce(for_training=True)


def test_wrapping_twice_or_nonsense_is_refused() -> None:
    reducers = alone()
    reducer = Sum()
    reducers.wrap(reducer, "a", True, True)
    with pytest.raises(AssertionError, match="twice"):
        reducers.wrap(reducer, "b", True, True)
    with pytest.raises(AssertionError, match="function"):
        reducers.wrap(3, "c", True, True)  # type: ignore[arg-type]


def test_a_failing_reducer_is_named() -> None:
    reducers = alone()
    reducers.wrap(lambda values: 1 / 0, "ratio", True, True)
    with pytest.raises(ValueError, match=r"ratio.*ZeroDivisionError"):
        reducers.reduce(for_training=True)


@pytest.mark.parametrize(
    ("reducer", "expected"), [(Reducer.AVG, 2.0), (Reducer.SUM, 6.0), (Reducer.MAX, 3.0), (Reducer.MIN, 1.0)]
)
def test_each_rule_over_batches_and_ranks(reducer: Reducer, expected: float) -> None:
    assert reduce_over_batches(reducer, [1.0, 2.0, 3.0]) == expected
    assert reduce_over_ranks(reducer, [1.0, 2.0, 3.0], [1, 1, 1]) == expected


def test_averages_weigh_ranks_by_their_batches_and_skip_idle_ones() -> None:
    assert reduce_over_ranks(Reducer.AVG, [np.float64(1.0), np.float64(4.0), None], [2, 1, 0]) == 2.0
