"""Asynchronous successive halving: of the trials on a rung the best part goes on, without waiting for the others.

Two forms. ``Stopping``: a trial trains on until it turns out not to belong to the best of its rung, and then ends for
good. ``Promoting``: a trial waits at its rung, and is taken up again when it turns out to belong to the best.
"""

from __future__ import annotations

import abc
import bisect
import dataclasses
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from determined.search.base import Search
from determined.search.clock import Clock
from determined.search.goal import Goal, cost_as_data, cost_from_data
from determined.search.method import Action, Create, Exit, Extend, Stop
from determined.search.space import Space

NewTrial = Callable[[float | None], Create]


@dataclasses.dataclass(frozen=True)
class Shape:
    """One bracket: how far each of its rungs is, how many trials it has, how many at a time."""

    rungs: tuple[float, ...]
    max_trials: int
    max_concurrent_trials: int
    divisor: float

    @property
    def least_concurrent(self) -> int:
        """How many trials a bracket without a limit trains at a time: enough for one of them to reach the top."""
        return min(max(int(self.divisor ** (len(self.rungs) - 1)), 1), self.max_trials)

    @property
    def concurrent(self) -> int:
        return min(self.max_concurrent_trials or self.least_concurrent, self.max_trials)


def rungs(count: int, divisor: float, max_time: float) -> tuple[float, ...]:
    """How far each rung is: the last one at the end, each before it at a ``divisor``-th of the next, the first at 1 or
    more. Where so many do not fit there are fewer: two at the same distance would judge the same thing twice."""
    # A hair more than the quotient, lest 900 / 3 ** 2 come out as 99.
    needed = (max(int(max_time / divisor ** (count - 1 - rung) + 1e-9), 1) for rung in range(count))
    return tuple(dict.fromkeys(needed))


class Halving(Search):
    """Brackets side by side, each a successive halving; new trials of each get the next number of all.

    ``time_metric`` is what rungs are counted in: "batches", "epochs", "records", or a metric.
    """

    def __init__(
        self, space: Space, seed: int, goal: Goal, time_metric: str, shapes: Sequence[Shape], stop_once: bool = True
    ) -> None:
        super().__init__(space, seed)
        self._goal = goal
        self._clock = Clock(time_metric)
        self.shapes = tuple(shapes)
        self.stop_once = stop_once
        self.unit = None if stop_once else time_metric
        form = Stopping if stop_once else Promoting
        self.brackets: list[Bracket] = [form(shape, goal, self._new_trial_of(n)) for n, shape in enumerate(shapes)]
        self._bracket_of: dict[int, int] = {}

    @property
    def milestones(self) -> list[float]:
        """Where something is decided about a trial."""
        return sorted({rung for shape in self.shapes for rung in shape.rungs})

    def progress(self, trials: Mapping[int, float]) -> float:
        return 1.0 if self._is_over else sum(bracket.progress for bracket in self.brackets) / len(self.brackets)

    def _begin(self) -> list[Action]:
        return [action for bracket in self.brackets for action in bracket.begin()]

    def _learn(self, trial: int, metrics: Mapping[str, Any]) -> list[Action]:
        cost = self._goal.cost(trial, metrics)
        return self.brackets[self._bracket_of[trial]].learn(trial, self._clock.time(trial, metrics), cost)

    def _end(self, trial: int, exit: Exit, is_replaced: bool) -> list[Action]:
        self._clock.forget(trial)
        return self.brackets[self._bracket_of[trial]].end(trial, exit, is_replaced)

    def _new_trial_of(self, bracket: int) -> NewTrial:
        def new_trial(target: float | None) -> Create:
            create = self._create(target)
            self._bracket_of[create.trial] = bracket
            self._clock.learn(create)
            return create

        return new_trial

    def _remember(self) -> dict[str, Any]:
        return {
            "bracket_of": list(self._bracket_of.values()),
            "batch_sizes": self._clock.dump(),
            "brackets": [bracket.dump() for bracket in self.brackets],
        }

    def _recall(self, data: Any) -> None:
        self._bracket_of = dict(enumerate(data["bracket_of"]))
        self._clock.load(data["batch_sizes"])
        for bracket, known in zip(self.brackets, data["brackets"]):
            bracket.load(known)


