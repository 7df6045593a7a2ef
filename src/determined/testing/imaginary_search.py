"""A search whose trials only count, in an order and with faults that a seed decides; it checks every answer."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from determined.search.method import (
    Action,
    Create,
    Exit,
    Extend,
    Finish,
    SearchMethod,
    Stop,
    action_as_data,
    action_from_data,
)

MOST_EVENTS = 20_000


@dataclasses.dataclass(frozen=True)
class Faults:
    """How likely it is, at each step of a trial, that something else happens than a validation."""

    error: float = 0.0
    invalid: float = 0.0
    canceled: float = 0.0
    not_a_number: float = 0.0
    repeated: float = 0.0  # an event that was told before comes again, after the trial's exit


NO_FAULTS = Faults()
EVERY_FAULT = Faults(0.03, 0.03, 0.02, 0.05, 0.1)


@dataclasses.dataclass
class ImaginaryTrial:
    """One trial: how far it is and how far it may go."""

    create: Create
    target: float | None
    reached: int = 0
    is_stopped: bool = False
    exit: Exit | None = None


@dataclasses.dataclass(frozen=True)
class Told:
    """One event and what the search answered."""

    kind: str
    trial: int | None
    what: Any
    actions: tuple[Action, ...]


class ImaginarySearch:
    """Runs a search to its end. ``length`` is where a trial without a target ends by itself.

    ``draw`` decides whose turn it is and what goes wrong. ``crashes`` replaces the method after every event by one that
    was loaded from the JSON text of what it knew.
    """

    def __init__(
        self,
        make: Callable[[], SearchMethod],
        draw: random.Random,
        *,
        length: int = 16,
        faults: Faults = NO_FAULTS,
        crashes: bool = False,
        places: int | None = None,
        metrics: Callable[[Create, int], Mapping[str, float]] | None = None,
    ) -> None:
        self.method = make()
        self.trials: dict[int, ImaginaryTrial] = {}
        self.history: list[Told] = []
        self.finish: Finish | None = None
        self._make = make
        self._draw = draw
        self._length = length
        self._faults = faults
        self._crashes = crashes
        self._places = places
        self._metrics = metrics or by_chance

    def run(self) -> ImaginarySearch:
        """To the end of the last trial."""
        self._told("start", None, None, self.method.start())
        while open_trials := [number for number, trial in self.trials.items() if trial.exit is None]:
            assert len(self.history) < MOST_EVENTS, "it goes on and on"
            movable = [number for number in open_trials if self._can_move(self.trials[number])]
            assert movable, f"stuck: trials {open_trials[:10]} wait for something that will not happen"
            # A cluster with few places runs the older ones first.
            number = self._draw.choice(movable[: self._places])
            self._step(number, self.trials[number])
        assert self.finish is not None, "all trials have ended, and the search has not"
        assert self.method.progress({}) == 1.0 or self.finish.failure
        return self

    @property
    def actions(self) -> list[Action]:
        """Everything the search did, in order."""
        return [action for told in self.history for action in told.actions]

    def _can_move(self, trial: ImaginaryTrial) -> bool:
        return trial.is_stopped or trial.target is None or trial.reached < trial.target

    def _step(self, number: int, trial: ImaginaryTrial) -> None:
        fate, faults = self._draw.random(), self._faults
        if trial.is_stopped:
            self._exit(number, trial, Exit.COMPLETED)
        elif fate < faults.error:
            self._exit(number, trial, Exit.ERROR)
        elif fate < faults.error + faults.invalid:
            self._exit(number, trial, Exit.INVALID_HP)
        elif fate < faults.error + faults.invalid + faults.canceled:
            self._exit(number, trial, Exit.CANCELED)
        else:
            self._validate(number, trial)
        if self._draw.random() < faults.repeated:
            self._repeat()

    def _validate(self, number: int, trial: ImaginaryTrial) -> None:
        trial.reached += 1
        told: dict[str, Any] = dict.fromkeys(("batches", "epochs", "records"), trial.reached)
        told.update(self._metrics(trial.create, trial.reached))
        if self._draw.random() < self._faults.not_a_number:
            told = {
                name: value if name in ("batches", "epochs", "records") else math.nan for name, value in told.items()
            }
        self._told("validation", number, told, self.method.on_validation(number, told))
        if trial.exit is None and not trial.is_stopped and trial.target is None and trial.reached >= self._length:
            self._exit(number, trial, Exit.COMPLETED)

    def _exit(self, number: int, trial: ImaginaryTrial, exit: Exit) -> None:
        trial.exit = exit
        self._told("exit", number, exit, self.method.on_exit(number, exit))

    def _repeat(self) -> None:
        """Something comes again of a trial that has ended."""
        old = self._draw.choice(self.history)
        if old.trial is None or self.trials[old.trial].exit is None:
            return
        before = self.method.dump()
        tell: Callable[..., Sequence[Action]]
        tell = self.method.on_exit if old.kind == "exit" else self.method.on_validation
        answer = tell(old.trial, old.what)
        assert not answer, f"trial {old.trial} has ended, and the search still does something about it: {answer}"
        assert self.method.dump() == before, f"trial {old.trial} has ended, and the search still learns from it"

    def _told(self, kind: str, trial: int | None, what: Any, actions: Sequence[Action]) -> None:
        actions = tuple(actions)
        self.history.append(Told(kind, trial, what, actions))
        for action in actions:
            assert self.finish is None, f"after its end the search does {action}"
            assert action_from_data(json.loads(as_json(action_as_data(action)))) == action
            self._do(action)
        progress = self.method.progress({number: 0.5 for number, trial in self.trials.items() if trial.exit is None})
        assert 0.0 <= progress <= 1.0
        if self._crashes:
            known = as_json(self.method.dump())
            self.method = self._make()
            self.method.load(json.loads(known))
            assert as_json(self.method.dump()) == known, "what it loads is not what it dumped"

    def _do(self, action: Action) -> None:
        match action:
            case Create(trial=number, seed=seed, target=target, copy_of=copy_of):
                assert number == len(self.trials), "trials are numbered in the order they are created"
                assert 0 <= seed < 2**31
                assert target is None or 0 < target < math.inf
                assert copy_of is None or copy_of in self.trials
                self.trials[number] = ImaginaryTrial(action, target)
            case Extend(trial=number, target=target):
                trial = self.trials[number]
                assert trial.exit is None and not trial.is_stopped, f"trial {number} cannot go on"
                assert trial.target is not None and trial.target < target < math.inf
                trial.target = target
            case Stop(trial=number):
                trial = self.trials[number]
                assert trial.exit is None and not trial.is_stopped, f"trial {number} is stopped already"
                trial.is_stopped = True
            case Finish():
                self.finish = action


def by_chance(create: Create, reached: int) -> dict[str, float]:
    """A loss that a trial's seed decides, and that falls as it trains."""
    return {"loss": random.Random(create.seed).random() + 1.0 / reached}


def as_json(data: Any) -> str:
    """The text that keeps it; raises if there is no such text, as for NaN."""
    return json.dumps(data, allow_nan=False)
