"""Judging a trial: the metric a search goes by, as a number of which smaller is better."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from determined.search.method import COUNTERS


class Unusable(Exception):
    """A validation that cannot be judged; the message is the sentence with which the search fails."""


@dataclasses.dataclass(frozen=True)
class Goal:
    """What is measured, and which way is better."""

    metric: str
    smaller_is_better: bool = True

    def cost(self, trial: int, metrics: Mapping[str, Any]) -> float:
        """How bad the trial is: smaller is better, whatever the metric's own sense; infinite for what is no number.

        Raises Unusable if the metric was not reported, or is something else than a number.
        """
        value = read(trial, metrics, self.metric, "which the search judges by")
        # A loss that is not a number any more is the worst there is, and never the best: not even minus infinity.
        if value is None or not math.isfinite(value):
            return math.inf
        return value if self.smaller_is_better else -value

    def shown(self, cost: float) -> str:
        """A cost as people know it: the metric's value."""
        if not math.isfinite(cost):
            return "not a number"
        return f"{cost if self.smaller_is_better else -cost:.4g}"


def read(trial: int, metrics: Mapping[str, Any], name: str, what: str) -> float | None:
    """A number from a validation; None where it was null, as NaN is in JSON. Raises Unusable."""
    if name not in metrics:
        after = f" after {metrics['batches']} batches" if "batches" in metrics else ""
        known = ", ".join(sorted(metrics.keys() - set(COUNTERS))) or "no metric"
        raise Unusable(f"trial {trial}'s validation{after} has no metric {name}, {what}; it has {known}")
    value = metrics[name]
    if value is None or isinstance(value, (int, float)):
        try:
            return None if value is None else float(value)
        except OverflowError:  # a whole number with hundreds of digits
            return None
    raise Unusable(f"trial {trial}'s metric {name}, {what}, is {value!r}: not a number")


def cost_as_data(cost: float) -> float | None:
    """A cost as JSON knows it, where there is no infinity."""
    return cost if math.isfinite(cost) else None


def cost_from_data(cost: float | None) -> float:
    return math.inf if cost is None else cost
