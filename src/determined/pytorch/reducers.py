"""Metric reduction: from what each batch and rank saw to one value."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np

from determined import core


class Reducer(enum.Enum):
    """How the values of a validation metric over batches (and ranks) become one."""

    AVG = 1
    SUM = 2
    MAX = 3
    MIN = 4


class MetricReducer(abc.ABC):
    """A metric computed over all batches at once, such as an F1 score.

    Call a method of yours (usually ``update``) in ``train_batch`` or ``evaluate_batch``. The trainer calls ``reset``
    before each stretch, then ``per_slot_reduce`` on every rank and ``cross_slot_reduce`` with all ranks' results.
    """

    @abc.abstractmethod
    def reset(self) -> None:
        """Forget everything."""

    @abc.abstractmethod
    def per_slot_reduce(self) -> Any:
        """This rank's part, as something picklable."""

    @abc.abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """The final value, from every rank's part."""


class SimpleReducer(MetricReducer):
    """A reducer made of a function over a flat list of everything given to ``update``, in batch order."""

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self.function = function
        self.updates: list[Any] = []

    def update(self, value: Any) -> None:
        self.updates.append(value)

    def reset(self) -> None:
        self.updates = []

    def per_slot_reduce(self) -> Any:
        return self.updates

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        # Interleaving ranks gives back the order of the batches, since batch k went to rank k % size.
        longest = max((len(values) for values in per_slot_metrics), default=0)
        return self.function(
            [values[i] for i in range(longest) for values in per_slot_metrics if i < len(values)],
        )


class WrappedReducer:
    """A reducer and where its result belongs."""

    def __init__(self, reducer: MetricReducer, name: str | None, for_training: bool, for_validation: bool) -> None:
        self.reducer = reducer
        self.name = name
        self.for_training = for_training
        self.for_validation = for_validation

    @property
    def label(self) -> str:
        return self.name or type(self.reducer).__name__


class Reducers:
    """The custom reducers of a trial."""

    def __init__(self, distributed: core.DistributedContext) -> None:
        self._distributed = distributed
        self.wrapped: list[WrappedReducer] = []

    def wrap(
        self,
        reducer: Union[MetricReducer, Callable[[list[Any]], Any]],
        name: str | None,
        for_training: bool,
        for_validation: bool,
    ) -> MetricReducer:
        assert isinstance(reducer, MetricReducer) or callable(reducer), (
            f"wrap_reducer takes a det.pytorch.MetricReducer or a function, not {type(reducer).__name__}"
        )
        if not isinstance(reducer, MetricReducer):
            reducer = SimpleReducer(reducer)
        assert all(reducer is not other.reducer for other in self.wrapped), (
            "wrap_reducer was called twice with the same reducer; make one object for each metric"
        )
        assert for_training or for_validation, "a reducer must be for training, for validation, or both"
        self.wrapped.append(WrappedReducer(reducer, name, for_training, for_validation))
        return reducer

    def reset(self) -> None:
        for wrapped in self.wrapped:
            wrapped.reducer.reset()

    def reduce(self, *, for_training: bool) -> dict[str, Any]:
        """Every wanted reducer's result, with one exchange between the ranks for all of them."""
        wanted = [w for w in self.wrapped if (w.for_training if for_training else w.for_validation)]
        if not wanted:
            return {}
        parts = [_call(w, "per_slot_reduce", w.reducer.per_slot_reduce) for w in wanted]
        by_rank = self._distributed.allgather(parts) if self._distributed.size > 1 else [parts]
        metrics: dict[str, Any] = {}
        for i, wrapped in enumerate(wanted):
            per_slot = [rank_parts[i] for rank_parts in by_rank]
            value = _call(wrapped, "cross_slot_reduce", wrapped.reducer.cross_slot_reduce, per_slot)
            if wrapped.name is not None:
                assert not isinstance(value, dict), (
                    f"reducer {wrapped.name!r} was wrapped with name set but it returned a dict anyway; "
                    "wrap it with name=None to report several metrics"
                )
                metrics[wrapped.name] = value
            else:
                assert isinstance(value, dict), (
                    f"reducer {wrapped.label} was wrapped with name=None but it did not return a dict; "
                    "give it a name, or return {metric name: value}"
                )
                metrics.update(value)
        return metrics

    def state(self) -> list[Any]:
        """What each reducer has gathered since its reset, for a checkpoint taken in mid-stretch."""
        return [
            dict(vars(w.reducer)) if not isinstance(w.reducer, SimpleReducer) else w.reducer.updates
            for w in self.wrapped
        ]

    def restore(self, state: Sequence[Any]) -> None:
        for wrapped, gathered in zip(self.wrapped, state):
            if isinstance(wrapped.reducer, SimpleReducer):
                wrapped.reducer.updates = list(gathered)
            elif gathered is not None:
                vars(wrapped.reducer).update(gathered)


def _call(wrapped: WrappedReducer, step: str, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        hint = ""
        if args and all(type(part) is list and not part for part in args[0]):
            hint = (
                "; it had no values to reduce: if only evaluate_batch (or only train_batch) updates it, wrap it with "
                "for_training=False (or for_validation=False)"
            )
        raise ValueError(f"reducer {wrapped.label} failed in {step}: {type(error).__name__}: {error}{hint}") from error


def reduce_over_batches(reducer: Reducer, values: Sequence[Any]) -> Any:
    """One value from a metric's values on this rank's batches."""
    array = np.asarray(values)
    if reducer is Reducer.AVG:
        return array.mean(axis=0, dtype=np.float64) if array.dtype.kind in "fiub" else array.mean(axis=0)
    if reducer is Reducer.SUM:
        return array.sum(axis=0)
    if reducer is Reducer.MAX:
        return array.max(axis=0)
    if reducer is Reducer.MIN:
        return array.min(axis=0)
    raise TypeError(f"evaluation_reducer() must give det.pytorch.Reducer values, not {reducer!r}")


def reduce_over_ranks(reducer: Reducer, values: Sequence[Any], batches: Sequence[int]) -> Any:
    """One value from each rank's value; averages weigh a rank by the number of its batches."""
    pairs = [(value, n) for value, n in zip(values, batches) if n]
    kept = [value for value, _ in pairs]
    if reducer is Reducer.AVG:
        return np.average(np.asarray(kept, dtype=np.float64), axis=0, weights=[n for _, n in pairs])
    return reduce_over_batches(reducer, kept)
