"""From a config to its search method."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Sequence
from typing import Any, cast

from determined import errors
from determined.config import searcher as sections
from determined.config.experiment import ExperimentConfig
from determined.config.length import Length
from determined.search.adaptive_asha import bracket_shapes
from determined.search.asha import Halving, Shape, rungs
from determined.search.goal import Goal
from determined.search.grid import Grid
from determined.search.method import SearchMethod
from determined.search.population import Population
from determined.search.random import Random
from determined.search.single import Single
from determined.search.space import Space

PLAIN_SEED = 0
_METHODS = ("start", "on_validation", "on_exit", "progress", "dump", "load")


def build_method(config: ExperimentConfig, seed: int) -> SearchMethod:
    """The search that a config asks for, before its start.

    Raises InvalidConfigurationException when a method of one's own cannot be imported or made, when a sampler or pruner
    does not take its options, or when Optuna is needed and not there.
    """
    space, searcher = Space(config.hyperparameters), config.searcher
    if isinstance(searcher, sections.Single):
        return Single(space, seed)
    if isinstance(searcher, sections.Random):
        return Random(space, seed, searcher.max_trials, searcher.max_concurrent_trials)
    if isinstance(searcher, sections.Grid):
        return Grid(space, seed, searcher.max_concurrent_trials)
    if isinstance(searcher, (sections.AsyncHalving, sections.AdaptiveAsha)):
        return _halving(space, seed, searcher)
    if isinstance(searcher, sections.PopulationBased):
        return _population(space, seed, searcher)
    if isinstance(searcher, sections.Sampled):
        return _sampled(space, seed, searcher)
    return _imported(config, seed, searcher)


def default_seed(config: ExperimentConfig) -> int:
    """The seed of an experiment that names none.

    It is drawn where hyperparameters are. Elsewhere it is that of a plain script: submitted, the same config trains
    the same model, bit for bit.
    """
    is_drawn = Space(config.hyperparameters).has_ranges and not isinstance(config.searcher, sections.Grid)
    return secrets.randbelow(2**31) if is_drawn else PLAIN_SEED


def metric_of(config: ExperimentConfig) -> str | None:
    """The metric that trials are ranked by; of several objectives the first. None: the config leaves it open."""
    objectives = _objectives(config)
    return objectives[0].metric if objectives else config.searcher.metric


def is_smaller_better(config: ExperimentConfig) -> bool:
    """Whether smaller values of that metric are better."""
    objectives = _objectives(config)
    return objectives[0].smaller_is_better if objectives else config.searcher.smaller_is_better


def max_length(searcher: sections.SearcherSection) -> tuple[float, str] | None:
    """How far a trial trains at most and what that counts, as far as the config says; the unit may be open: ""."""
    if isinstance(searcher, sections.PopulationBased):
        return searcher.length_per_round.value * searcher.num_rounds, searcher.length_per_round.unit
    if isinstance(searcher, (sections.AsyncHalving, sections.AdaptiveAsha)) and searcher.max_time is not None:
        return searcher.max_time, searcher.time_metric or ""
    length = searcher.max_length
    if length is None:
        return None
    return (length.value, length.unit) if isinstance(length, Length) else (length, "")


def _objectives(config: ExperimentConfig) -> Sequence[sections.Objective]:
    return config.searcher.objectives if isinstance(config.searcher, sections.Sampled) else ()


def _halving(space: Space, seed: int, searcher: sections.AsyncHalving | sections.AdaptiveAsha) -> Halving:
    length = max_length(searcher)
    assert length is not None  # a rule of the config
    max_time, time_metric = length
    if isinstance(searcher, sections.AdaptiveAsha):
        shapes = bracket_shapes(
            max_time,
            searcher.max_trials,
            searcher.max_concurrent_trials,
            searcher.divisor,
            searcher.mode,
            searcher.max_rungs,
            searcher.bracket_rungs,
        )
    else:
        levels = rungs(searcher.num_rungs, searcher.divisor, max_time)
        shapes = [Shape(levels, searcher.max_trials, searcher.max_concurrent_trials, searcher.divisor)]
    goal = Goal(searcher.metric, searcher.smaller_is_better)
    return Halving(space, seed, goal, time_metric, shapes, searcher.stop_once)


def _population(space: Space, seed: int, searcher: sections.PopulationBased) -> Population:
    return Population(
        space,
        seed,
        Goal(searcher.metric, searcher.smaller_is_better),
        searcher.length_per_round.unit,
        searcher.length_per_round.value,
        searcher.population_size,
        searcher.num_rounds,
        searcher.replace_function.truncate_fraction,
        searcher.explore_function.resample_probability,
        searcher.explore_function.perturb_factor,
    )


def _sampled(space: Space, seed: int, searcher: sections.Sampled) -> SearchMethod:
    try:
        # Loaded where it is asked for: few searches need Optuna, and it takes a second and 50 MB.
        from determined.search.sampled import Sampled
    except ImportError as missing:
        raise errors.InvalidConfigurationException(
            f"searcher {searcher.name} needs Optuna: pip install 'resolute[search]' ({missing})"
        ) from None
    goals = [Goal(objective.metric, objective.smaller_is_better) for objective in searcher.objectives]
    length = max_length(searcher)
    return Sampled(
        space,
        seed,
        goals or [Goal(searcher.metric or "", searcher.smaller_is_better)],
        searcher.name,
        searcher.max_trials,
        searcher.max_concurrent_trials,
        searcher.options,
        searcher.pruner,
        searcher.pruner_options,
        *(length if length and length[1] else (None,)),
    )


def _imported(config: ExperimentConfig, seed: int, searcher: sections.ImportedSearcher) -> SearchMethod:
    """A method of somebody's own: made as ``Class(config, seed, **options)``."""
    module_name, _, class_name = searcher.name.partition(":")
    try:
        make: Any = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as missing:
        raise errors.InvalidConfigurationException(f"searcher {searcher.name} cannot be imported: {missing}") from None
    try:
        method = make(config, seed, **searcher.options)
    except TypeError as refused:
        raise errors.InvalidConfigurationException(
            f"searcher {searcher.name} does not take (config, seed) and its options: {refused}"
        ) from None
    absent = [name for name in _METHODS if not callable(getattr(method, name, None))]
    if absent:
        raise errors.InvalidConfigurationException(
            f"searcher {searcher.name} is not a search method: it has no {', '.join(absent)}"
        )
    if not hasattr(method, "unit"):
        method.unit = None
    return cast("SearchMethod", method)
