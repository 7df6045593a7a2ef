"""A search method that does as it is told by its options: to create so many trials, and what to do at each event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from determined.config import ExperimentConfig
from determined.search.method import Action, Create, Exit, Finish, action_from_data


class Scripted:
    """``script`` maps an event ("start", "validation 0 100", "exit 1 error") to actions; each event's is done once.

    Everything it is told is remembered in ``heard``. It finishes when as many trials as it created have ended.
    """

    unit: str | None = "batches"

    def __init__(
        self, config: ExperimentConfig, seed: int, trials: int = 1, target: float | None = None, **script: Any
    ) -> None:
        self.seed = seed
        self.trials = trials
        self.target = target
        self.script: Mapping[str, Sequence[Mapping[str, Any]]] = script.get("script", {})
        self.heard: list[str] = []
        self.created = 0
        self.ended = 0

    def start(self) -> Sequence[Action]:
        first: list[Action] = [Create(number, {"number": number}, number, self.target) for number in range(self.trials)]
        return self._answer("start", first)

    def on_validation(self, trial: int, metrics: Mapping[str, Any]) -> Sequence[Action]:
        return self._answer(f"validation {trial} {metrics['batches']}", [])

    def on_exit(self, trial: int, exit: Exit) -> Sequence[Action]:
        self.ended += 1
        return self._answer(f"exit {trial} {exit.value}", [])

    def progress(self, trials: Mapping[int, float]) -> float:
        return sum(trials.values()) / max(len(trials), 1)

    def dump(self) -> Any:
        return {"heard": self.heard, "created": self.created, "ended": self.ended}

    def load(self, data: Any) -> None:
        self.heard = [*data["heard"]]
        self.created, self.ended = data["created"], data["ended"]

    def _answer(self, event: str, actions: list[Action]) -> Sequence[Action]:
        self.heard.append(event)
        for data in self.script.get(event, ()):
            if data["action"] == "raise":
                raise RuntimeError(data["message"])
            actions.append(action_from_data(data))
        self.created += sum(isinstance(action, Create) for action in actions)
        if self.ended == self.created:
            actions.append(Finish())
        return actions
