"""The seam of search: what a method is told, and what it answers.

A method decides about hyperparameters and nothing else. It reads no clock, does no I/O and uses no randomness but what
it derives from its seed: the same events in the same order give the same actions. Trials are known to it by their
number in the experiment, 0, 1, 2, ... in the order it creates them.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Union

# What a loop says about where it is, beside what it measured.
COUNTERS = ("batches", "epochs", "records")


class Exit(str, enum.Enum):
    """How a trial came to its end, as far as a search cares."""

    COMPLETED = "completed"  # trained to its end, or was stopped because the search had enough
    CANCELED = "canceled"  # people ended it
    ERROR = "error"  # no restart is left
    INVALID_HP = "invalid_hp"  # its own code said that these values are not worth training


@dataclasses.dataclass(frozen=True)
class Create:
    """A new trial. ``target`` is how far it trains for now (None: to its end), in the search's unit; ``copy_of`` is
    the number of the trial whose latest checkpoint it starts from: with its weights, and counting from 0."""

    trial: int
    hparams: Mapping[str, Any]
    seed: int
    target: float | None = None
    copy_of: int | None = None


@dataclasses.dataclass(frozen=True)
class Extend:
    """A trial that trains to a target, or waits there, trains on to a further one."""

    trial: int
    target: float


@dataclasses.dataclass(frozen=True)
class Stop:
    """Enough is known of this trial; it saves and ends, and counts as completed. ``reason`` is for people."""

    trial: int
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Finish:
    """No more trials will be created; the experiment ends with the last of them. ``failure`` ends it as an error, and
    is the sentence that says why."""

    failure: str | None = None


Action = Union[Create, Extend, Stop, Finish]


class SearchMethod(Protocol):
    """One search, from its start to its end.

    What it knows is data: ``dump`` gives it as JSON values and ``load`` of the same data, in a new object made from
    the same config and seed, goes on exactly as the first would have. Each call is fast; its cost does not grow with
    the number of trials more than the method's own arithmetic needs. ``unit`` says what the targets of its trials
    count: "batches", "epochs" or "records"; None if it gives none.

    To what comes after a trial's exit, or after Finish, it answers with nothing.
    """

    unit: str | None

    def start(self) -> Sequence[Action]:
        """The first trials. Called once."""

    def on_validation(self, trial: int, metrics: Mapping[str, Any]) -> Sequence[Action]:
        """A trial reported a validation. ``metrics`` holds "batches" (steps completed), "epochs" where known, too.

        A trial's validations come in order, each once, also after it was restarted or continued. A method may learn of
        the one with which a trial reaches its target before the trial has saved there; who acts on the answer waits
        for that checkpoint.
        """

    def on_exit(self, trial: int, exit: Exit) -> Sequence[Action]:
        """A trial has ended and will not go on. A trial that waits at its target has not ended."""

    def progress(self, trials: Mapping[int, float]) -> float:
        """How much of the search is done, 0 to 1, given how much of each trial is."""

    def dump(self) -> Any:
        """Everything it knows, as JSON values."""

    def load(self, data: Any) -> None:
        """Know again what ``dump`` gave."""


def action_as_data(action: Action) -> dict[str, Any]:
    """An action as JSON values, for a history."""
    kind = type(action).__name__.lower()
    return {"action": kind, **{field.name: getattr(action, field.name) for field in dataclasses.fields(action)}}


def action_from_data(data: Mapping[str, Any]) -> Action:
    """The action of which ``action_as_data`` gave these."""
    kinds: dict[str, type[Action]] = {"create": Create, "extend": Extend, "stop": Stop, "finish": Finish}
    return kinds[data["action"]](**{name: value for name, value in data.items() if name != "action"})


def pick_metric(metrics: Mapping[str, Any]) -> str | None:
    """The metric to judge by where the config names none: the loss, or the only number a validation has."""
    for name in ("loss", "validation_loss"):
        if name in metrics:
            return name
    numbers = [name for name, value in metrics.items() if name not in COUNTERS and isinstance(value, (int, float))]
    return numbers[0] if len(numbers) == 1 else None
