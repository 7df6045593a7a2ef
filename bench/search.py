"""One decision of a search after 100, 1,000 and 5,000 trials, beside Optuna's study in memory.

Run `python -m bench.search [--rounds 30]`. A decision is what one finished trial costs: its result is taken in and the
next trial's values come out; of successive halving, what one report costs. Ours and Optuna's take turns in one process,
on studies of the same size; a figure is the median of the rounds. The bar for random, grid and successive halving is
1 ms, and nothing may be slower than Optuna; ours is a whole search method whose state is data, theirs a study alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import optuna

from bench import limits, results
from bench.options import Finding, Options
from bench.processes import RESULTS
from determined import config, search

BAR_MILLISECONDS = 1.0
TRIALS = (100, 1_000, 5_000)
REPORTS = (1, 4, 16, 64)  # where a trial of successive halving reports: its rungs
SPACE: dict[str, Any] = {
    "lr": {"type": "log", "base": 10, "minval": -5, "maxval": -1, "count": 9},
    "dropout": {"type": "double", "minval": 0, "maxval": 1, "count": 9},
    "momentum": {"type": "double", "minval": 0, "maxval": 1, "count": 9},
    "layers": {"type": "int", "minval": 1, "maxval": 8, "count": 8},
    "optimizer": {"type": "categorical", "vals": ["sgd", "adam", "lion"]},
}
Decide = Callable[[], None]


def loss(params: Any) -> float:
    """A bowl, so that there is something to learn."""
    return float((params["dropout"] - 0.3) ** 2 + (params["momentum"] - 0.9) ** 2 + abs(params["lr"] - 0.01))


class Ours:
    """Our method, driven by one finished trial after another; ten at a time, so that some are always open."""

    def __init__(self, **searcher: Any) -> None:
        asked = {"hyperparameters": SPACE, "searcher": {"max_concurrent_trials": 10, **searcher}}
        self.method = search.build_method(config.load(asked), seed=7)
        self.open: list[search.Create] = []
        self.trials = 0
        self.take(self.method.start())

    def take(self, actions: Any) -> None:
        created = [action for action in actions if isinstance(action, search.Create)]
        self.trials += len(created)
        self.open += created

    def decide(self) -> None:
        trial = self.open.pop(0)
        self.take(self.method.on_validation(trial.trial, {"batches": 1, "loss": loss(trial.hparams)}))
        self.take(self.method.on_exit(trial.trial, search.Exit.COMPLETED))


class OursHalving(Ours):
    """The same, a report at a time."""

    def __init__(self, **searcher: Any) -> None:
        super().__init__(
            metric="loss", max_time=64, time_metric="batches", max_trials=10**6, max_concurrent_trials=10, **searcher
        )
        self.reports = 0

    def decide(self) -> None:
        trial, at = self.open[0], REPORTS[self.reports]
        actions = self.method.on_validation(trial.trial, {"batches": at, "loss": loss(trial.hparams) + 1 / at})
        self.take(actions)
        self.reports += 1
        if any(isinstance(action, search.Stop) for action in actions):
            self.reports = 0
            del self.open[0]
            self.take(self.method.on_exit(trial.trial, search.Exit.COMPLETED))


class Optunas:
    """Optuna's study in memory, ten trials open."""

    def __init__(self, sampler: Any, pruner: Any = None) -> None:
        self.study = optuna.create_study(sampler=sampler, pruner=pruner or optuna.pruners.NopPruner())
        self.trials = 0
        self.open = [self.ask() for _ in range(10)]

    def ask(self) -> Any:
        self.trials += 1
        trial = self.study.ask()
        trial.suggest_float("lr", 1e-5, 1e-1, log=True)
        trial.suggest_float("dropout", 0, 1)
        trial.suggest_float("momentum", 0, 1)
        trial.suggest_int("layers", 1, 8)
        trial.suggest_categorical("optimizer", ["sgd", "adam", "lion"])
        return trial

    def decide(self) -> None:
        trial = self.open.pop(0)
        self.study.tell(trial, loss(trial.params))
        self.open.append(self.ask())


