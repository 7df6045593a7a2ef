"""One trial."""

from __future__ import annotations

from determined.search.random import Random
from determined.search.space import Space


class Single(Random):
    """A random search with one trial. Where hyperparameters are ranges, it draws from them."""

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(space, seed, max_trials=1)
