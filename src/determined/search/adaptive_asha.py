"""Adaptive ASHA: bold and cautious successive halving side by side, since nobody knows which is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from determined.search.asha import Shape, rungs

Mode = Literal["aggressive", "standard", "conservative"]


def bracket_shapes(
    max_time: float,
    max_trials: int,
    max_concurrent_trials: int,
    divisor: float,
    mode: Mode = "standard",
    max_rungs: int = 5,
    bracket_rungs: Sequence[int] = (),
) -> list[Shape]:
    """The brackets of a search, the boldest (most rungs) first: each with its share of the trials."""
    counts = sorted(bracket_rungs, reverse=True) or _rung_counts(max_time, max_trials, divisor, mode, max_rungs)
    counts = counts[:max_trials]  # a bracket without a trial would be none
    trials = share_trials(max_trials, divisor, counts)
    places = share_places(max_concurrent_trials, divisor, trials)
    return [
        Shape(rungs(count, divisor, max_time), number, at_a_time, divisor)
        for count, number, at_a_time in zip(counts, trials, places)
    ]


def share_trials(max_trials: int, divisor: float, counts: Sequence[int]) -> list[int]:
    """Trials for brackets of so many rungs: each bracket about the same amount of training, and one trial at least."""
    weights = [divisor ** (count - 1) / count for count in counts]
    shares = [max(int(weight / sum(weights) * max_trials), 1) for weight in weights]
    shares[0] += max_trials - sum(shares)
    while shares[0] < 1:  # the ones given to the smallest were too many
        shares[shares.index(max(shares))] -= 1
        shares[0] += 1
    return shares


def share_places(max_concurrent_trials: int, divisor: float, trials: Sequence[int]) -> list[int]:
    """How many trials each bracket may train at a time."""
    if not max_concurrent_trials:
        return [max(trials[-1], int(divisor)) for _ in trials]
    each, rest = divmod(max(max_concurrent_trials, len(trials)), len(trials))
    return [each + (number < rest) for number in range(len(trials))]


def _rung_counts(max_time: float, max_trials: int, divisor: float, mode: Mode, max_rungs: int) -> list[int]:
    most = min(max_rungs, _powers(max_time, divisor) + 1, _powers(max_trials, divisor) + 1)
    least = {"aggressive": most, "standard": (most - 1) // 2 + 1, "conservative": 1}[mode]
    return list(range(most, least - 1, -1))


def _powers(number: float, base: float) -> int:
    """How often ``base`` goes into ``number``."""
    # A hair more than the quotient, lest the logarithms say that 5 does not go into 125 three times.
    return int(math.log(number) / math.log(base) + 1e-9)
