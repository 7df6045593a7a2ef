"""How hyperparameters are searched: one model for each method, chosen by ``name``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Union

import pydantic

from determined.config import units
from determined.config.length import Length, LengthOrBare, as_unit
from determined.config.section import (
    AtLeastOne,
    BrokenRule,
    Flag,
    FreeMap,
    Name,
    NotNegative,
    Number,
    Section,
    Text,
    Whole,
    is_number,
)

IMPORTED = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"

_CONCURRENT = pydantic.Field(16, description="How many trials may run at the same time; 0 means no limit.")
_MAX_TRIALS = pydantic.Field(description="How many trials the search creates.")
_TIME_METRIC = pydantic.Field(
    None,
    description="What rungs are counted in: `batches`, `epochs`, or a metric that grows as training goes on and is"
    " reported with every validation. Goes with `max_time`; `max_length` says both at once.",
)
_MAX_TIME = pydantic.Field(None, description="How far the best trials train, counted in `time_metric`.")
_DIVISOR = pydantic.Field(4.0, description="Of the trials on a rung, one in so many goes on to the next; more than 1.")
_STOP_ONCE = pydantic.Field(
    True,
    description="True: a trial that falls behind is stopped for good. False: every trial waits at its rung and is"
    " taken up again when it turns out to be among the best.",
)
_AboveOne = Annotated[Number, pydantic.Field(gt=1)]


class SearcherSection(Section):
    """What every method has."""

    name: str = pydantic.Field(description="The method.")
    metric: Name | None = pydantic.Field(
        None, description="The validation metric to judge by. If absent: `loss`, or the only validation metric."
    )
    smaller_is_better: Flag = pydantic.Field(True, description="Whether smaller values of the metric are better.")
    max_length: LengthOrBare | None = pydantic.Field(
        None, description="How long a trial trains: a length, or a bare number whose unit the script knows."
    )
    source_trial_id: Whole | None = pydantic.Field(
        None, description="Trials start with the weights of the latest checkpoint of this trial."
    )
    source_checkpoint_uuid: Name | None = pydantic.Field(
        None, description="Trials start with the weights of this checkpoint."
    )

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        if "source_trial_id" in written and "source_checkpoint_uuid" in written:
            yield BrokenRule(("source_trial_id",), "and source_checkpoint_uuid exclude each other; keep one")
        for unit, value in _items(written.get("max_length")):
            if value == 0:
                yield BrokenRule(("max_length", unit), "must be at least 1, not 0")

    def length(self, unit: type[units.TrainUnit] = units.Batch) -> units.TrainUnit | None:
        """How long a trial trains, if the config says so; a bare number counts in ``unit``."""
        return as_unit(self.max_length, unit)


class Single(SearcherSection):
    """One trial."""

    name: Literal["single"] = pydantic.Field("single", description="`single`.")


class Random(SearcherSection):
    """Trials with values drawn at random."""

    name: Literal["random"] = pydantic.Field("random", description="`random`.")
    max_trials: AtLeastOne = _MAX_TRIALS
    max_concurrent_trials: NotNegative = _CONCURRENT


class Grid(SearcherSection):
    """One trial for each combination of values; ranges of numbers need a ``count``."""

    name: Literal["grid"] = pydantic.Field("grid", description="`grid`.")
    max_concurrent_trials: NotNegative = _CONCURRENT


class _HalvingSection(SearcherSection):
    """What both forms of successive halving have."""

    metric: Name = pydantic.Field(description="The validation metric to judge by.")
    max_trials: AtLeastOne = _MAX_TRIALS
    max_concurrent_trials: NotNegative = _CONCURRENT
    divisor: _AboveOne = _DIVISOR
    max_time: AtLeastOne | None = _MAX_TIME
    time_metric: Name | None = _TIME_METRIC
    stop_once: Flag = _STOP_ONCE

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        yield from super().broken_rules(written)
        given = {"max_time", "time_metric"} & written.keys()
        if "max_length" in written:
            if given:
                yield BrokenRule((min(given),), "and max_length exclude each other; keep one")
            if is_number(written["max_length"]):
                yield BrokenRule(("max_length",), "needs a unit with this method, for example {epochs: 16}")
        elif not given:
            yield BrokenRule(("max_length",), "is required, for example {epochs: 16} (or max_time and time_metric)")
        elif len(given) == 1:
            absent = "time_metric" if "max_time" in given else "max_time"
            yield BrokenRule((absent,), f"is required with {min(given)}")
        if written.get("stop_once") is False and written.get("time_metric", "epochs") not in ("batches", "epochs"):
            says = "must be batches or epochs with stop_once: false: trials are told how far to train"
            yield BrokenRule(("time_metric",), says)


class AdaptiveAsha(_HalvingSection):
    """Asynchronous successive halving in several brackets: bold and cautious stopping side by side."""

    name: Literal["adaptive_asha"] = pydantic.Field("adaptive_asha", description="`adaptive_asha`.")
    mode: Literal["aggressive", "standard", "conservative"] = pydantic.Field(
        "standard", description="How early trials are given up."
    )
    max_rungs: AtLeastOne = pydantic.Field(5, description="Most rungs a bracket may have.")
    bracket_rungs: tuple[AtLeastOne, ...] = pydantic.Field(
        (), description="The brackets themselves, as numbers of rungs; replaces `mode` and `max_rungs`."
    )


class AsyncHalving(_HalvingSection):
    """Asynchronous successive halving, one bracket. Also written ``asha``."""

    name: Literal["async_halving"] = pydantic.Field("async_halving", description="`async_halving` (or `asha`).")
    num_rungs: AtLeastOne = pydantic.Field(5, description="How many rungs there are.")


class ReplaceFunction(Section):
    """Which members of the population are given up after a round."""

    truncate_fraction: Annotated[Number, pydantic.Field(ge=0, le=0.5)] = pydantic.Field(
        0.2, description="The worst part of the population, replaced by copies of an equally large best part."
    )


class ExploreFunction(Section):
    """How the hyperparameters of a copy are varied."""

    resample_probability: Annotated[Number, pydantic.Field(ge=0, le=1)] = pydantic.Field(
        0.2, description="Probability that a value is drawn anew instead of being varied."
    )
    perturb_factor: Annotated[Number, pydantic.Field(ge=0, le=1)] = pydantic.Field(
        0.2, description="A value is made larger or smaller by this part of itself."
    )


class PopulationBased(SearcherSection):
    """Population based training: in rounds, copies of the best replace the worst, with varied hyperparameters."""

    name: Literal["pbt"] = pydantic.Field("pbt", description="`pbt`.")
    metric: Name = pydantic.Field(description="The validation metric to judge by.")
    population_size: AtLeastOne = pydantic.Field(description="Number of trials in each round.")
    num_rounds: AtLeastOne = pydantic.Field(description="Number of rounds.")
    length_per_round: Length = pydantic.Field(description="How long each trial trains in a round.")
    replace_function: ReplaceFunction = pydantic.Field(ReplaceFunction(), description="Who is replaced.")
    explore_function: ExploreFunction = pydantic.Field(ExploreFunction(), description="How copies are varied.")

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        yield from super().broken_rules(written)
        if "max_length" in written:
            yield BrokenRule(("max_length",), "has no place in pbt: a trial trains num_rounds times length_per_round")
        for unit, value in _items(written.get("length_per_round")):
            if value == 0:
                yield BrokenRule(("length_per_round", unit), "must be at least 1, not 0")


class Objective(Section):
    """One of several metrics to be good at."""

    metric: Name = pydantic.Field(description="The validation metric.")
    smaller_is_better: Flag = pydantic.Field(True, description="Whether smaller values are better.")


class Sampled(SearcherSection):
    """Values proposed by a model of what the trials so far have shown (Optuna's samplers)."""

    name: Literal["tpe", "gp", "cmaes", "qmc"] = pydantic.Field(
        "tpe",
        description="`tpe` (tree-structured Parzen estimator), `gp` (Gaussian process), `cmaes` (covariance matrix"
        " adaptation) or `qmc` (quasi-random).",
    )
    max_trials: AtLeastOne = _MAX_TRIALS
    max_concurrent_trials: NotNegative = _CONCURRENT
    objectives: tuple[Objective, ...] = pydantic.Field(
        (), description="Several metrics at once, instead of `metric`; the search looks for their best trade-offs."
    )
    options: FreeMap = pydantic.Field({}, description="Passed to the sampler as they are.")
    pruner: Literal["median", "percentile", "successive_halving", "hyperband"] | None = pydantic.Field(
        None, description="Stops trials that look worse than others did at the same point. Absent: none is stopped."
    )
    pruner_options: FreeMap = pydantic.Field({}, description="Passed to the pruner as they are.")

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        yield from super().broken_rules(written)
        objectives = written.get("objectives")
        if "metric" in written and objectives:
            yield BrokenRule(("metric",), "and objectives exclude each other; keep one")
        if "metric" not in written and not objectives:
            yield BrokenRule(("metric",), "is required (or objectives, for several)")
        if objectives and "pruner" in written:
            yield BrokenRule(("pruner",), "works with a single metric only, not with objectives")
        if isinstance(objectives, (list, tuple)) and len(objectives) > 1 and written.get("name") == "cmaes":
            yield BrokenRule(("objectives",), "are several, and cmaes works with one metric; use tpe, gp or qmc")


class ImportedSearcher(SearcherSection):
    """A method of your own: ``name`` is ``module:Class``."""

    name: Annotated[Text, pydantic.Field(pattern=IMPORTED)] = pydantic.Field(
        description="`module:Class`, a search method in the submitted code or in an installed package."
    )
    max_trials: AtLeastOne | None = pydantic.Field(None, description="How many trials the search creates.")
    max_concurrent_trials: NotNegative = _CONCURRENT
    options: FreeMap = pydantic.Field({}, description="Passed to the class as they are.")


METHODS: dict[str, type[SearcherSection]] = {
    "single": Single,
    "random": Random,
    "grid": Grid,
    "adaptive_asha": AdaptiveAsha,
    "async_halving": AsyncHalving,
    "pbt": PopulationBased,
    "tpe": Sampled,
    "gp": Sampled,
    "cmaes": Sampled,
    "qmc": Sampled,
}


def _kind(written: Any) -> str | None:
    name = written.get("name", "single") if isinstance(written, Mapping) else getattr(written, "name", "single")
    if not isinstance(name, str):
        return None
    if name in METHODS:
        return f"#{METHODS[name].__name__}"
    return f"#{ImportedSearcher.__name__}" if ":" in name else None


Searcher = Annotated[
    Union[
        Annotated[Single, pydantic.Tag("#Single")],
        Annotated[Random, pydantic.Tag("#Random")],
        Annotated[Grid, pydantic.Tag("#Grid")],
        Annotated[AdaptiveAsha, pydantic.Tag("#AdaptiveAsha")],
        Annotated[AsyncHalving, pydantic.Tag("#AsyncHalving")],
        Annotated[PopulationBased, pydantic.Tag("#PopulationBased")],
        Annotated[Sampled, pydantic.Tag("#Sampled")],
        Annotated[ImportedSearcher, pydantic.Tag("#ImportedSearcher")],
    ],
    pydantic.Discriminator(
        _kind,
        custom_error_type="unknown_choice",
        custom_error_message="unknown searcher",
        custom_error_context={"field": "name", "choices": [*METHODS, "module:Class"]},
    ),
]


def _items(written: Any) -> Iterable[tuple[str, Any]]:
    return written.items() if isinstance(written, Mapping) else ()
