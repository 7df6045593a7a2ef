"""Optuna's samplers behind our contract: values proposed by a model of what the trials so far have shown.

This is the one place that knows Optuna. It keeps one study in memory; what a sampler says depends on the study and on
a seed derived from (experiment seed, trial number), and on nothing else: a sampler that remembers more is made anew
for each trial.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import optuna

from determined import errors
from determined.config.hparams import Categorical, Double, Hyperparameters, Int, Log, Range
from determined.search.goal import Goal, cost_as_data, cost_from_data, read
from determined.search.method import Action, Exit, Stop
from determined.search.random import Random
from determined.search.space import Path, Space, bounds, trial_rng

optuna.logging.set_verbosity(optuna.logging.WARNING)

COMPLETE, PRUNED, FAIL, RUNNING = (
    optuna.trial.TrialState.COMPLETE,
    optuna.trial.TrialState.PRUNED,
    optuna.trial.TrialState.FAIL,
    optuna.trial.TrialState.RUNNING,
)
# What a pruner is told instead of no number: worse than anything, and still a number to calculate with.
_WORST = 1e100
# Under such keys CMA-ES keeps its state, with the trial before which it learned.
_OPTIMIZER = ":optimizer:"
Distribution = optuna.distributions.BaseDistribution


class Sampled(Random):
    """So many trials, so many at a time, each with the values that a sampler proposes given the trials so far.

    A trial's value is the best of its validations, or with several goals its last. ``length`` is how far a trial
    trains and ``unit`` what that counts: pruners compare trials at the same point of it.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        goals: Sequence[Goal],
        sampler: str,
        max_trials: int,
        max_concurrent_trials: int = 0,
        options: Mapping[str, Any] | None = None,
        pruner: str | None = None,
        pruner_options: Mapping[str, Any] | None = None,
        length: float | None = None,
        length_unit: str = "batches",
    ) -> None:
        super().__init__(space, seed, max_trials, max_concurrent_trials)
        self._goals = goals
        self._sampler = _Sampler(sampler, seed, space, len(goals) > 1, options or {})
        self._pruner = _pruner(pruner, pruner_options or {}, length) if pruner else None
        self._pruner_name = pruner
        self._length_unit = length_unit
        self._seen: dict[int, list[float]] = {}  # of open trials: the best cost, or the last values
        self._distributions = dict(_distributions(space.hyperparameters, ()))
        self._history: list[int] = []  # a trial's number once when it was asked for, once when it was told
        self._begin_study()

    def _begin_study(self) -> None:
        self._storage = optuna.storages.InMemoryStorage()
        name = f"search {self._seed}"
        self._study = optuna.create_study(
            storage=self._storage,
            pruner=self._pruner or optuna.pruners.NopPruner(),
            study_name=name,  # by which Hyperband deals trials out
            directions=["minimize" if goal.smaller_is_better else "maximize" for goal in self._goals],
        )
        self._study_id = self._storage.get_study_id_from_name(name)
        if self._pruner:
            # Hyperband makes up its brackets the first time it is asked: let that be always now.
            self._pruner.prune(self._study, optuna.trial.create_trial(state=RUNNING))

    def _hparams(self, number: int, rng: Any) -> dict[str, Any]:
        self._seen[number] = []
        return self._ask(number)

    def _ask(self, number: int) -> dict[str, Any]:
        self._history.append(number)
        self._study.sampler = self._sampler.of_trial(number)
        trial = self._study.ask()
        return self._space.values(lambda path, range_: _suggested(trial, path, range_))

    def _learn(self, trial: int, metrics: Mapping[str, Any]) -> list[Action]:
        costs = [goal.cost(trial, metrics) for goal in self._goals]
        if trial not in self._seen:
            return []
        best = self._seen[trial]
        self._seen[trial] = [min(best[0], costs[0])] if best and len(costs) == 1 else costs
        return self._prune(trial, metrics, costs[0]) if self._pruner else []

    def _prune(self, trial: int, metrics: Mapping[str, Any], cost: float) -> list[Action]:
        assert self._pruner is not None
        step = int(read(trial, metrics, self._length_unit, "which the pruner compares trials by") or 0)
        if step in self._storage.get_trial(trial).intermediate_values:
            return []
        self._storage.set_trial_intermediate_value(trial, step, self._value(0, min(cost, _WORST)))
        if not self._pruner.prune(self._study, self._storage.get_trial(trial)):
            return []
        self._tell(trial, PRUNED)
        why = f"{self._pruner_name} pruner after {step} {self._length_unit}: reached {self._goals[0].shown(cost)}"
        return [Stop(trial, why)]

    def _end(self, trial: int, exit: Exit, is_replaced: bool) -> list[Action]:
        if trial in self._seen:
            costs = self._seen[trial]
            if exit is Exit.COMPLETED and costs and all(math.isfinite(cost) for cost in costs):
                self._tell(trial, COMPLETE, [self._value(goal, cost) for goal, cost in enumerate(costs)])
            else:
                self._tell(trial, self._state_of_a_failure(trial, exit))
        return super()._end(trial, exit, is_replaced)

    def _state_of_a_failure(self, trial: int, exit: Exit) -> optuna.trial.TrialState:
        # To a sampler, one that was pruned without having shown anything is worse than all others: so it learns where
        # not to go. Of one that people ended it learns nothing.
        was_bad = exit is not Exit.CANCELED and len(self._goals) == 1
        return PRUNED if was_bad and not self._storage.get_trial(trial).intermediate_values else FAIL

    def _tell(self, trial: int, state: optuna.trial.TrialState, values: Sequence[float] | None = None) -> None:
        del self._seen[trial]
        self._history.append(trial)
        self._study.tell(trial, values, state)

    def _value(self, goal: int, cost: float) -> float:
        return cost if self._goals[goal].smaller_is_better else -cost

    def _remember(self) -> dict[str, Any]:
        return {
            **super()._remember(),
            "history": list(self._history),
            "seen": [[trial, [cost_as_data(cost) for cost in costs]] for trial, costs in self._seen.items()],
            "trials": [_as_data(trial) for trial in self._study.get_trials(deepcopy=False)],
            "notes": self._storage.get_study_system_attrs(self._study_id),
        }

    def _recall(self, data: Any) -> None:
        super()._recall(data)
        self._begin_study()
        for key, value in data["notes"].items():
            self._storage.set_study_system_attr(self._study_id, key, value)
        self._seen = {trial: [cost_from_data(cost) for cost in costs] for trial, costs in data["seen"]}
        trials = data["trials"]
        if any(known["has_state"] for known in trials):
            self._replay(data["history"], trials)
        else:
            self._history = list(data["history"])
            for known in trials:
                self._study.add_trial(self._trial_from(known))

    def _replay(self, history: Sequence[int], trials: Sequence[Mapping[str, Any]]) -> None:
        """Ask and tell again in the same order, where asking made a state that no text holds; else only remember."""
        asked: set[int] = set()
        self._history = []
        for number in history:
            known = trials[number]
            if number in asked:
                self._show(number, known)
                self._history.append(number)
                state = optuna.trial.TrialState[known["state"]]
                self._study.tell(number, known["values"] if state is COMPLETE else None, state)
            elif known["has_state"]:
                self._ask(number)
            else:
                self._history.append(number)
                blank = {**known, "state": RUNNING.name, "values": None, "intermediate": []}
                self._study.add_trial(self._trial_from(blank))
            asked.add(number)
        for number in self._seen:
            self._show(number, trials[number])

    def _show(self, number: int, known: Mapping[str, Any]) -> None:
        """What a trial showed a pruner, and what that noted."""
        for step, value in known["intermediate"]:
            self._storage.set_trial_intermediate_value(number, step, value)
        for key, value in known["notes"].items():
            self._storage.set_trial_system_attr(number, key, value)

    def _trial_from(self, known: Mapping[str, Any]) -> optuna.trial.FrozenTrial:
        return optuna.trial.create_trial(
            state=optuna.trial.TrialState[known["state"]],
            params=known["params"],
            distributions={name: self._distributions[name] for name in known["params"]},
            values=known["values"],
            intermediate_values=dict(known["intermediate"]),
            system_attrs=known["notes"],
        )