class Bracket(abc.ABC):
    """One successive halving.

    Of each trial it keeps the costs with which it came to its rungs; a trial is closed when nothing it does can matter
    any more. Whether it has exited is not the bracket's business.
    """

    def __init__(self, shape: Shape, goal: Goal, new_trial: NewTrial) -> None:
        self.shape = shape
        self._goal = goal
        self._new_trial = new_trial
        self._costs: dict[int, list[float]] = {}
        self._closed: set[int] = set()
        self._rungs: list[list[tuple[float, int]]] = [[] for _ in shape.rungs]  # cost and trial, the best first
        self._started = 0  # trials that count
        self._ended = 0

    @property
    def progress(self) -> float:
        most = self.shape.max_trials
        return min(max(len(self._rungs[0]) / (1.2 * most), self._ended / most), 1.0)

    @property
    def table(self) -> list[list[tuple[float, int]]]:
        """Who came to each rung: cost and trial, the best first."""
        return [list(rung) for rung in self._rungs]

    @abc.abstractmethod
    def begin(self) -> list[Action]: ...

    @abc.abstractmethod
    def learn(self, trial: int, time: float, cost: float) -> list[Action]: ...

    @abc.abstractmethod
    def end(self, trial: int, exit: Exit, is_replaced: bool) -> list[Action]: ...

    def dump(self) -> Any:
        return {
            "costs": [
                [trial, [cost_as_data(cost) for cost in costs], trial in self._closed]
                for trial, costs in self._costs.items()
            ],
            "started": self._started,
            "ended": self._ended,
        }

    def load(self, data: Any) -> None:
        known = {trial: [cost_from_data(cost) for cost in costs] for trial, costs, _ in data["costs"]}
        self._costs = known
        self._closed = {trial for trial, _, is_closed in data["costs"] if is_closed}
        for number, rung in enumerate(self._rungs):
            rung[:] = sorted((costs[number], trial) for trial, costs in known.items() if len(costs) > number)
        self._started = data["started"]
        self._ended = data["ended"]

    def _create(self, target: float | None) -> Create:
        self._started += 1
        create = self._new_trial(target)
        self._costs[create.trial] = []
        return create

    def _enter(self, trial: int, cost: float) -> tuple[int, int]:
        """Put a trial on its next rung; which one that is, and how many are better. Equals come after it."""
        number = len(self._costs[trial])
        rung = self._rungs[number]
        place = bisect.bisect_left(rung, (cost, -1))
        bisect.insort(rung, (cost, trial))
        self._costs[trial].append(cost)
        return number, place

    def _exited(self, trial: int, exit: Exit, is_replaced: bool) -> None:
        """Count an exit, and take a trial off all its rungs if its values were invalid."""
        self._ended += not is_replaced
        self._started -= is_replaced
        if exit is Exit.INVALID_HP:
            for rung, cost in zip(self._rungs, self._costs[trial]):
                rung.pop(bisect.bisect_left(rung, (cost, trial)))
            self._costs[trial] = []
        self._closed.add(trial)

    def _allowance(self, rung: int) -> int:
        """How many of a rung's trials may go on, as far as is known by now."""
        return int(len(self._rungs[rung]) / self.shape.divisor)

    def _why(self, trial: int) -> str:
        """Why a trial does not go on from the rung it is on."""
        number, cost = len(self._costs[trial]) - 1, self._costs[trial][-1]
        rung = self._rungs[number]
        reached = f"reached {self._goal.shown(cost)}"
        if number == len(self._rungs) - 1:
            return f"rung {number + 1}: the last one, {reached}"
        cut = rung[max(self._allowance(number), 1) - 1][0]
        place = ordinal(bisect.bisect_left(rung, (cost, -1)) + 1)
        return f"rung {number + 1}: {place} of {len(rung)}, {reached}, cut at {self._goal.shown(cut)}"


class Stopping(Bracket):
    """The form that stops a trial for good when it is not among the best of its rung, as far as is known by then.

    ``by_count`` is for previews: as many go on as belong to the best part, whoever they are.
    """

    def __init__(self, shape: Shape, goal: Goal, new_trial: NewTrial) -> None:
        super().__init__(shape, goal, new_trial)
        self.by_count = False
        self._passed = [0 for _ in shape.rungs]

    def begin(self) -> list[Action]:
        return [action for _ in range(self.shape.concurrent) for action in self._next()]

    def learn(self, trial: int, time: float, cost: float) -> list[Action]:
        while trial not in self._closed and time >= self.shape.rungs[len(self._costs[trial])]:
            rung, place = self._enter(trial, cost)
            if rung == len(self._rungs) - 1 or not self._goes_on(rung, place, cost):
                self._closed.add(trial)
                return [Stop(trial, self._why(trial)), *self._next()]
            self._passed[rung] += 1
        return []

    def end(self, trial: int, exit: Exit, is_replaced: bool) -> list[Action]:
        was_stopped = trial in self._closed
        if exit is Exit.ERROR and not was_stopped:
            self._enter(trial, math.inf)
        self._exited(trial, exit, is_replaced)
        # The place of one that was stopped is given away already; an invalid one has to be made up for all the same.
        return [] if was_stopped and not is_replaced else self._next()

    def dump(self) -> Any:
        return {**super().dump(), "passed": list(self._passed)}

    def load(self, data: Any) -> None:
        super().load(data)
        self._passed = list(data["passed"])

    def _goes_on(self, rung: int, place: int, cost: float) -> bool:
        allowed = max(self._allowance(rung), 1)
        return (self._passed[rung] if self.by_count else place) < allowed and math.isfinite(cost)

    def _next(self) -> list[Action]:
        return [self._create(None)] if self._started < self.shape.max_trials else []


