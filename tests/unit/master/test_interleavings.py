"""A small experiment under every interleaving of what people ask for and what happens: no illegal state, no hang.

The model has two trials with two rungs and one restart each. Not only all sequences up to a depth are tried: the states
that can be reached at all are few enough to visit every one, with every step out of it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from determined.master import operations, states
from determined.master.operations import Operation
from determined.master.states import ExperimentState, TrialState, Wanted
from determined.wire.outcome import Outcome

TRIALS = 2
RESTARTS = 1


class Trial(NamedTuple):
    state: TrialState = TrialState.QUEUED
    wanted: Wanted = Wanted.ACTIVE
    restarts_left: int = RESTARTS
    rung: int = 0


class Experiment(NamedTuple):
    state: ExperimentState = ExperimentState.ACTIVE
    wanted: Wanted = Wanted.ACTIVE
    trials: tuple[Trial, ...] = ()
    search_failed: bool = False
    archived: bool = False
    is_gone: bool = False


class Step(NamedTuple):
    name: str
    by_user: bool
    after: Experiment


def settle(experiment: Experiment) -> Experiment:
    """What a transaction does after each change: trials follow what is wanted, the experiment follows its trials."""
    trials = tuple(sorted(trial._replace(state=settled(experiment, trial)) for trial in experiment.trials))
    if experiment.state.has_ended:
        return experiment._replace(trials=trials)
    is_over = len(trials) == TRIALS
    state = states.experiment_state(
        experiment.wanted, [trial.state for trial in trials], is_over, experiment.search_failed
    )
    return experiment._replace(state=state, trials=trials)


def settled(experiment: Experiment, trial: Trial) -> TrialState:
    return states.settled_trial_state(trial.state, states.wanted_of_trial(experiment.wanted, trial.wanted))


def steps(experiment: Experiment) -> Iterator[Step]:
    """Everything that can happen next."""
    if experiment.is_gone:
        return
    for operation in Operation:
        if operations.refusal(operation, "it", experiment.state, experiment.wanted, experiment.archived) is None:
            yield Step(operation.value, True, apply(operation, experiment))
    for name, after in events(experiment):
        yield Step(name, False, settle(after))
    for index, trial in enumerate(experiment.trials):
        if operations.refusal_of_trial(Operation.KILL, "it", trial.state, trial.wanted) is None:
            wanted = operations.wanted_after(Operation.KILL, trial.wanted, trial.state.has_ended)
            yield Step("kill trial", True, settle(put(experiment, index, trial._replace(wanted=wanted))))


def apply(operation: Operation, experiment: Experiment) -> Experiment:
    wanted = operations.wanted_after(operation, experiment.wanted, experiment.state.has_ended)
    match operation:
        case Operation.DELETE:
            return experiment._replace(state=ExperimentState.DELETING)
        case Operation.ARCHIVE | Operation.UNARCHIVE:
            return experiment._replace(archived=operation is Operation.ARCHIVE)
        case Operation.CONTINUE:
            trials = (Trial(rung=1), *experiment.trials[1:])
            state = ExperimentState.ACTIVE
            return settle(experiment._replace(state=state, wanted=wanted, trials=trials, search_failed=False))
        case _:
            return settle(experiment._replace(wanted=wanted))


def events(experiment: Experiment) -> Iterator[tuple[str, Experiment]]:
    """What the engine, the pools and the search can bring about."""
    if experiment.state is ExperimentState.DELETING:
        yield "deleted", experiment._replace(is_gone=True)
        yield "not deleted", experiment._replace(state=ExperimentState.DELETE_FAILED)
    if experiment.state.has_ended:
        return
    can_search = not experiment.search_failed and not experiment.wanted.is_final
    if can_search and len(experiment.trials) < TRIALS:
        yield "trial created", experiment._replace(trials=(*experiment.trials, Trial()))
    if can_search:
        canceled = tuple(trial._replace(wanted=Wanted.CANCELED) for trial in experiment.trials)
        yield "search failed", experiment._replace(search_failed=True, trials=canceled)
        yield "search is satisfied", experiment._replace(wanted=Wanted.ENOUGH)
    for index, trial in enumerate(experiment.trials):
        for name, after in events_of_trial(trial, states.wanted_of_trial(experiment.wanted, trial.wanted)):
            yield name, put(experiment, index, after)


def events_of_trial(trial: Trial, wanted: Wanted) -> Iterator[tuple[str, Trial]]:
    if trial.state is TrialState.QUEUED:
        yield "assigned", trial._replace(state=TrialState.STARTING)
    if trial.state is TrialState.STARTING:
        yield "started", trial._replace(state=TrialState.RUNNING)
    if trial.state in (TrialState.STARTING, TrialState.RUNNING):
        yield "preempted", trial._replace(state=TrialState.STOPPING)
        yield "has done enough", trial._replace(wanted=Wanted.ENOUGH)
    if trial.state is TrialState.WAITING:
        yield "promoted", trial._replace(state=states.promoted_trial_state(wanted), rung=1)
        yield "not promoted", trial._replace(wanted=Wanted.ENOUGH)
    if trial.state.has_allocation:
        for outcome in Outcome:
            after = states.next_trial_state(outcome, wanted, trial.restarts_left, reached_target=trial.rung == 0)
            used = int(states.counts_as_restart(outcome) and trial.restarts_left > 0)
            yield outcome.value, trial._replace(state=after, restarts_left=trial.restarts_left - used)


def put(experiment: Experiment, index: int, trial: Trial) -> Experiment:
    trials = list(experiment.trials)
    trials[index] = trial
    return experiment._replace(trials=tuple(trials))


@functools.cache
def reachable() -> dict[Experiment, tuple[Step, ...]]:
    """Every state that any interleaving of any length leads to, with all steps out of it."""
    found: dict[Experiment, tuple[Step, ...]] = {}
    unseen = [settle(Experiment())]
    while unseen:
        experiment = unseen.pop()
        if experiment not in found:
            found[experiment] = tuple(steps(experiment))
            unseen.extend(step.after for step in found[experiment] if step.after not in found)
    return found


pytestmark = pytest.mark.slow


def test_no_interleaving_leads_to_an_illegal_state() -> None:
    assert len(reachable()) > 10_000
    for experiment in reachable():
        trials = [trial.state for trial in experiment.trials]
        if experiment.state.has_ended:
            assert all(state.has_ended for state in trials), experiment
        if experiment.state is ExperimentState.PAUSED:
            assert not any(state.has_allocation for state in trials), experiment
        for trial in experiment.trials:
            wanted = states.wanted_of_trial(experiment.wanted, trial.wanted)
            assert states.settled_trial_state(trial.state, wanted) is trial.state, experiment
            if wanted.is_final:
                assert trial.state.has_ended or trial.state is TrialState.STOPPING, experiment


def test_what_has_ended_stays_ended() -> None:
    for experiment, followed in reachable().items():
        for step in followed:
            if experiment.state.has_ended and step.name != Operation.CONTINUE.value:
                assert step.after.state.has_ended, (experiment, step)
                assert step.after.trials == experiment.trials or step.name == "kill trial", (experiment, step)
            if experiment.state in (ExperimentState.COMPLETED, ExperimentState.CANCELED, ExperimentState.ERROR):
                assert step.after.state in (experiment.state, ExperimentState.DELETING, ExperimentState.ACTIVE)


def test_nothing_hangs_as_long_as_something_is_to_be_done() -> None:
    for experiment, followed in reachable().items():
        if not experiment.state.has_ended and experiment.state is not ExperimentState.PAUSED:
            assert any(not step.by_user for step in followed), experiment


@pytest.mark.parametrize("operation", [Operation.KILL, Operation.CANCEL])
def test_cancel_and_kill_lead_to_an_end_whatever_happens(operation: Operation) -> None:
    # Once it is wanted, every event is a step towards the end: no path of events is endless, and all end the same way.
    steps_left: dict[Experiment, int] = {}

    def longest(experiment: Experiment) -> int:
        if experiment.state.has_ended:
            return 0
        if experiment not in steps_left:
            steps_left[experiment] = -1
            followed = [longest(step.after) for step in reachable()[experiment] if not step.by_user]
            assert followed, f"hangs: {experiment}"
            assert -1 not in followed, f"goes round in circles: {experiment}"
            steps_left[experiment] = 1 + max(followed)
        return steps_left[experiment]

    for experiment in reachable():
        if not experiment.state.has_ended:
            assert longest(apply(operation, experiment)) <= 2 * TRIALS


def test_paused_comes_to_rest_and_goes_on_when_activated() -> None:
    for experiment in reachable():
        if experiment.state is not ExperimentState.PAUSED or experiment.is_gone:
            continue
        again = apply(Operation.ACTIVATE, experiment)
        assert again.state is ExperimentState.ACTIVE, experiment
        assert [trial.state.has_ended for trial in again.trials].count(True) == [
            trial.state.has_ended for trial in experiment.trials
        ].count(True)
        assert TrialState.PAUSED not in [trial.state for trial in again.trials]