class _Sampler:
    """Makes the sampler of each trial."""

    def __init__(self, name: str, seed: int, space: Space, is_multiple: bool, options: Mapping[str, Any]) -> None:
        self._name = name
        self._seed = seed
        self._options = dict(options)
        self._always = {
            _name(path): _distribution(range_)
            for path, range_ in space.hyperparameters.ranges()
            if not _distribution(range_).single()
        }
        if name == "cmaes":
            self._always = {
                parameter: distribution
                for parameter, distribution in self._always.items()
                if not isinstance(distribution, optuna.distributions.CategoricalDistribution)
            }
        if name == "tpe" and not options.get("multivariate", not is_multiple):
            self._always = {}
        if "seed" in options:
            raise errors.InvalidConfigurationException(
                "searcher.options.seed has no place: the seed is reproducibility.experiment_seed"
            )
        _check_options(f"searcher {name}", "options", _OPTIONS_OF[name], self._options, ("group",))
        self._kept: optuna.samplers.BaseSampler | None = None
        try:
            self._kept = self.of_trial(0)
        except (TypeError, ValueError, AttributeError) as wrong:
            raise errors.InvalidConfigurationException(f"searcher.options cannot be used: {wrong}") from None

    def of_trial(self, number: int) -> optuna.samplers.BaseSampler:
        seed = trial_rng(self._seed, number, "sampler").randrange(2**32)
        if isinstance(self._kept, _Tpe):
            self._kept.seed(seed)
            return self._kept
        arguments: dict[str, Any] = {"seed": seed, **self._options}
        if self._name != "tpe":
            arguments.setdefault("warn_independent_sampling", False)
        if self._name == "qmc":
            # The points of one sequence; only what is outside of it differs from trial to trial.
            arguments["seed"] = trial_rng(self._seed, 0, "sequence").randrange(2**32)
            arguments.setdefault("scramble", True)
            arguments.setdefault("independent_sampler", optuna.samplers.RandomSampler(seed=seed))
        sampler: optuna.samplers.BaseSampler = _SAMPLERS[self._name](self._always, **arguments)
        return sampler


