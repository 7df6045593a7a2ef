"""A search against an imaginary cluster: what it will do, and what that takes, before anything is spent."""

from __future__ import annotations

import collections
import dataclasses
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from determined.config import searcher as sections
from determined.config.experiment import ExperimentConfig
from determined.search.asha import Halving, Stopping
from determined.search.build import build_method, max_length, metric_of
from determined.search.method import COUNTERS, Action, Create, Exit, Extend, SearchMethod, Stop
from determined.search.random import Random
from determined.search.space import Space, trial_rng

# After so many stops of trials a preview of a method of one's own gives up.
MOST_STOPS = 200_000
# What a trial measures, given its number and how far it is.
Metric = Callable[[int, float], float]


@dataclasses.dataclass(frozen=True)
class PreviewRow:
    """So many trials train for so long. ``target`` is None where the config leaves that to the script."""

    trials: int
    target: float | None = None
    unit: str = ""


@dataclasses.dataclass(frozen=True)
class Preview:
    """What a search will do. ``total`` is the length of all trials together, ``elapsed`` how long the whole search
    takes on the imaginary cluster, both in the unit of the rows; hours are known where the seconds of a unit are."""

    trials: int
    rows: tuple[PreviewRow, ...]
    total: float
    elapsed: float
    slot_hours: float | None
    hours: float | None
    examples: tuple[Mapping[str, Any], ...]
    notices: tuple[str, ...]


