"""The search of each experiment: told what happens, it answers, and both are kept so that it can be replayed.

The method itself lives in the write thread's memory. What the database holds is its events and now and then a snapshot;
from these the same method is made again after a restart, or after a change that did not happen.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from determined import config as configs
from determined.config import ExperimentConfig
from determined.master.records import Experiment, Search, SearchEvent
from determined.master.store import searches
from determined.master.store.database import Tx
from determined.search.build import build_method
from determined.search.method import (
    Action,
    Exit,
    Finish,
    SearchMethod,
    action_as_data,
    action_from_data,
)

SNAPSHOT_EVERY = 200
_OF_SEARCH = ("searcher", "hyperparameters")

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class _Live:
    """A method that has been told so many events."""

    method: SearchMethod
    events: int
    progress_at: float = 0.0


def start(tx: Tx, experiment_id: int, config: ExperimentConfig, seed: int) -> list[Action]:
    """Begin the search of a new experiment; what it wants first. Raises what the method raises when it is made."""
    method = build_method(config, seed)
    searches.insert(tx, experiment_id, unit=method.unit)
    _remember(tx, experiment_id, _Live(method, 0))
    return _tell(tx, experiment_id, "start", None, None, lambda: method.start())


def tell_validation(tx: Tx, experiment: Experiment, trial: int, metrics: Mapping[str, Any]) -> list[Action]:
    """A trial, by its number, reported a validation; what follows."""
    method = _live(tx, experiment).method
    return _tell(tx, experiment.id, "validation", trial, metrics, lambda: method.on_validation(trial, metrics))


def tell_exit(tx: Tx, experiment: Experiment, trial: int, exit: Exit) -> list[Action]:
    """A trial, by its number, has ended and will not go on; what follows."""
    method = _live(tx, experiment).method
    return _tell(tx, experiment.id, "exit", trial, exit.value, lambda: method.on_exit(trial, exit))


def go_on_with(tx: Tx, experiment: Experiment, config: ExperimentConfig) -> None:
    """Let the search go on with a changed config: what it knows stays."""
    live = _live(tx, experiment)
    method = build_method(config, experiment.seed)
    method.load(live.method.dump())
    changed = _Live(method, live.events)
    _remember(tx, experiment.id, changed)
    # What else the config holds, secrets among it, has no place in the history of a search.
    told = {name: part for name, part in config.as_dict().items() if name in _OF_SEARCH}
    _tell(tx, experiment.id, "continue", None, told, lambda: ())
    _save(tx, experiment.id, changed)


def progress(
    tx: Tx, experiment: Experiment, trials: Callable[[], Mapping[int, float]], at_once: bool = False
) -> float | None:
    """How much of the search is done; None if that was asked less than a second ago, unless ``at_once``."""
    live = _live(tx, experiment)
    if not at_once and 0 <= tx.now - live.progress_at < 1.0:
        return None
    live.progress_at = tx.now
    return min(max(float(live.method.progress(trials())), 0.0), 1.0)


def put_away(tx: Tx, experiment_id: int) -> None:
    """The experiment has ended: what its search knows goes to the database, and out of memory."""
    live = tx.memory.get(_key(experiment_id))
    if live is None:
        return
    if not searches.require(tx, experiment_id).failure:
        _save(tx, experiment_id, live)
    del tx.memory[_key(experiment_id)]


def replay(
    events: Sequence[SearchEvent], config: ExperimentConfig, seed: int, snapshot: tuple[int, Any] | None = None
) -> tuple[SearchMethod, list[list[Action]]]:
    """A method that has been told these events, and what it answered to each."""
    method = build_method(config, seed)
    if snapshot is not None:
        method.load(snapshot[1])
    answers: list[list[Action]] = []
    for event in events:
        match event.kind:
            case "start":
                answers.append([*method.start()])
            case "validation":
                assert event.trial is not None
                answers.append([*method.on_validation(event.trial, event.told)])
            case "exit":
                assert event.trial is not None
                answers.append([*method.on_exit(event.trial, Exit(event.told))])
            case "continue":
                known = method.dump()
                method = build_method(configs.load({**config.as_dict(), **event.told}), seed)
                method.load(known)
                answers.append([])
    return method, answers


def answered(event: SearchEvent) -> list[Action]:
    """What the search answered then."""
    return [action_from_data(action) for action in event.actions]


def _tell(
    tx: Tx,
    experiment_id: int,
    kind: str,
    trial: int | None,
    told: Any,
    answer: Callable[[], Sequence[Action]],
) -> list[Action]:
    """Tell the live method of an event, and keep both that and its answer."""
    live: _Live = tx.memory[_key(experiment_id)]
    tx.undo(lambda: _forget(tx, experiment_id))
    try:
        actions = [*answer()]
    except Exception as error:
        _log.exception("experiment %d: the search method failed", experiment_id)
        actions = [Finish(f"the search method failed: {type(error).__name__}: {error}")]
    searches.append(
        tx,
        experiment_id,
        live.events,
        kind,
        trial=trial,
        told=told,
        actions=[action_as_data(action) for action in actions],
    )
    live.events += 1
    searches.update(tx, experiment_id, events=live.events)
    if live.events % SNAPSHOT_EVERY == 0 and not any(isinstance(a, Finish) and a.failure for a in actions):
        _save(tx, experiment_id, live)
    return actions


def _live(tx: Tx, experiment: Experiment) -> _Live:
    """The method of an experiment as it is after all its events."""
    search = searches.require(tx, experiment.id)
    live = tx.memory.get(_key(experiment.id))
    if not isinstance(live, _Live) or live.events != search.events:
        live = _load(tx, experiment, search)
        _remember(tx, experiment.id, live)
    return live


def _load(tx: Tx, experiment: Experiment, search: Search) -> _Live:
    snapshot = searches.snapshot(tx, experiment.id)
    events = searches.events(tx, experiment.id, first=snapshot[0] if snapshot else 0)
    method, answers = replay(events, configs.load(experiment.config), experiment.seed, snapshot)
    for event, answer in zip(events, answers):
        if event.kind != "continue" and answer != answered(event):
            _log.error(
                "experiment %d: replayed, its search answers event %d otherwise than it did; it goes on as it is",
                experiment.id,
                event.number,
            )
            break
    return _Live(method, search.events)


def _save(tx: Tx, experiment_id: int, live: _Live) -> None:
    searches.save_snapshot(tx, experiment_id, live.events, live.method.dump())


def _remember(tx: Tx, experiment_id: int, live: _Live) -> None:
    tx.memory[_key(experiment_id)] = live
    tx.undo(lambda: _forget(tx, experiment_id))


def _forget(tx: Tx, experiment_id: int) -> None:
    tx.memory.pop(_key(experiment_id), None)


def _key(experiment_id: int) -> tuple[str, int]:
    return ("search", experiment_id)
