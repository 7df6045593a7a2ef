"""Grid search: every combination of values once."""

from __future__ import annotations

import math
from typing import Any

from determined.config.hparams import Categorical, Double, Hyperparameters, Int, Log
from determined.search.random import Random
from determined.search.space import Path, Space


class Grid(Random):
    """A trial for each combination; the last combination first.

    The combinations are counted like the digits of a number: names in sorted order, the last one the fastest. No list
    of them is ever made. One whose values are invalid is not replaced, since it was a place of the grid.
    """

    def __init__(self, space: Space, seed: int, max_concurrent_trials: int = 0) -> None:
        super().__init__(space, seed, size(space.hyperparameters), max_concurrent_trials)

    @property
    def _replaces_invalid(self) -> bool:
        return False

    def _hparams(self, number: int, rng: Any) -> dict[str, Any]:
        return combination(self._space, self.max_trials - 1 - number)


def size(hyperparameter: Any) -> int:
    """How many combinations there are."""
    if isinstance(hyperparameter, Hyperparameters):
        return math.prod(size(inner) for _, inner in hyperparameter.items())
    if isinstance(hyperparameter, Categorical):
        return sum(size(choice) for choice in hyperparameter.vals)
    return count(hyperparameter) if isinstance(hyperparameter, (Int, Double, Log)) else 1


def combination(space: Space, number: int) -> dict[str, Any]:
    """One combination of values, by its number."""
    chosen: dict[Path, Any] = {}
    _choose(space.hyperparameters, (), number, chosen)
    return space.values(lambda path, range_: chosen[path])


def count(range_: Int | Double | Log) -> int:
    """How many values are tried along a range of numbers: of whole ones not more than there are."""
    asked = range_.count or 1
    return min(asked, range_.maxval - range_.minval + 1) if isinstance(range_, Int) else asked


def point(range_: Int | Double | Log, number: int) -> float:
    """One of those values: they are evenly spaced, of Log in the exponents. A single one lies in the middle."""
    low, high, last = range_.minval, range_.maxval, count(range_) - 1
    place = (low + high) / 2 if not last else high if number == last else low + number * (high - low) / last
    if isinstance(range_, Int):
        return _rounded(place)
    return float(range_.base**place) if isinstance(range_, Log) else place


def _choose(hyperparameter: Any, path: Path, number: int, chosen: dict[Path, Any]) -> None:
    if isinstance(hyperparameter, Hyperparameters):
        for name in sorted(hyperparameter.root, reverse=True):
            inner = hyperparameter[name]
            number, place = divmod(number, size(inner))
            _choose(inner, (*path, name), place, chosen)
    elif isinstance(hyperparameter, Categorical):
        for choice, value in enumerate(hyperparameter.vals):
            if number < size(value):
                chosen[path] = choice
                return _choose(value, (*path, f"={choice}"), number, chosen)
            number -= size(value)
    elif isinstance(hyperparameter, (Int, Double, Log)):
        chosen[path] = point(hyperparameter, number)


def _rounded(value: float) -> int:
    """The nearest whole number; from the middle away from zero."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))
