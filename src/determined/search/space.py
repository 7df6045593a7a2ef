"""The space of hyperparameters, and values drawn from it."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from typing import Any

from determined.config.hparams import RANGES, Categorical, Const, Double, Hyperparameters, Int, Log, Range

Path = tuple[str, ...]
Draw = Callable[[Path, Range], Any]


class Space:
    """Every set of values that the hyperparameters of a config can have.

    A draw is made in sorted order of the names, so that it does not depend on the order in which they were written; the
    values come in the order of the config.
    """

    def __init__(self, hyperparameters: Hyperparameters) -> None:
        self.hyperparameters = hyperparameters
        self.has_ranges = any(True for _ in hyperparameters.ranges())

    def sample(self, rng: random.Random) -> dict[str, Any]:
        """One set of values, drawn at random."""
        return self.values(lambda path, range_: drawn(range_, rng))

    def values(self, draw: Draw) -> dict[str, Any]:
        """One set of values, of which ``draw`` says those that are ranges.

        Of a categorical it says the number of the choice. If that holds ranges, they are asked for next, by paths that
        go through the choice: ``("optimizer", "=0", "momentum")``.
        """
        return _values(self.hyperparameters, (), draw)

    def explore(
        self, values: Mapping[str, Any], rng: random.Random, resample_probability: float, perturb_factor: float
    ) -> dict[str, Any]:
        """Values near others: each is drawn anew with a probability, or else made larger or smaller by a part of
        itself, as far as its range goes. Of a categorical the choice stays unless it is drawn anew."""

        def vary(path: Path, range_: Range) -> Any:
            old = _at(self.hyperparameters, values, path)
            # Always the same number of draws, so that one value's fate does not change the others'.
            anew, up, fresh = rng.random() < resample_probability, rng.random() < 0.5, drawn(range_, rng)
            if anew or old is None:
                return fresh
            return old if isinstance(range_, Categorical) else _perturbed(range_, old, up, perturb_factor)

        return self.values(vary)


def trial_rng(seed: int, trial: int, purpose: str = "trial") -> random.Random:
    """The random numbers of one trial: they depend on nothing but the experiment's seed and the trial's number."""
    return random.Random(f"{purpose} {seed} {trial}")


def trial_seed(rng: random.Random) -> int:
    """A seed as trials have them."""
    return rng.randrange(2**31)


def drawn(range_: Range, rng: random.Random) -> Any:
    """A value of a range, evenly; of a categorical the number of the choice."""
    if isinstance(range_, Int):
        return rng.randint(range_.minval, range_.maxval)
    if isinstance(range_, Double):
        return rng.uniform(range_.minval, range_.maxval)
    if isinstance(range_, Log):
        return float(range_.base ** rng.uniform(range_.minval, range_.maxval))
    return rng.randrange(len(range_.vals))


def bounds(range_: Int | Double | Log) -> tuple[float, float]:
    """Smallest and largest value."""
    if isinstance(range_, Log):
        one, other = float(range_.base**range_.minval), float(range_.base**range_.maxval)
        return min(one, other), max(one, other)  # a base below 1 turns them round
    return range_.minval, range_.maxval


def _values(hyperparameters: Hyperparameters, path: Path, draw: Draw) -> dict[str, Any]:
    values = {name: _value(hyperparameters[name], (*path, name), draw) for name in sorted(hyperparameters.root)}
    return {name: values[name] for name in hyperparameters.root}


def _value(hyperparameter: Any, path: Path, draw: Draw) -> Any:
    if isinstance(hyperparameter, Hyperparameters):
        return _values(hyperparameter, path, draw)
    if isinstance(hyperparameter, Categorical):
        choice = draw(path, hyperparameter)
        return _value(hyperparameter.vals[choice], (*path, f"={choice}"), draw)
    if isinstance(hyperparameter, RANGES):
        return draw(path, hyperparameter)
    return _copied(hyperparameter.val if isinstance(hyperparameter, Const) else hyperparameter)


def _copied(value: Any) -> Any:
    return copy.deepcopy(value) if isinstance(value, (dict, list)) else value


def _at(hyperparameter: Any, values: Any, path: Path) -> Any:
    """The value that a set of values has at the path of a range, as ``draw`` would say it; None if it has none."""
    for name in path:
        if name.startswith("=") and isinstance(hyperparameter, Categorical):
            if _choice(hyperparameter, values) != int(name[1:]):
                return None
            hyperparameter = hyperparameter.vals[int(name[1:])]
        elif isinstance(hyperparameter, Hyperparameters):
            hyperparameter, values = hyperparameter[name], values.get(name)
    return _choice(hyperparameter, values) if isinstance(hyperparameter, Categorical) else values


def _choice(categorical: Categorical, value: Any) -> int | None:
    """Which of a categorical's choices a value was."""
    return next((number for number, choice in enumerate(categorical.vals) if _could_be(choice, value)), None)


def _could_be(hyperparameter: Any, value: Any) -> bool:
    """Whether a value may have come from here."""
    if isinstance(hyperparameter, Hyperparameters):
        return (
            isinstance(value, Mapping)
            and value.keys() == hyperparameter.root.keys()
            and all(_could_be(inner, value[name]) for name, inner in hyperparameter.items())
        )
    if isinstance(hyperparameter, Categorical):
        return _choice(hyperparameter, value) is not None
    if isinstance(hyperparameter, (Int, Double, Log)):
        low, high = bounds(hyperparameter)
        is_kind = isinstance(value, int if isinstance(hyperparameter, Int) else float) and not isinstance(value, bool)
        return is_kind and low <= value <= high
    expected = hyperparameter.val if isinstance(hyperparameter, Const) else hyperparameter
    # 1, 1.0 and true are equal to Python, and different choices to people.
    return type(expected) is type(value) and bool(expected == value)


def _perturbed(range_: Int | Double | Log, old: float, up: bool, factor: float) -> float:
    low, high = bounds(range_)
    moved = old * (1 + factor if up else 1 - factor)
    if isinstance(range_, Int):
        is_up = moved > old or (moved == old and up)
        moved = round(moved)
        if moved == old and factor:  # to the next number at least, or small ones would never move
            moved += 1 if is_up else -1
    return min(max(moved, low), high)