def simulate(
    config: ExperimentConfig,
    seed: int = 0,
    *,
    slots: int | None = None,
    seconds_per_unit: float | None = None,
    metric: Metric | None = None,
    examples: int = 5,
) -> Preview:
    """Run the search of a config on a cluster of so many slots (None: as many as it wants), where training is counting.

    Without a ``metric``, successive halving lets as many go on as belong to the best part of each rung, whoever they
    are; a real search may let a few more go on, as it does not know all of a rung when it decides. Raises what
    ``build_method`` raises.
    """
    method = build_method(config, seed)
    length = max_length(config.searcher)
    notices = [*_notices(config, length)]
    slots_per_trial = max(config.resources.slots_per_trial, 1)
    places = None if slots is None else max(slots // slots_per_trial, 1)
    if slots is not None and slots < slots_per_trial:
        notices.append(f"a trial needs {slots_per_trial} slots, and the cluster has {slots}: it could not run there")
    first = [action.hparams for action in method.start() if isinstance(action, Create)]
    trials, elapsed = _run(config, method, seed, places, length, metric, notices)
    rows = [
        PreviewRow(number, None if math.isinf(reached) else reached, length[1] if length else "")
        for reached, number in sorted(trials.items())
    ]
    total = float(sum(row.trials * row.target for row in rows if row.target is not None))
    seconds = seconds_per_unit if length else None
    return Preview(
        sum(row.trials for row in rows),
        tuple(rows),
        total,
        elapsed,
        None if seconds is None else total * seconds * slots_per_trial / 3600,
        None if seconds is None else elapsed * seconds / 3600,
        tuple(first[:examples]),
        tuple(notices),
    )


def _run(
    config: ExperimentConfig,
    method: SearchMethod,
    seed: int,
    places: int | None,
    length: tuple[float, str] | None,
    metric: Metric | None,
    notices: list[str],
) -> tuple[Mapping[float, int], float]:
    """How many trials went how far, and how long it took."""
    end = length[0] if length else math.inf
    if isinstance(method, Random):  # also what samplers propose: trials that do not end earlier for what others do
        at_a_time = min(method.max_concurrent_trials, places or method.max_trials)
        rounds = -(-method.max_trials // at_a_time)
        return {end: method.max_trials}, rounds * end if length else 0.0
    # Made again, since this one has been started for its examples.
    method = build_method(config, seed)
    if isinstance(method, Halving):
        for bracket in method.brackets:
            if isinstance(bracket, Stopping):
                bracket.by_count = metric is None
    cluster = ImaginaryTrials(method, metric_of(config), length, places, metric or _imaginary(config, seed))
    if not cluster.run():
        notices.append(f"the search had not ended after {len(cluster.reached)} trials, and was not followed further")
    return collections.Counter(cluster.reached.values()), cluster.now if length else 0.0


def _imaginary(config: ExperimentConfig, seed: int) -> Metric:
    """Trials that are as good from the beginning as they will ever be."""
    if isinstance(config.searcher, (sections.AsyncHalving, sections.AdaptiveAsha)):
        # The best come first, so that nobody goes on who is overtaken later.
        return lambda trial, _: float(trial if config.searcher.smaller_is_better else -trial)
    return lambda trial, _: trial_rng(seed, trial, "imaginary").random()


class ImaginaryTrials:
    """Trials that count up to their end, on so many places, in the time that it takes to count."""

    def __init__(
        self,
        method: SearchMethod,
        metric_name: str | None,
        length: tuple[float, str] | None,
        places: int | None,
        metric: Metric,
    ) -> None:
        self.now = 0.0
        self.reached: dict[int, float] = {}
        self._method = method
        self._metric_name = metric_name or "loss"
        self._end, self._unit = length or (math.inf, "")
        self._places = places
        self._metric = metric
        self._targets: dict[int, float | None] = {}
        self._queue: collections.deque[int] = collections.deque()
        self._running: list[tuple[float, int, float]] = []  # when each comes to its next stop, and where that is

    def run(self, most_stops: int = MOST_STOPS) -> bool:
        """To the end of the search, or until it has gone on for too long: whether it came to its end."""
        self._do(self._method.start())
        for _ in range(most_stops):
            while self._queue and (self._places is None or len(self._running) < self._places):
                trial = self._queue.popleft()
                stop = self._next_stop(trial)
                takes = stop - self.reached[trial] if math.isfinite(stop) else 1.0
                heapq.heappush(self._running, (self.now + takes, trial, stop))
            if not self._running:
                return True
            self.now, trial, here = heapq.heappop(self._running)
            self._arrive(trial, here)
        return False

    def _next_stop(self, trial: int) -> float:
        """Where the trial validates next."""
        milestones: Sequence[float] = getattr(self._method, "milestones", ())
        return min([*(at for at in milestones if self.reached[trial] < at), self._end_of(trial)])

    def _arrive(self, trial: int, here: float) -> None:
        self.reached[trial] = here
        value = self._metric(trial, here)
        told = {**dict.fromkeys((*COUNTERS, self._unit or "batches"), here), self._metric_name: value}
        # Its place stays its own until it is known what becomes of it.
        self._queue.appendleft(trial)
        self._do(self._method.on_validation(trial, told))
        if trial in self._targets and here >= self._end_of(trial):
            self._queue.remove(trial)
            if self._targets[trial] is None:
                self._leave(trial, Exit.COMPLETED)

    def _end_of(self, trial: int) -> float:
        target = self._targets[trial]
        return self._end if target is None else target

    def _leave(self, trial: int, exit: Exit) -> None:
        del self._targets[trial]
        self._do(self._method.on_exit(trial, exit))

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Create(trial=trial, target=target):
                    self._targets[trial] = target
                    self.reached[trial] = 0.0
                    self._queue.append(trial)
                case Extend(trial=trial, target=target):
                    waits = trial not in self._queue and all(trial != item[1] for item in self._running)
                    self._targets[trial] = target
                    if waits:
                        self._queue.append(trial)
                case Stop(trial=trial):
                    if trial in self._targets:
                        if trial in self._queue:
                            self._queue.remove(trial)
                        self._running = [item for item in self._running if item[1] != trial]
                        heapq.heapify(self._running)
                        self._leave(trial, Exit.COMPLETED)


def _notices(config: ExperimentConfig, length: tuple[float, str] | None) -> list[str]:
    searcher = config.searcher
    notices = []
    if length is None:
        notices.append("how long a trial trains is left to the script: set searcher.max_length to see what it takes")
    elif not length[1]:
        notices.append("searcher.max_length has no unit: the script knows what it counts")
    if isinstance(searcher, sections.Sampled) and searcher.pruner:
        notices.append(f"counted as if no trial were stopped by the {searcher.pruner} pruner")
    if not Space(config.hyperparameters).has_ranges and not isinstance(searcher, sections.Single):
        notices.append("no hyperparameter is a range: all trials have the same values, and differ in their seeds only")
    return notices