class OptunasGrid(Optunas):
    def ask(self) -> Any:
        trial = self.study.ask()
        trial.suggest_float("lr", 0, 1)
        trial.suggest_float("dropout", 0, 1)
        trial.suggest_float("momentum", 0, 1)
        trial.suggest_int("layers", 1, 8)
        trial.suggest_categorical("optimizer", ["sgd", "adam", "lion"])
        return trial

    @staticmethod
    def sampler() -> Any:
        values = [number / 8 for number in range(9)]
        axes = {"lr": values, "dropout": values, "momentum": values}
        return optuna.samplers.GridSampler(
            {**axes, "layers": [*range(1, 9)], "optimizer": ["sgd", "adam", "lion"]}, seed=7
        )


class OptunasHalving(Optunas):
    def __init__(self) -> None:
        super().__init__(
            optuna.samplers.RandomSampler(seed=7),
            optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=4),
        )
        self.reports = 0

    def decide(self) -> None:
        trial, at = self.open[0], REPORTS[self.reports]
        trial.report(loss(trial.params) + 1 / at, at)
        self.reports += 1
        is_pruned = trial.should_prune()
        if is_pruned or self.reports == len(REPORTS):
            self.reports = 0
            del self.open[0]
            state = optuna.trial.TrialState.PRUNED if is_pruned else None
            self.study.tell(trial, None if is_pruned else loss(trial.params), state)
            self.open.append(self.ask())


class OursPromoting(OursHalving):
    """The form whose trials wait at their targets: the next report is that of whoever was told to go on."""

    def __init__(self, **searcher: Any) -> None:
        self.created: dict[int, search.Create] = {}
        super().__init__(stop_once=False, **searcher)

    def decide(self) -> None:
        trial = self.open.pop(0)
        at = int(trial.target or 0)
        self.take(self.method.on_validation(trial.trial, {"batches": at, "loss": loss(trial.hparams) + 1 / at}))

    def take(self, actions: Any) -> None:
        for action in actions:
            if isinstance(action, search.Create):
                self.trials += 1
                self.created[action.trial] = action
                self.open.append(action)
            elif isinstance(action, search.Extend):
                self.open.append(dataclasses.replace(self.created[action.trial], target=action.target))
            elif isinstance(action, search.Stop):
                self.take(self.method.on_exit(action.trial, search.Exit.COMPLETED))


class OursTpe(Ours):
    """Filled by loading: to get there trial by trial would take minutes."""

    def __init__(self) -> None:
        super().__init__(name="tpe", metric="loss", max_trials=10**6)

    def fill(self, trials: int) -> None:
        drawn = [random_params(number) for number in range(trials + 10)]
        known = [{"params": params, "state": "COMPLETE", "values": [loss(params)]} for params in drawn[:trials]] + [
            {"params": params, "state": "RUNNING", "values": None} for params in drawn[trials:]
        ]
        running = range(trials, trials + 10)
        data = {"created": trials + 10, "started": trials + 10, "ended": trials, "open": [*running]}
        data["trials"] = [{**trial, "intermediate": [], "notes": {}, "has_state": False} for trial in known]
        data["seen"] = [[number, []] for number in running]
        self.method.load({**self.method.dump(), **data})
        self.open = [search.Create(number, drawn[number], 0) for number in running]


class OptunasTpe(Optunas):
    def __init__(self) -> None:
        super().__init__(optuna.samplers.TPESampler(seed=7))

    def fill(self, trials: int) -> None:
        for number in range(trials):
            add(self.study, random_params(number), {})


class OptunasFilledGrid(OptunasGrid):
    def __init__(self) -> None:
        super().__init__(OptunasGrid.sampler())

    def fill(self, trials: int) -> None:
        space: Any = vars(self.study.sampler)["_search_space"]
        for number in range(trials):
            add(self.study, random_params(number), {"grid_id": number, "search_space": space})


def random_params(number: int) -> dict[str, Any]:
    """Values as a sampler would have drawn them."""
    draw = random.Random(number)
    return {
        "lr": 10 ** draw.uniform(-5, -1),
        "dropout": draw.random(),
        "momentum": draw.random(),
        "layers": draw.randint(1, 8),
        "optimizer": draw.randrange(3),
    }


