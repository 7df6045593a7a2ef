"""Population based training: in rounds, copies of the best take the places of the worst, with varied values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from determined.search.base import Search
from determined.search.clock import Clock
from determined.search.goal import Goal, Unusable, cost_as_data, cost_from_data
from determined.search.method import Action, Create, Exit, Extend, Stop
from determined.search.space import Space, trial_rng


class Population(Search):
    """So many rounds; in each, every member of the population trains so far and waits for the others.

    What a round decides depends on the members' metrics alone, not on who came first. A member is a trial; a copy of
    one is a new trial that starts from the other's latest checkpoint and counts from 0.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        goal: Goal,
        unit: str,
        length_per_round: float,
        population_size: int,
        num_rounds: int,
        truncate_fraction: float = 0.2,
        resample_probability: float = 0.2,
        perturb_factor: float = 0.2,
    ) -> None:
        super().__init__(space, seed)
        self.unit = unit
        self.length_per_round = length_per_round
        self.population_size = population_size
        self.num_rounds = num_rounds
        self._goal = goal
        self._clock = Clock(unit)
        self._truncated = int(population_size * truncate_fraction)
        self._resample_probability = resample_probability
        self._perturb_factor = perturb_factor
        self._round = 0
        self._members: dict[int, float] = {}  # this round's trials, and how far each is to train
        self._hparams_of: dict[int, dict[str, Any]] = {}
        self._latest: dict[int, float] = {}  # the cost each member last showed
        self._settled: set[int] = set()  # members that did their part of this round, or ended

    @property
    def table(self) -> list[tuple[int, float | None]]:
        """This round's members and what each cost last."""
        return [(trial, self._latest.get(trial)) for trial in sorted(self._members)]

    def progress(self, trials: Mapping[int, float]) -> float:
        if self._is_over:
            return 1.0
        settled = len(self._settled) / self.population_size
        return min((self._round + settled) / self.num_rounds, 1.0)

    def _begin(self) -> list[Action]:
        return [self._join(self._create(self.length_per_round)) for _ in range(self.population_size)]

    def _learn(self, trial: int, metrics: Mapping[str, Any]) -> list[Action]:
        cost, time = self._goal.cost(trial, metrics), self._clock.time(trial, metrics)
        if trial not in self._members or trial in self._settled:
            return []
        self._latest[trial] = cost
        if time < self._members[trial]:
            return []
        self._settled.add(trial)
        return self._after_round()

    def _end(self, trial: int, exit: Exit, is_replaced: bool) -> list[Action]:
        self._clock.forget(trial)
        if trial not in self._members:
            return []
        if exit is Exit.INVALID_HP:
            del self._members[trial], self._hparams_of[trial]
            self._latest.pop(trial, None)
            self._settled.discard(trial)
            # Also for one that was a copy: what it was copied from may be further by now, and ahead of the others.
            return [self._join(self._create(self.length_per_round))] if is_replaced else self._after_round()
        if exit is Exit.ERROR:
            self._latest[trial] = math.inf
        self._settled.add(trial)
        return self._after_round()

    def _join(self, create: Create) -> Create:
        assert create.target is not None
        self._members[create.trial] = create.target
        self._hparams_of[create.trial] = dict(create.hparams)
        self._clock.learn(create)
        return create

    def _after_round(self) -> list[Action]:
        if not self._members:
            raise Unusable("every trial of the population said that its hyperparameters are invalid")
        if len(self._settled) < len(self._members):
            return []
        self._round += 1
        ranked = sorted(self._members, key=lambda trial: (self._latest.get(trial, math.inf), trial))
        alive = [trial for trial in ranked if trial in self._open]
        parents = [trial for trial in ranked if math.isfinite(self._latest.get(trial, math.inf))]
        if self._round == self.num_rounds:
            self._members = {}
            return [Stop(trial, self._why(ranked, trial)) for trial in sorted(alive)]
        if not parents:
            raise Unusable(f"no trial of round {self._round} reached a number, so there is none to go on from")
        kept = sorted(trial for trial in ranked[: len(ranked) - self._truncated] if trial in self._open)
        actions: list[Action] = [Stop(trial, self._why(ranked, trial)) for trial in sorted(alive) if trial not in kept]
        hparams_of = dict(self._hparams_of)
        self._members = {trial: self._members[trial] + self.length_per_round for trial in kept}
        self._settled = set()
        actions += [Extend(trial, target) for trial, target in self._members.items()]
        best = parents[: max(self._truncated, 1)]
        for place in range(self.population_size - len(kept)):
            actions.append(self._join(self._copy(best[place % len(best)], hparams_of)))
        self._hparams_of = {trial: self._hparams_of[trial] for trial in self._members}
        self._latest = {trial: cost for trial, cost in self._latest.items() if trial in self._members}
        return actions

    def _copy(self, parent: int, hparams_of: Mapping[int, Mapping[str, Any]]) -> Create:
        create = self._create(self.length_per_round)
        rng = trial_rng(self._seed, create.trial, "explore")
        values = self._space.explore(hparams_of[parent], rng, self._resample_probability, self._perturb_factor)
        return Create(create.trial, values, create.seed, create.target, copy_of=parent)

    def _why(self, ranked: list[int], trial: int) -> str:
        reached = self._goal.shown(self._latest.get(trial, math.inf))
        return f"round {self._round}: number {ranked.index(trial) + 1} of {len(ranked)}, reached {reached}"

    def _remember(self) -> dict[str, Any]:
        return {
            "round": self._round,
            "members": [
                [
                    trial,
                    target,
                    self._hparams_of[trial],
                    [cost_as_data(self._latest[trial])] if trial in self._latest else [],
                    trial in self._settled,
                ]
                for trial, target in self._members.items()
            ],
            "batch_sizes": self._clock.dump(),
        }

    def _recall(self, data: Any) -> None:
        self._round = data["round"]
        self._clock.load(data["batch_sizes"])
        members = data["members"]
        self._members = {trial: target for trial, target, _, _, _ in members}
        self._hparams_of = {trial: hparams for trial, _, hparams, _, _ in members}
        self._latest = {trial: cost_from_data(latest[0]) for trial, _, _, latest, _ in members if latest}
        self._settled = {trial for trial, _, _, _, is_settled in members if is_settled}
