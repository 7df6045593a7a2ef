"""When a trial that failed is not started again although it has restarts left, and where it is not started."""

from __future__ import annotations

from typing import Any

from determined.master.lifecycle import allocations, trials
from determined.master.lifecycle import queue as queue_changes
from determined.master.records import Trial
from determined.master.states import TrialState
from determined.wire.outcome import Ending, Outcome
from tests.unit.master.lifecycle.world import World

POLICIES = [
    {"name": "hopeless", "pattern": "no such file", "action": "cancel_retries"},
    {"name": None, "pattern": "ECC", "action": "exclude_node"},
    {"name": "seen", "pattern": "warning"},
]
CRASH = "epoch 3\nTraceback (most recent call last):\n  File 'x.py', line 3\nValueError: <object at 0x7f11>"


def only(world: World, **config: Any) -> Trial:
    (trial,) = world.trials(world.create(log_policies=POLICIES, **config).id)
    return trial


def test_a_policy_that_cancels_retries_ends_a_failed_trial(world: World) -> None:
    trial = only(world)
    world.start(trial)
    after = world.exit(trial, Outcome.FAILED, detail="OSError: no such file", policies=["hopeless", "seen"])
    assert after.state is TrialState.ERROR and after.log_labels == ["hopeless", "seen"]
    assert after.error == ("It is not started again: its log policy 'hopeless' says so.\n\nOSError: no such file")
    assert world.experiment(trial.experiment_id).error == "its trial failed: OSError: no such file"


def test_a_policy_changes_nothing_for_one_that_did_not_fail(world: World) -> None:
    trial = only(world)
    world.start(trial)
    assert world.exit(trial, Outcome.LOST, policies=["hopeless"]).state is TrialState.QUEUED
    world.start(trial)
    after = world.exit(trial, policies=["hopeless", "ECC"])
    assert (after.state, after.error, after.log_labels) == (TrialState.COMPLETED, None, ["hopeless", "ECC"])


def test_a_policy_without_an_action_only_labels(world: World) -> None:
    trial = only(world)
    for _ in range(2):
        world.start(trial)
        after = world.exit(trial, Outcome.FAILED, policies=["seen"])
    assert (after.state, after.log_labels, after.excluded_nodes) == (TrialState.QUEUED, ["seen"], [])


def test_a_policy_keeps_a_trial_off_a_machine_as_long_as_there_is_another(world: World) -> None:
    trial = only(world)
    ending = Ending(outcome=Outcome.FAILED, exit_code=1, reason="it failed", policies=["ECC"])
    world.start(trial)
    world.do(allocations.record_exit, world.live(trial).id, ending, ["here", "there"])
    assert world.trial(trial).state is TrialState.QUEUED
    (request,) = world.look(queue_changes.requests)
    assert request.excluded == {"here"}
    world.start(trial)
    world.do(allocations.record_exit, world.live(trial).id, ending, ["here"])
    after = world.trial(trial)
    assert after.state is TrialState.ERROR and after.error is not None
    assert "its log policy 'ECC' keeps it off here, and the pool has no other machine" in after.error
    world.do(trials.continue_trial, trial.id)
    assert world.trial(trial).excluded_nodes is None


def test_the_same_crash_three_times_without_progress_is_enough(world: World) -> None:
    trial = only(world)
    for number in range(3):
        assert world.trial(trial).state is TrialState.QUEUED
        world.start(trial)
        after = world.exit(trial, Outcome.FAILED, detail=CRASH.replace("7f11", f"{number}a"))
    assert (after.state, after.restarts) == (TrialState.ERROR, 2) and after.error is not None
    first, *rest = after.error.split("\n\n")
    assert first == (
        "It is not started again: the same error ended it 3 times in a row, and it got no further in between."
    )
    assert rest == [CRASH.replace("7f11", "2a")]
    world.do(trials.continue_trial, trial.id)
    world.start(trial)
    assert world.exit(trial, Outcome.FAILED, detail=CRASH).state is TrialState.QUEUED


def test_progress_other_errors_and_what_is_no_traceback_are_tried_again(world: World) -> None:
    trial = only(world, max_restarts=20)
    details = [CRASH, CRASH, CRASH.replace("3", "4"), CRASH, CRASH, "killed", "killed", "killed", "", "", ""]
    for detail in details:
        world.start(trial)
        assert world.exit(trial, Outcome.FAILED, detail=detail, reason="it failed").state is TrialState.QUEUED
    for steps in range(1, 5):
        world.start(trial)
        world.validate(trial, steps, 1.0)
        world.checkpoint(trial, steps)
        assert world.exit(trial, Outcome.FAILED, detail=CRASH).state is TrialState.QUEUED