def add(study: optuna.Study, params: dict[str, Any], notes: dict[str, Any]) -> None:
    """Put a finished trial into one of Optuna's studies."""
    optimizers = ["sgd", "adam", "lion"]
    distributions = {
        "lr": optuna.distributions.FloatDistribution(1e-5, 1e-1, log=True),
        "dropout": optuna.distributions.FloatDistribution(0, 1),
        "momentum": optuna.distributions.FloatDistribution(0, 1),
        "layers": optuna.distributions.IntDistribution(1, 8),
        "optimizer": optuna.distributions.CategoricalDistribution(optimizers),
    }
    params = {**params, "optimizer": optimizers[params["optimizer"]]}
    study.add_trial(
        optuna.trial.create_trial(params=params, distributions=distributions, values=[loss(params)], system_attrs=notes)
    )


@dataclasses.dataclass(frozen=True)
class Case:
    """A method and its peer; the bar is in milliseconds, or none but the peer's own time."""

    ours: Callable[[], Any]
    peer: Callable[[], Any] | None = None
    bar: float | None = BAR_MILLISECONDS
    rounds: int = 10  # times those asked for


CASES: dict[str, Case] = {
    "random": Case(
        lambda: Ours(name="random", max_trials=10**6), lambda: Optunas(optuna.samplers.RandomSampler(seed=7))
    ),
    "grid": Case(lambda: Ours(name="grid"), OptunasFilledGrid, rounds=1),
    "ASHA": Case(lambda: OursHalving(name="asha", num_rungs=4), OptunasHalving),
    "ASHA, promoting": Case(lambda: OursPromoting(name="asha", num_rungs=4)),
    "adaptive ASHA": Case(lambda: OursHalving(name="adaptive_asha", mode="conservative", max_rungs=4)),
    "TPE": Case(OursTpe, OptunasTpe, None, rounds=1),
}


def measure(case: Case, trials: int, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of single decisions after so many trials: ours and the peer's, in turns."""
    sides = [case.ours(), *([case.peer()] if case.peer else [])]
    for side in sides:
        fill = getattr(side, "fill", None)
        if fill:
            fill(trials)
        else:
            while side.trials < trials + 10:
                side.decide()
    times: list[list[float]] = [[], []]
    gc.collect()
    gc.freeze()
    for turn in range(2 + rounds * case.rounds):
        for number, side in enumerate(sides):
            start = time.perf_counter()
            side.decide()
            took = (time.perf_counter() - start) * 1e3
            if turn >= 2:
                times[number].append(took)
    gc.unfreeze()
    return times[0], times[1]


def run(options: Options, cases: Sequence[str] = (), sizes: Sequence[int] = TRIALS, rounds: int = 30) -> Finding:
    """Ours beside Optuna's, for every case and size."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rows: list[results.Row] = []
    lines: list[list[str]] = []
    details: dict[str, Any] = {}
    alone = limits.random_draw(1000)
    for name in cases or CASES:
        options.say(f"search: {name}")
        case, before = CASES[name], 0.0
        for trials in sizes:
            ours, peer = measure(case, trials, rounds)
            took, theirs = statistics.median(ours), statistics.median(peer) if peer else None
            details[f"{name}, {trials}"] = {"ours": ours, "optuna": peer}
            grows = f"×{took / before:.2f}" if before else ""
            ratio = f"{took / theirs:.2f}" if theirs else "–"
            lines.append([name, str(trials), f"{took:.4f}", f"{theirs:.3f}" if theirs else "–", ratio, grows])
            before = took
            if trials == max(sizes):
                what = f"one decision after {trials:,} trials: {name}"
                if theirs:
                    rows.append(results.Row(f"{what}, × Optuna in memory", "×", None, took / theirs, 1.0))
                if case.bar:
                    rows.append(results.Row(what, "ms", alone, took, case.bar, {"Optuna": theirs} if theirs else {}))
    heading = ["", "trials", "ours, ms", "Optuna, ms", "ours / Optuna", "grows"]
    return Finding(rows, [results.Table("One decision, median", heading, lines)], details)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.search", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=30, help="decisions of each, TPE and grid; ten times as many else"
    )
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES), help="only these")
    parser.add_argument("--trials", type=int, nargs="*", default=list(TRIALS), help="sizes")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="folder of the JSON file")
    chosen = parser.parse_args(arguments)
    found = run(Options(), chosen.cases, chosen.trials, chosen.rounds)
    for table in [results.speed_table(found.rows, bare="limit"), *found.tables]:
        print(results.as_text(table), end="\n\n")
    results.write(chosen.results, "search", found.rows, found.tables, found.details)
    return 1 if any(row.verdict == "FAIL" for row in found.rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
