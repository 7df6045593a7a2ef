"""From what was submitted to a config that can run here, or to every mistake at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fastapi import FastAPI

from determined import errors
from determined.config import loading
from determined.config.experiment import Document, ExperimentConfig
from determined.config.length import Length
from determined.config.problems import Path, Problem, as_exception
from determined.config.searcher import Single
from determined.config.section import closest
from determined.config.task import TaskConfig
from determined.search import grid
from determined.wire.requests import CreateExperiment, CreateTask, PreviewSearch

Config = TypeVar("Config", bound=Document)

_MOST_AT_ONCE = 10_000


@dataclasses.dataclass(frozen=True)
class Size:
    """What a pool has: all slots, those of its largest machine; ``grows`` if it may have more tomorrow."""

    slots: int
    largest: int
    grows: bool = False


class Pools:
    """The pools there are, and how large they were when the engine last looked."""

    def __init__(self, app: FastAPI) -> None:
        self._state = app.state

    @property
    def default(self) -> str:
        """The pool of whatever names none."""
        return str(self._state.settings.default_pool_name)

    def sizes(self) -> dict[str, Size | None]:
        """Every pool's size; None of one that has not been looked at."""
        return {name: self._size(name) for name in self._state.settings.pools}

    def _size(self, name: str) -> Size | None:
        nodes = self._state.engine.nodes(name) if hasattr(self._state.engine, "nodes") else ()
        if not nodes:
            return None
        slots = [len(node.slots) for node in nodes]
        return Size(sum(slots), max(slots), bool(self._state.pools[name].queues_itself))


def pools_of(app: FastAPI) -> Pools:
    """The pools of this app."""
    return Pools(app)


def experiment(
    asked: CreateExperiment, defaults: Mapping[str, Any], sizes: Mapping[str, Size | None], default_pool: str
) -> ExperimentConfig:
    """The config of a submission; raises InvalidConfigurationException that has every mistake as a detail."""
    checked = loading.check(
        asked.config.encode(),
        overrides=asked.overrides,
        defaults=defaults,
        name_hint=asked.name_hint,
        file=asked.file,
        to_run=True,
    )
    config = _require(checked)
    problems, notices = _fit(
        checked, sizes, default_pool, config.resources.resource_pool, config.resources.slots_per_trial,
        bool(config.resources.is_single_node), ("resources", "slots_per_trial"),
    )  # fmt: skip
    problems += _too_many_at_once(checked, config)
    limit = config.resources.max_slots
    if limit is not None and 0 < limit < config.resources.slots_per_trial:
        says = f"is {limit}, less than one trial needs (slots_per_trial is {config.resources.slots_per_trial})"
        problems.append(_at(checked, ("resources", "max_slots"), says))
    if problems:
        raise refused(problems, checked.what)
    if asked.test:
        config = as_test(config)
    return config.with_notices([*checked.unwrap().notices, *notices])


def task(
    asked: CreateTask, defaults: Mapping[str, Any], sizes: Mapping[str, Size | None], default_pool: str
) -> TaskConfig:
    """The config of a task; raises as ``experiment``."""
    text = asked.config if asked.config.strip() else "{}"
    checked = loading.check_task(
        text.encode(), overrides=asked.overrides, defaults=defaults, file=asked.file, to_run=asked.kind == "job"
    )
    config = _require(checked)
    resources = config.resources
    problems, notices = _fit(
        checked, sizes, default_pool, resources.resource_pool, resources.slots, bool(resources.is_single_node),
        ("resources", "slots"),
    )  # fmt: skip
    if problems:
        raise refused(problems, checked.what)
    return config.with_notices([*config.notices, *notices])


def preview(asked: PreviewSearch) -> ExperimentConfig:
    """The config whose search is to be looked at; it need not be able to run."""
    checked = loading.check(asked.config.encode(), overrides=asked.overrides, file=asked.file)
    config = _require(checked)
    problems = _too_many_at_once(checked, config)
    if problems:
        raise refused(problems, checked.what)
    return config


def as_test(config: ExperimentConfig) -> ExperimentConfig:
    """The same experiment as one trial of one batch."""
    searcher = config.searcher
    single = Single(
        metric=searcher.metric,
        smaller_is_better=searcher.smaller_is_better,
        source_trial_id=searcher.source_trial_id,
        source_checkpoint_uuid=searcher.source_checkpoint_uuid,
        max_length=Length(batches=1),
    )
    changes = {
        "searcher": single,
        "min_validation_period": Length(batches=1),
        "min_checkpoint_period": Length(batches=0),
        "max_restarts": 0,
    }
    return config.model_copy(update=changes)


def refused(problems: Sequence[Problem], what: str) -> errors.InvalidConfigurationException:
    """All mistakes as one error, each also as data."""
    error = as_exception(problems, what)
    error.details = [  # type: ignore[attr-defined]
        {
            "path": ".".join(map(str, problem.path)),
            "says": problem.says,
            "message": str(problem),
            "file": problem.place.file,
            "line": problem.place.line,
        }
        for problem in dict.fromkeys(problems)
    ]
    return error


def _require(checked: loading.Checked[Config]) -> Config:
    if checked.config is None:
        raise refused(checked.problems, checked.what)
    return checked.config


def _fit(
    checked: loading.Checked[Any],
    sizes: Mapping[str, Size | None],
    default_pool: str,
    pool: str,
    slots: int,
    on_one_machine: bool,
    path: Path,
) -> tuple[list[Problem], list[str]]:
    """What is wrong with where something is to run, and what to tell about it."""
    name = pool or default_pool
    if name not in sizes:
        guess = closest(name, sizes)
        says = f"names a pool {name!r} that there is not; the pools are {', '.join(sizes)}"
        problem = _at(checked, ("resources", "resource_pool"), f"{says}; did you mean {guess}?" if guess else says)
        return [problem], []
    size = sizes[name]
    if size is None:
        return [], []
    has = f"pool {name} has {_slots(size.slots)}"
    if slots > size.slots:
        says = f"asks for {_slots(slots)}, and {has} in all; ask for {size.slots} at most"
    elif on_one_machine and slots > size.largest:
        says = f"asks for {_slots(slots)} on one machine, and the largest machine of pool {name} has {size.largest}"
    else:
        return [], []
    if size.grows:
        return [], [f"{'.'.join(map(str, path))} {says.partition(';')[0]}: it waits until there are more"]
    return [_at(checked, path, says)], []


def _at(checked: loading.Checked[Any], path: Path, says: str) -> Problem:
    return Problem(path, says, checked.places.of(path))


def _too_many_at_once(checked: loading.Checked[Any], config: ExperimentConfig) -> list[Problem]:
    """A search makes its first trials in one step, for which everybody waits."""
    searcher = config.searcher
    concurrent = getattr(searcher, "max_concurrent_trials", None)
    if concurrent is None:
        return []
    trials = getattr(searcher, "max_trials", None) or 0
    if searcher.name == "grid":
        trials = grid.size(config.hyperparameters)
    at_once = min(concurrent or trials, trials)
    if at_once <= _MOST_AT_ONCE:
        return []
    says = f"lets {at_once} trials begin at once, and at most {_MOST_AT_ONCE} may: set a smaller one"
    return [_at(checked, ("searcher", "max_concurrent_trials"), says)]


def _slots(count: int) -> str:
    return "1 slot" if count == 1 else f"{count} slots"
