"""What follows an outcome, and where an experiment is, over every combination there is."""

from __future__ import annotations

import itertools

import pytest

from determined.master import states
from determined.master.states import ExperimentState, TaskState, TrialState, Wanted
from determined.wire.outcome import Outcome

PUBLIC = {
    *("ACTIVE", "PAUSED", "STOPPING_COMPLETED", "STOPPING_CANCELED", "STOPPING_ERROR", "STOPPING_KILLED", "COMPLETED"),
    *("CANCELED", "ERROR", "DELETED", "DELETING", "DELETE_FAILED", "QUEUED", "PULLING", "STARTING", "RUNNING"),
}
OWN_FAILURES = (Outcome.FAILED, Outcome.OUT_OF_MEMORY)
EXITS = list(itertools.product(Outcome, Wanted, (0, 1, 5), (False, True)))


@pytest.mark.parametrize(
    ("outcome", "wanted", "restarts_left", "reached_target", "state"),
    [
        (Outcome.COMPLETED, Wanted.ACTIVE, 5, False, TrialState.COMPLETED),
        (Outcome.COMPLETED, Wanted.ACTIVE, 5, True, TrialState.WAITING),
        (Outcome.COMPLETED, Wanted.PAUSED, 5, True, TrialState.WAITING),
        (Outcome.COMPLETED, Wanted.ENOUGH, 5, True, TrialState.COMPLETED),
        (Outcome.COMPLETED, Wanted.CANCELED, 5, True, TrialState.CANCELED),
        (Outcome.COMPLETED, Wanted.CANCELED, 5, False, TrialState.COMPLETED),
        (Outcome.STOPPED, Wanted.ACTIVE, 5, False, TrialState.QUEUED),
        (Outcome.STOPPED, Wanted.PAUSED, 0, False, TrialState.PAUSED),
        (Outcome.STOPPED, Wanted.ENOUGH, 0, False, TrialState.COMPLETED),
        (Outcome.STOPPED, Wanted.KILLED, 5, False, TrialState.CANCELED),
        (Outcome.INVALID_HP, Wanted.ACTIVE, 5, False, TrialState.ERROR),
        (Outcome.INVALID_HP, Wanted.ENOUGH, 5, False, TrialState.ERROR),
        (Outcome.FAILED, Wanted.ACTIVE, 1, False, TrialState.QUEUED),
        (Outcome.FAILED, Wanted.PAUSED, 1, False, TrialState.PAUSED),
        (Outcome.FAILED, Wanted.PAUSED, 0, False, TrialState.ERROR),
        (Outcome.OUT_OF_MEMORY, Wanted.ACTIVE, 0, False, TrialState.ERROR),
        (Outcome.LOST, Wanted.ACTIVE, 0, False, TrialState.QUEUED),
    ],
)
def test_where_a_trial_goes_when_its_allocation_exits(
    outcome: Outcome, wanted: Wanted, restarts_left: int, reached_target: bool, state: TrialState
) -> None:
    assert states.next_trial_state(outcome, wanted, restarts_left, reached_target) is state


@pytest.mark.parametrize(("outcome", "wanted", "restarts_left", "reached_target"), EXITS)
def test_every_exit_leads_somewhere_sensible(
    outcome: Outcome, wanted: Wanted, restarts_left: int, reached_target: bool
) -> None:
    state = states.next_trial_state(outcome, wanted, restarts_left, reached_target)
    assert not state.has_allocation
    if wanted.is_final:
        assert state.has_ended
    if wanted in (Wanted.CANCELED, Wanted.KILLED) and state is TrialState.COMPLETED:
        assert outcome is Outcome.COMPLETED
    if state is TrialState.QUEUED:
        assert wanted is Wanted.ACTIVE
    if state is TrialState.PAUSED:
        assert wanted is Wanted.PAUSED
    if state is TrialState.ERROR:
        assert outcome is Outcome.INVALID_HP or (outcome in OWN_FAILURES and restarts_left == 0)
    # Seen again after a crash, the same state is left as it is.
    assert states.settled_trial_state(state, wanted) is state


@pytest.mark.parametrize("outcome", Outcome)
def test_only_the_users_own_failures_count(outcome: Outcome) -> None:
    assert states.counts_as_restart(outcome) == (outcome in OWN_FAILURES)
    if not states.counts_as_restart(outcome):
        assert states.next_trial_state(outcome, Wanted.ACTIVE, 0) is states.next_trial_state(outcome, Wanted.ACTIVE, 9)


@pytest.mark.parametrize(("state", "wanted"), list(itertools.product(TrialState, Wanted)))
def test_a_change_of_mind_is_settled_once(state: TrialState, wanted: Wanted) -> None:
    settled = states.settled_trial_state(state, wanted)
    assert states.settled_trial_state(settled, wanted) is settled
    if state.has_ended:
        assert settled is state
    elif state.has_allocation:
        assert settled is (state if wanted is Wanted.ACTIVE else TrialState.STOPPING)
    else:
        assert settled.has_ended == wanted.is_final


@pytest.mark.parametrize(("experiment", "trial"), list(itertools.product(Wanted, Wanted)))
def test_the_stronger_wish_counts(experiment: Wanted, trial: Wanted) -> None:
    wanted = states.wanted_of_trial(experiment, trial)
    assert wanted in (experiment, trial)
    assert wanted is states.wanted_of_trial(trial, experiment)
    assert wanted.is_final == (experiment.is_final or trial.is_final)
    if Wanted.KILLED in (experiment, trial):
        assert wanted is Wanted.KILLED


