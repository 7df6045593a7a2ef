"""How far a trial is, in the unit that a search counts in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from determined.search.goal import Unusable, read
from determined.search.method import Create


class Clock:
    """How far a trial is, in the unit of the search."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self._batch_sizes: dict[int, int] = {}

    def learn(self, create: Create) -> None:
        """Records are batches times their size; nobody reports them."""
        size = create.hparams.get("global_batch_size")
        if self.unit == "records" and isinstance(size, int):
            self._batch_sizes[create.trial] = max(size, 1)

    def forget(self, trial: int) -> None:
        self._batch_sizes.pop(trial, None)

    def time(self, trial: int, metrics: Mapping[str, Any]) -> float:
        """How far the trial was at a validation. Raises Unusable if that cannot be known."""
        if self.unit == "records" and "records" not in metrics:
            size = self._batch_sizes.get(trial)
            if size is None:
                raise Unusable(
                    f"trial {trial} has no hyperparameter global_batch_size, without which the search cannot count"
                    " records; set it, or give lengths in batches or epochs"
                )
            # The last batch may be missing a part of itself: a length in records is rounded down to whole batches.
            return (read(trial, metrics, "batches", "which the search counts in") or 0) * size + size - 1
        time = read(trial, metrics, self.unit, "which the search counts its lengths in")
        return -math.inf if time is None or math.isnan(time) else time

    def dump(self) -> Any:
        return [list(item) for item in self._batch_sizes.items()]

    def load(self, data: Any) -> None:
        self._batch_sizes = dict(data)