class _KnowsTheSpace:
    """Tells a sampler which values to propose together: those that every trial has.

    Samplers find that out from the trials, at a cost that grows with their number. The values of conditional
    hyperparameters are proposed one by one.
    """

    def __init__(self, always: Mapping[str, Distribution], **options: Any) -> None:
        super().__init__(**options)
        self.always = dict(always)

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Distribution]:
        return self.always


class _Tpe(_KnowsTheSpace, optuna.samplers.TPESampler):
    def seed(self, seed: int) -> None:
        """As if it had been made with this seed. It keeps nothing else, and making one takes longer than this."""
        for state in (self._rng, self._random_sampler._rng):
            state.rng.seed(seed)


class _Gp(_KnowsTheSpace, optuna.samplers.GPSampler):
    pass


class _CmaEs(_KnowsTheSpace, optuna.samplers.CmaEsSampler):
    pass


class _Qmc(_KnowsTheSpace, optuna.samplers.QMCSampler):
    def __init__(self, always: Mapping[str, Distribution], **options: Any) -> None:
        # Without the warning, at every trial, that this sampler's interface may change: we are bound to a version.
        inspect.unwrap(optuna.samplers.QMCSampler.__init__)(self, **options)
        self.always = dict(always)


_SAMPLERS: dict[str, Any] = {"tpe": _Tpe, "gp": _Gp, "cmaes": _CmaEs, "qmc": _Qmc}
_OPTIONS_OF: dict[str, Any] = {
    "tpe": optuna.samplers.TPESampler,
    "gp": optuna.samplers.GPSampler,
    "cmaes": optuna.samplers.CmaEsSampler,
    "qmc": optuna.samplers.QMCSampler,
}


