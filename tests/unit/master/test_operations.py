"""What people may ask for in which state, and what they are told when they may not."""

from __future__ import annotations

import itertools

import pytest

from determined.master import operations
from determined.master.operations import Operation
from determined.master.states import ExperimentState, TaskState, TrialState, Wanted


@pytest.mark.parametrize(
    ("operation", "state", "wanted", "sentence"),
    [
        (
            Operation.PAUSE,
            ExperimentState.COMPLETED,
            Wanted.ACTIVE,
            "experiment 7 has ended (completed) and cannot be paused; there is nothing to pause",
        ),
        (
            Operation.ACTIVATE,
            ExperimentState.ERROR,
            Wanted.ACTIVE,
            "experiment 7 has ended (error) and cannot be activated; continue it to train further",
        ),
        (
            Operation.ACTIVATE,
            ExperimentState.STOPPING,
            Wanted.CANCELED,
            "experiment 7 is being canceled and cannot be activated",
        ),
        (
            Operation.DELETE,
            ExperimentState.ACTIVE,
            Wanted.ACTIVE,
            "experiment 7 has not ended (active) and cannot be deleted; cancel or kill it first",
        ),
        (
            Operation.DELETE,
            ExperimentState.STOPPING,
            Wanted.KILLED,
            "experiment 7 has not ended (stopping) and cannot be deleted; it is about to: wait for it",
        ),
        (
            Operation.CONTINUE,
            ExperimentState.PAUSED,
            Wanted.PAUSED,
            "experiment 7 has not ended (paused) and cannot be continued; activate it if it is paused",
        ),
        (
            Operation.FORK,
            ExperimentState.DELETING,
            Wanted.ACTIVE,
            "experiment 7 is being deleted and cannot be forked",
        ),
        (
            Operation.EDIT,
            ExperimentState.DELETE_FAILED,
            Wanted.ACTIVE,
            "experiment 7 is half deleted and cannot be edited; delete it again",
        ),
        (Operation.KILL, ExperimentState.COMPLETED, Wanted.ACTIVE, None),
        (Operation.CANCEL, ExperimentState.CANCELED, Wanted.CANCELED, None),
        (Operation.PAUSE, ExperimentState.PAUSED, Wanted.PAUSED, None),
        (Operation.DELETE, ExperimentState.DELETE_FAILED, Wanted.ACTIVE, None),
        (Operation.CONTINUE, ExperimentState.CANCELED, Wanted.CANCELED, None),
        (Operation.FORK, ExperimentState.ACTIVE, Wanted.ACTIVE, None),
    ],
)
def test_experiments(operation: Operation, state: ExperimentState, wanted: Wanted, sentence: str | None) -> None:
    assert operations.refusal(operation, "experiment 7", state, wanted) == sentence


def test_archived_experiments_are_left_alone() -> None:
    said = operations.refusal(Operation.MOVE, "experiment 7", ExperimentState.COMPLETED, Wanted.ACTIVE, archived=True)
    assert said == "experiment 7 is archived and cannot be moved; unarchive it first"


def test_every_refusal_names_what_is_refused() -> None:
    for operation, state, wanted in itertools.product(Operation, ExperimentState, Wanted):
        said = operations.refusal(operation, "experiment 7", state, wanted)
        if said is not None:
            assert said.startswith("experiment 7 ")
            assert " cannot be " in said
        if operation is Operation.KILL:
            assert said is None
        if operation is Operation.DELETE:
            assert (said is None) == (state.has_ended and state is not ExperimentState.DELETING)
        after = operations.wanted_after(operation, wanted, state.has_ended)
        if said is None and state.has_ended and operation is not Operation.CONTINUE:
            assert after is wanted
        if said is None and not state.has_ended and wanted.is_final:
            assert after.is_final


def test_killing_is_stronger_than_canceling() -> None:
    assert operations.wanted_after(Operation.KILL, Wanted.CANCELED, False) is Wanted.KILLED
    assert operations.wanted_after(Operation.CANCEL, Wanted.KILLED, False) is Wanted.KILLED


def test_trials() -> None:
    for operation, state, wanted in itertools.product(Operation, TrialState, Wanted):
        said = operations.refusal_of_trial(operation, "trial 3", state, wanted)
        if operation in (Operation.KILL, Operation.CANCEL):
            assert said is None
        elif operation in (Operation.CONTINUE, Operation.FORK):
            assert (said is None) == state.has_ended
        else:
            assert said is not None
            assert said.startswith("trial 3 cannot be ")


def test_tasks() -> None:
    for operation, state, wanted in itertools.product(Operation, TaskState, Wanted):
        said = operations.refusal_of_task(operation, "job 5", state, wanted)
        if operation in (Operation.KILL, Operation.CANCEL):
            assert said is None
        elif operation is Operation.DELETE:
            assert (said is None) == state.has_ended
        elif operation is Operation.ADJUST:
            assert (said is None) == (not state.has_ended)
        elif operation in (Operation.PAUSE, Operation.ACTIVATE):
            assert (said is None) == (not state.has_ended and not wanted.is_final)
        else:
            assert said is not None
            assert said.startswith("job 5 is no experiment")
