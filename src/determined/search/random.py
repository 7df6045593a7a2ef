"""Random search: trials that do not depend on each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from determined.search.base import Search
from determined.search.method import Action, Exit
from determined.search.space import Space


class Random(Search):
    """So many trials, so many at a time; one more whenever one has ended.

    A trial with invalid values is replaced, and does not count.
    """

    def __init__(self, space: Space, seed: int, max_trials: int, max_concurrent_trials: int = 0) -> None:
        super().__init__(space, seed)
        self.max_trials = max_trials
        self.max_concurrent_trials = min(max_concurrent_trials or max_trials, max_trials)
        self._started = 0  # trials that count

    def progress(self, trials: Mapping[int, float]) -> float:
        underway = sum(min(max(trials.get(trial, 0.0), 0.0), 1.0) for trial in self._open)
        return 1.0 if self._is_over else min((self._ended + underway) / self.max_trials, 1.0)

    def _begin(self) -> list[Action]:
        actions: list[Action] = []
        while self._started < self.max_concurrent_trials:
            actions += self._next()
        return actions

    def _end(self, trial: int, exit: Exit, is_replaced: bool) -> list[Action]:
        self._started -= is_replaced
        return self._next()

    def _next(self) -> list[Action]:
        if self._started == self.max_trials:
            return []
        self._started += 1
        return [self._create()]

    def _remember(self) -> dict[str, Any]:
        return {"started": self._started}

    def _recall(self, data: Any) -> None:
        self._started = data["started"]