@pytest.mark.parametrize(
    ("trials", "wanted", "is_over", "state"),
    [
        ([TrialState.COMPLETED, TrialState.ERROR], Wanted.ACTIVE, True, ExperimentState.COMPLETED),
        ([TrialState.ERROR, TrialState.ERROR], Wanted.ACTIVE, True, ExperimentState.ERROR),
        ([TrialState.ERROR, TrialState.CANCELED], Wanted.ACTIVE, True, ExperimentState.ERROR),
        ([TrialState.CANCELED], Wanted.ACTIVE, True, ExperimentState.CANCELED),
        ([TrialState.COMPLETED], Wanted.ACTIVE, False, ExperimentState.ACTIVE),
        ([TrialState.COMPLETED], Wanted.PAUSED, False, ExperimentState.PAUSED),
        ([TrialState.COMPLETED], Wanted.PAUSED, True, ExperimentState.COMPLETED),
        ([TrialState.COMPLETED], Wanted.CANCELED, False, ExperimentState.CANCELED),
        ([TrialState.COMPLETED], Wanted.CANCELED, True, ExperimentState.COMPLETED),
        ([TrialState.COMPLETED, TrialState.CANCELED], Wanted.KILLED, True, ExperimentState.CANCELED),
        ([TrialState.COMPLETED], Wanted.ENOUGH, False, ExperimentState.COMPLETED),
        ([TrialState.PAUSED, TrialState.STOPPING], Wanted.PAUSED, False, ExperimentState.STOPPING),
        ([TrialState.PAUSED, TrialState.WAITING], Wanted.PAUSED, False, ExperimentState.PAUSED),
        ([TrialState.WAITING], Wanted.ACTIVE, False, ExperimentState.ACTIVE),
        ([TrialState.STOPPING], Wanted.KILLED, False, ExperimentState.STOPPING),
        ([], Wanted.CANCELED, False, ExperimentState.CANCELED),
        ([], Wanted.ACTIVE, False, ExperimentState.ACTIVE),
    ],
)
def test_where_an_experiment_is(
    trials: list[TrialState], wanted: Wanted, is_over: bool, state: ExperimentState
) -> None:
    assert states.experiment_state(wanted, trials, is_over) is state


def test_a_failed_search_ends_in_error_once_its_trials_have_stopped() -> None:
    stopping = [TrialState.STOPPING, TrialState.COMPLETED]
    assert states.experiment_state(Wanted.ACTIVE, stopping, False, search_failed=True) is ExperimentState.STOPPING
    ended = [TrialState.CANCELED, TrialState.COMPLETED]
    assert states.experiment_state(Wanted.ACTIVE, ended, False, search_failed=True) is ExperimentState.ERROR


def test_an_experiment_never_ends_before_its_trials() -> None:
    for wanted, is_over, has_failed in itertools.product(Wanted, (False, True), (False, True)):
        for trials in itertools.product(TrialState, repeat=2):
            state = states.experiment_state(wanted, trials, is_over, has_failed)
            if not all(trial.has_ended for trial in trials):
                assert not state.has_ended
            if state is ExperimentState.PAUSED:
                assert not any(trial.has_allocation for trial in trials)
            if all(trial.has_ended for trial in trials) and (is_over or wanted.is_final):
                assert state.has_ended
            assert states.public_experiment_state(state, wanted, trials) in PUBLIC


@pytest.mark.parametrize(("outcome", "wanted", "restarts_left"), list(itertools.product(Outcome, Wanted, (0, 1))))
def test_where_a_task_goes_when_its_allocation_exits(outcome: Outcome, wanted: Wanted, restarts_left: int) -> None:
    state = states.next_task_state(outcome, wanted, restarts_left)
    assert not state.has_allocation
    assert state.has_ended or not wanted.is_final
    if outcome is Outcome.LOST and wanted is Wanted.ACTIVE:
        assert state is TaskState.QUEUED
    if outcome in OWN_FAILURES and wanted is Wanted.ACTIVE and not restarts_left:
        assert state is TaskState.ERROR
    assert states.settled_task_state(state, wanted) is state


@pytest.mark.parametrize(("state", "wanted"), list(itertools.product(TrialState, Wanted)))
def test_public_names_are_those_of_the_sdk(state: TrialState, wanted: Wanted) -> None:
    assert states.public_trial_state(state, wanted) in PUBLIC
    if state.has_ended:
        assert states.public_trial_state(state, wanted) == state.name


def test_public_names_of_tasks_and_experiments() -> None:
    assert states.public_task_state(TaskState.STOPPING, Wanted.KILLED) == "STOPPING_KILLED"
    assert states.public_experiment_state(ExperimentState.STOPPING, Wanted.PAUSED) == "PAUSED"
    assert states.public_experiment_state(ExperimentState.STOPPING, Wanted.ACTIVE) == "STOPPING_ERROR"
    assert states.public_experiment_state(ExperimentState.ACTIVE, Wanted.ACTIVE) == "ACTIVE"
    mixed = [TrialState.COMPLETED, TrialState.QUEUED, TrialState.STARTING]
    assert states.public_experiment_state(ExperimentState.ACTIVE, Wanted.ACTIVE, mixed) == "STARTING"
    assert states.public_experiment_state(ExperimentState.ACTIVE, Wanted.ACTIVE, mixed[:2]) == "QUEUED"