class Promoting(Bracket):
    """The form in which a trial trains to its rung, waits there, and goes on when it is among the best of it.

    A free place goes to the trial on the highest rung that may go on; if there is none, to a new one. A rung is settled
    when all trials that it will ever see have come to it: then one at least goes on, and whom nobody will want is let
    go.
    """

    def __init__(self, shape: Shape, goal: Goal, new_trial: NewTrial) -> None:
        super().__init__(shape, goal, new_trial)
        self._training: dict[int, int] = {}  # the rung that each is on its way to
        self._coming = [0 for _ in self._rungs]  # how many of those there are for each rung
        self._waiting: list[list[tuple[float, int]]] = [[] for _ in self._rungs]  # heaps; closed ones are passed over

    def begin(self) -> list[Action]:
        return self._fill()

    def learn(self, trial: int, time: float, cost: float) -> list[Action]:
        rung = self._training.get(trial)
        if rung is None or time < self.shape.rungs[rung]:
            return []
        self._arrive(trial)
        self._enter(trial, cost)
        if rung < len(self._rungs) - 1:
            heapq.heappush(self._waiting[rung], (cost, trial))
            return self._fill()
        self._closed.add(trial)
        return [Stop(trial, self._why(trial)), *self._fill()]

    def end(self, trial: int, exit: Exit, is_replaced: bool) -> list[Action]:
        if trial in self._training:
            self._arrive(trial)
            if exit is Exit.ERROR:
                self._enter(trial, math.inf)
        self._exited(trial, exit, is_replaced)
        return self._fill()

    def dump(self) -> Any:
        training = [[trial, rung] for trial, rung in self._training.items()]
        waiting = [sorted(trial for _, trial in heap if trial not in self._closed) for heap in self._waiting]
        return {**super().dump(), "training": training, "waiting": waiting}

    def load(self, data: Any) -> None:
        super().load(data)
        self._training = dict(data["training"])
        for rung, trials in enumerate(data["waiting"]):
            self._coming[rung] = sum(1 for coming_to in self._training.values() if coming_to == rung)
            self._waiting[rung] = sorted((self._costs[trial][rung], trial) for trial in trials)

    def _fill(self) -> list[Action]:
        """Give every free place to somebody, and let go whom nobody will want."""
        actions: list[Action] = []
        while True:
            best, unwanted = self._look()
            for rung in unwanted:
                actions += self._let_go(rung)
            if len(self._training) >= self.shape.concurrent:
                return actions
            if best is not None:
                _, trial = heapq.heappop(self._waiting[best])
                self._depart(trial, best + 1)
                actions.append(Extend(trial, self.shape.rungs[best + 1]))
            elif self._started < self.shape.max_trials:
                create = self._create(self.shape.rungs[0])
                self._depart(create.trial, 0)
                actions.append(create)
            else:
                return actions

    def _look(self) -> tuple[int | None, list[int]]:
        """The highest rung whose best waiting trial may go on, and the rungs from which nobody will any more."""
        best: int | None = None
        unwanted = []
        is_settled = self._started == self.shape.max_trials
        for rung, heap in enumerate(self._waiting[:-1]):
            is_settled = is_settled and not self._coming[rung]
            while heap and heap[0][1] in self._closed:
                heapq.heappop(heap)
            if not heap:
                continue
            allowed = max(self._allowance(rung), 1) if is_settled else self._allowance(rung)
            if bisect.bisect_left(self._rungs[rung], heap[0]) < allowed and math.isfinite(heap[0][0]):
                best = rung
                is_settled = False
            elif is_settled:
                unwanted.append(rung)
        return best, unwanted

    def _let_go(self, rung: int) -> list[Action]:
        trials = sorted(trial for _, trial in self._waiting[rung] if trial not in self._closed)
        self._waiting[rung] = []
        self._closed.update(trials)
        return [Stop(trial, self._why(trial)) for trial in trials]

    def _depart(self, trial: int, rung: int) -> None:
        self._training[trial] = rung
        self._coming[rung] += 1

    def _arrive(self, trial: int) -> None:
        self._coming[self._training.pop(trial)] -= 1


def ordinal(number: int) -> str:
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
