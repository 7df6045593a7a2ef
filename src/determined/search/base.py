"""What every built-in method does alike: it numbers its trials, refuses what it cannot judge, and ends when they do."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from determined.search.goal import Unusable
from determined.search.method import Action, Create, Exit, Finish, Stop
from determined.search.space import Space, trial_rng, trial_seed

# So many trials in a row whose code refused their values: the space holds no good ones, or the code refuses all.
INVALID_IN_A_ROW = 100


class Search(abc.ABC):
    """A search over a space, from its start to its end; a subclass decides which trials there are and how far they go.

    A trial is open from its creation to its exit. Of one that is not open, nothing more is learned: so an event that
    comes late, or twice, changes nothing.
    """

    unit: str | None = None

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._seed = seed
        self._created = 0
        self._open: set[int] = set()
        self._ended = 0  # exits that count: without those whose place was given to another
        self._invalid = 0  # in a row
        self._is_over = False

    def start(self) -> Sequence[Action]:
        return self._finished(self._begin())

    def on_validation(self, trial: int, metrics: Mapping[str, Any]) -> Sequence[Action]:
        if self._is_over or trial not in self._open:
            return ()
        try:
            actions = self._learn(trial, metrics)
        except Unusable as why:
            return self._failed(str(why))
        return self._finished(actions)

    def on_exit(self, trial: int, exit: Exit) -> Sequence[Action]:
        if self._is_over or trial not in self._open:
            return ()
        self._open.remove(trial)
        self._invalid = self._invalid + 1 if exit is Exit.INVALID_HP else 0
        is_replaced = exit is Exit.INVALID_HP and self._replaces_invalid
        if is_replaced and self._invalid >= INVALID_IN_A_ROW:
            return self._failed(
                f"{self._invalid} trials in a row said that their hyperparameters are invalid: the space has no good"
                " values, or the code refuses all"
            )
        self._ended += not is_replaced
        try:
            return self._finished(self._end(trial, exit, is_replaced))
        except Unusable as why:
            return self._failed(str(why))

    @abc.abstractmethod
    def progress(self, trials: Mapping[int, float]) -> float: ...

    def dump(self) -> Any:
        return {
            "created": self._created,
            "open": sorted(self._open),
            "ended": self._ended,
            "invalid": self._invalid,
            "is_over": self._is_over,
            **self._remember(),
        }

    def load(self, data: Any) -> None:
        self._created = data["created"]
        self._open = set(data["open"])
        self._ended = data["ended"]
        self._invalid = data["invalid"]
        self._is_over = data["is_over"]
        self._recall(data)

    @abc.abstractmethod
    def _begin(self) -> list[Action]:
        """The first trials."""

    def _learn(self, trial: int, metrics: Mapping[str, Any]) -> list[Action]:
        """What follows from a validation. May raise Unusable."""
        return []

    @abc.abstractmethod
    def _end(self, trial: int, exit: Exit, is_replaced: bool) -> list[Action]:
        """What follows from an exit. ``is_replaced``: its values were invalid, and it does not count. May raise
        Unusable."""

    @abc.abstractmethod
    def _remember(self) -> dict[str, Any]:
        """What the subclass knows, as JSON values."""

    @abc.abstractmethod
    def _recall(self, data: Any) -> None:
        """Know again what ``_remember`` gave."""

    @property
    def _replaces_invalid(self) -> bool:
        """Whether another trial takes the place of one with invalid values: not where it would have the same."""
        return self._space.has_ranges

    def _create(self, target: float | None = None) -> Create:
        """The next trial."""
        number = self._created
        self._created += 1
        self._open.add(number)
        rng = trial_rng(self._seed, number)
        drawn = trial_seed(rng)
        # The first trial is the one that the same script and config train without a master, seed included.
        seed = self._seed if number == 0 else drawn
        return Create(number, self._hparams(number, rng), seed, target)

    def _hparams(self, number: int, rng: Any) -> dict[str, Any]:
        return self._space.sample(rng)

    def _finished(self, actions: list[Action]) -> Sequence[Action]:
        if not self._open:
            self._is_over = True
            actions.append(Finish())
        return actions

    def _failed(self, why: str) -> Sequence[Action]:
        self._is_over = True
        return [*(Stop(trial, "the search failed") for trial in sorted(self._open)), Finish(why)]