def _suggested(trial: optuna.Trial, path: Path, range_: Range) -> Any:
    name = _name(path)
    if isinstance(range_, Int):
        return trial.suggest_int(name, range_.minval, range_.maxval)
    if isinstance(range_, Categorical):
        return trial.suggest_categorical(name, list(range(len(range_.vals))))
    low, high = bounds(range_)
    return trial.suggest_float(name, low, high, log=isinstance(range_, Log))


def _distribution(range_: Range) -> Distribution:
    if isinstance(range_, Int):
        return optuna.distributions.IntDistribution(range_.minval, range_.maxval)
    if isinstance(range_, Categorical):
        return optuna.distributions.CategoricalDistribution(list(range(len(range_.vals))))
    low, high = bounds(range_)
    return optuna.distributions.FloatDistribution(low, high, log=isinstance(range_, Log))


def _distributions(hyperparameter: Any, path: Path) -> Iterator[tuple[str, Distribution]]:
    """Every range's distribution by its name, conditional ones too."""
    if isinstance(hyperparameter, Hyperparameters):
        for name, inner in hyperparameter.items():
            yield from _distributions(inner, (*path, name))
    elif isinstance(hyperparameter, (Int, Double, Log)):
        yield _name(path), _distribution(hyperparameter)
    elif isinstance(hyperparameter, Categorical):
        yield _name(path), _distribution(hyperparameter)
        for number, choice in enumerate(hyperparameter.vals):
            yield from _distributions(choice, (*path, f"={number}"))


def _name(path: Path) -> str:
    return ".".join(path)


def _pruner(name: str, options: Mapping[str, Any], length: float | None) -> optuna.pruners.BasePruner:
    kinds: dict[str, Any] = {
        "median": optuna.pruners.MedianPruner,
        "percentile": optuna.pruners.PercentilePruner,
        "successive_halving": optuna.pruners.SuccessiveHalvingPruner,
        "hyperband": optuna.pruners.HyperbandPruner,
    }
    usual: dict[str, dict[str, Any]] = {
        "median": {},
        "percentile": {"percentile": 25.0},
        "successive_halving": {"min_resource": 1},
        "hyperband": {"min_resource": 1, "max_resource": "auto" if length is None else int(length)},
    }
    arguments = {**usual[name], **options}
    # "auto" is what the first trials to end make of it: then a search would not be the same after a restart.
    for bound in ("min_resource", "max_resource"):
        if arguments.get(bound) == "auto":
            raise errors.InvalidConfigurationException(
                f"searcher.pruner_options.{bound} must be a number with pruner {name}; it is counted in the unit of"
                " searcher.max_length, or in batches"
            )
    _check_options(f"pruner {name}", "pruner_options", kinds[name], arguments)
    try:
        pruner: optuna.pruners.BasePruner = kinds[name](**arguments)
    except (TypeError, ValueError) as wrong:
        raise errors.InvalidConfigurationException(f"searcher.pruner_options cannot be used: {wrong}") from None
    return pruner


def _check_options(
    whose: str, field: str, kind: Any, options: Mapping[str, Any], without: tuple[str, ...] = ()
) -> None:
    known = [name for name in inspect.signature(kind).parameters if name not in ("seed", *without)]
    for name in options:
        if name not in known:
            raise errors.InvalidConfigurationException(
                f"searcher.{field}.{name} is not an option of {whose}; it has {', '.join(known)}"
            )


def _as_data(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    # Numbers are notes that samplers and pruners need again: generations and rungs. Texts are values twice over, or
    # the state of an optimizer, which is made again rather than trusted.
    notes = {key: value for key, value in trial.system_attrs.items() if not isinstance(value, str)}
    return {
        "params": dict(trial.params),
        "state": trial.state.name,
        "values": trial.values,
        "intermediate": [[step, value] for step, value in trial.intermediate_values.items()],
        "notes": notes,
        "has_state": any(_OPTIMIZER in key for key in trial.system_attrs),
    }
