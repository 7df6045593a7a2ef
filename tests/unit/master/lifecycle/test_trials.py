"""Trials from their creation to their end: restarts, rewinds, targets, copies, and what the search hears."""

from __future__ import annotations

import math

import pytest

from determined import errors
from determined.master.lifecycle import allocations, trials
from determined.master.operations import Operation
from determined.master.records import AllocationState
from determined.master.states import ExperimentState, TrialState, Wanted
from determined.master.store import checkpoints as checkpoint_rows
from determined.master.store import experiments as experiment_rows
from determined.master.store import metrics
from determined.wire.outcome import Ending, Outcome
from determined.wire.reports import StopReason
from tests.unit.master.lifecycle.world import World


def test_a_single_trial_goes_from_the_queue_to_completed(world: World) -> None:
    experiment = world.create()
    (trial,) = world.trials(experiment.id)
    assert (experiment.state, trial.state, world.queue()) == (
        ExperimentState.ACTIVE,
        TrialState.QUEUED,
        [f"trial-{trial.id}"],
    )
    allocation = world.assign(trial)
    assert allocation is not None
    assert (allocation.id, allocation.run_epoch, allocation.state) == (
        f"trial-{trial.id}.1",
        1,
        AllocationState.ASSIGNED,
    )
    assert world.trial(trial).state is TrialState.STARTING
    world.do(allocations.record_running, allocation.id)
    assert world.trial(trial).state is TrialState.RUNNING
    world.validate(trial, 100, 0.5)
    world.checkpoint(trial, 100, "abc")
    done = world.exit(trial)
    assert (done.state, done.latest_checkpoint, done.best_metric, done.best_step, done.progress) == (
        TrialState.COMPLETED,
        "abc",
        0.5,
        100,
        1.0,
    )
    ended = world.experiment(experiment.id)
    assert (ended.state, ended.best_trial_id, ended.best_metric, ended.progress) == (
        ExperimentState.COMPLETED,
        trial.id,
        0.5,
        1.0,
    )
    assert ended.ended_at is not None and ended.checkpoint_size == 15
    assert world.heard(experiment.id) == ["start", "validation 0 100", "exit 0 completed"]


def test_what_is_not_queued_is_not_assigned(world: World) -> None:
    (trial,) = world.trials(world.create().id)
    assert world.assign(trial) is not None
    assert world.assign(trial) is None


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.OUT_OF_MEMORY])
def test_own_failures_use_up_restarts_and_then_the_trial_has_failed(world: World, outcome: Outcome) -> None:
    experiment = world.create(max_restarts=2)
    (trial,) = world.trials(experiment.id)
    for attempt in range(2):
        world.start(trial)
        after = world.exit(trial, outcome, detail=f"ValueError: {attempt}")
        assert (after.state, after.restarts, after.error) == (TrialState.QUEUED, attempt + 1, f"ValueError: {attempt}")
    world.start(trial)
    after = world.exit(trial, outcome, detail="Traceback\nValueError: last")
    assert (after.state, after.restarts) == (TrialState.ERROR, 2)
    ended = world.experiment(experiment.id)
    assert ended.state is ExperimentState.ERROR
    assert ended.error == "its trial failed: ValueError: last"


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.STOPPED])
def test_what_is_not_its_own_fault_costs_no_restart(world: World, outcome: Outcome) -> None:
    experiment = world.create(max_restarts=0)
    (trial,) = world.trials(experiment.id)
    for _ in range(20):
        world.start(trial)
        assert world.exit(trial, outcome).state is TrialState.QUEUED
        world.later(100)
    assert world.trial(trial).restarts == 0
    assert world.train(trial).state is TrialState.COMPLETED


def test_a_gang_lost_again_and_again_waits_before_it_is_tried_again(world: World) -> None:
    (trial,) = world.trials(world.create().id)
    for waits in (False, False, True):
        world.start(trial)
        world.exit(trial, Outcome.LOST)
        assert (world.queue() == []) is waits
    world.later(1.0)
    assert world.queue() == [f"trial-{trial.id}"]


def test_invalid_hyperparameters_end_the_trial_at_once(world: World) -> None:
    experiment = world.scripted(trials=2)
    first, second = world.trials(experiment.id)
    world.start(first)
    world.do(trials.record_early_exit, world.live(first).id, "invalid_hp", "the kernel is larger than the image")
    after = world.exit(first, Outcome.FAILED)
    assert (after.state, after.error, after.exit) == (
        TrialState.ERROR,
        "the kernel is larger than the image",
        "invalid_hp",
    )
    world.train(second)
    assert world.heard(experiment.id)[1] == "exit 0 invalid_hp"
    assert world.experiment(experiment.id).state is ExperimentState.COMPLETED


def test_code_that_asks_to_stop_has_completed(world: World) -> None:
    (trial,) = world.trials(world.create().id)
    world.start(trial)
    world.do(trials.record_early_exit, world.live(trial).id, "user_requested_stop")
    assert world.exit(trial, Outcome.STOPPED).state is TrialState.COMPLETED


def test_a_new_attempt_goes_back_to_the_cut(world: World) -> None:
    experiment = world.create()
    (trial,) = world.trials(experiment.id)
    world.start(trial)
    world.validate(trial, 100, 0.5)
    world.checkpoint(trial, 100, "cut")
    world.validate(trial, 200, 0.1)
    assert world.experiment(experiment.id).best_metric == 0.1
    world.exit(trial, Outcome.LOST)
    allocation = world.start(trial)
    again = world.trial(trial)
    assert (allocation.from_checkpoint, again.steps_completed, again.best_metric, again.best_step) == (
        "cut",
        100,
        0.5,
        100,
    )
    assert world.experiment(experiment.id).best_metric == 0.5
    assert [row.steps_completed for row in world.look(metrics.rows, trial.id, "validation")] == [100]
    assert again.latest_validation == {"loss": 0.5, "batches": 100}
    world.validate(trial, 200, 0.2)
    assert world.experiment(experiment.id).best_metric == 0.2
    # The search was told of each once.
    assert world.heard(experiment.id) == ["start", "validation 0 100", "validation 0 200"]


def test_without_a_checkpoint_it_begins_anew(world: World) -> None:
    (trial,) = world.trials(world.create().id)
    world.start(trial)
    world.validate(trial, 0, 9.0)
    world.validate(trial, 100, 0.5)
    world.exit(trial, Outcome.FAILED)
    allocation = world.start(trial)
    again = world.trial(trial)
    assert (allocation.from_checkpoint, again.steps_completed, again.best_metric) == (None, 0, 9.0)


def test_nan_never_wins_and_of_equals_the_first_stays(world: World) -> None:
    experiment = world.scripted(trials=2)
    first, second = world.trials(experiment.id)
    world.start(first)
    world.start(second)
    world.validate(first, 1, math.nan)
    assert world.experiment(experiment.id).best_metric is None
    world.validate(first, 2, 0.5)
    world.validate(second, 1, 0.5)
    world.validate(second, 2, math.nan)
    world.validate(second, 3, math.inf)
    assert world.experiment(experiment.id).best_trial_id == first.id
    world.validate(second, 4, -math.inf)
    best = world.experiment(experiment.id)
    assert (best.best_trial_id, best.best_metric) == (second.id, -math.inf)


def test_larger_may_be_better(world: World) -> None:
    experiment = world.create({"name": "single", "metric": "accuracy", "smaller_is_better": False})
    (trial,) = world.trials(experiment.id)
    world.start(trial)
    for steps, accuracy in enumerate([0.1, 0.9, 0.5]):
        world.validate(trial, steps, 0.0, accuracy=accuracy)
    assert world.trial(trial).best_metric == 0.9
    assert world.experiment(experiment.id).best_metric == 0.9


def test_without_a_named_metric_the_first_validation_names_it(world: World) -> None:
    experiment = world.create({"name": "single"})
    (trial,) = world.trials(experiment.id)
    world.start(trial)
    world.validate(trial, 1, 0.5, accuracy=0.9)
    assert world.experiment(experiment.id).metric == "loss"
    assert world.trial(trial).best_metric == 0.5


def test_a_trial_waits_at_its_target_until_it_is_extended(world: World) -> None:
    extend = {"action": "extend", "trial": 0, "target": 200}
    experiment = world.scripted({"validation 1 100": [extend]}, trials=2, target=100)
    first, second = world.trials(experiment.id)
    assert world.train(first, steps=100).state is TrialState.WAITING
    assert world.experiment(experiment.id).state is ExperimentState.ACTIVE
    world.start(second)
    world.validate(second, 100, 1.0)
    assert world.trial(first).state is TrialState.WAITING, "the search hears of it when it is saved"
    world.checkpoint(second, 100)
    assert (world.trial(first).state, world.trial(first).target) == (TrialState.QUEUED, 200)
    allocation = world.start(first)
    assert (allocation.target, allocation.from_checkpoint) == (200, f"{first.id:08}-100")


def test_extended_while_it_runs_it_is_queued_again_when_it_has_reached_its_target(world: World) -> None:
    extend = {"action": "extend", "trial": 0, "target": 200}
    experiment = world.scripted({"validation 0 100": [extend]}, target=100)
    (trial,) = world.trials(experiment.id)
    assert world.train(trial, steps=100).state is TrialState.QUEUED
    assert world.trial(trial).target == 200


def test_a_validation_lost_before_it_was_saved_is_told_once_it_is_made_again(world: World) -> None:
    experiment = world.scripted(target=100)
    (trial,) = world.trials(experiment.id)
    world.start(trial)
    world.validate(trial, 50, 2.0)
    world.validate(trial, 100, 1.0)
    assert world.heard(experiment.id) == ["start", "validation 0 50"]
    world.exit(trial, Outcome.LOST)
    world.start(trial)
    assert world.trial(trial).held_steps is None
    world.validate(trial, 50, 2.0)
    world.validate(trial, 100, 1.0)
    world.exit(trial)
    assert world.heard(experiment.id)[:3] == ["start", "validation 0 50", "validation 0 100"]


def test_when_all_wait_and_nobody_is_left_to_report_they_have_completed(world: World) -> None:
    experiment = world.scripted(trials=2, target=100)
    for trial in world.trials(experiment.id):
        world.train(trial, steps=100)
    assert world.states(experiment.id) == ["completed", "completed"]
    assert world.experiment(experiment.id).state is ExperimentState.COMPLETED


def test_a_trial_the_search_has_enough_of_saves_and_completes(world: World) -> None:
    stop = {"action": "stop", "trial": 0, "reason": "it was the worst"}
    experiment = world.scripted({"validation 0 100": [stop]}, trials=2)
    first, _ = world.trials(experiment.id)
    world.start(first)
    world.validate(first, 100, 1.0)
    stopping = world.trial(first)
    assert (stopping.state, stopping.wanted, stopping.status) == (
        TrialState.STOPPING,
        Wanted.ENOUGH,
        "it was the worst",
    )
    assert world.live(first).stop_reason is StopReason.ENOUGH
    assert world.exit(first, Outcome.STOPPED).state is TrialState.COMPLETED


def test_what_the_search_stops_in_the_queue_has_completed_at_once(world: World) -> None:
    stop = {"action": "stop", "trial": 1}
    experiment = world.scripted({"validation 0 100": [stop]}, trials=2)
    first, _ = world.trials(experiment.id)
    world.start(first)
    world.validate(first, 100, 1.0)
    assert world.states(experiment.id) == ["running", "completed"]
    assert world.heard(experiment.id)[-1] == "exit 1 completed"


def test_a_copy_starts_from_the_latest_checkpoint_of_its_source(world: World) -> None:
    copy = {"action": "create", "trial": 1, "hparams": {"lr": 0.1}, "seed": 1, "target": 200.0, "copy_of": 0}
    experiment = world.scripted({"validation 0 100": [copy]}, target=100)
    (source,) = world.trials(experiment.id)
    world.start(source)
    world.validate(source, 100, 1.0)
    assert len(world.trials(experiment.id)) == 1
    world.checkpoint(source, 100, "winner")
    copied = world.trials(experiment.id)[1]
    assert (copied.copy_of, copied.source_checkpoint, copied.copy_from_steps) == (0, "winner", None)
    allocation = world.assign(copied)
    assert allocation is not None and allocation.from_checkpoint == "winner"
    assert "winner" in world.look(checkpoint_rows.used, uuids=["winner"])


def test_a_copy_waits_for_the_checkpoint_that_its_source_is_about_to_make(world: World) -> None:
    copy = {"action": "create", "trial": 1, "hparams": {}, "seed": 1, "target": None, "copy_of": 0}
    experiment = world.scripted({"validation 0 100": [copy]})
    (source,) = world.trials(experiment.id)
    world.start(source)
    world.checkpoint(source, 50, "old")
    world.validate(source, 100, 1.0)
    copied = world.trials(experiment.id)[1]
    assert copied.copy_from_steps == 100
    assert world.queue() == [] and world.assign(copied) is None
    world.checkpoint(source, 100, "new")
    assert (world.trial(copied).source_checkpoint, world.queue()) == ("new", [f"trial-{copied.id}"])


def test_a_copy_takes_what_there_is_when_its_source_ends_without_saving(world: World) -> None:
    copy = {"action": "create", "trial": 1, "hparams": {}, "seed": 1, "target": None, "copy_of": 0}
    experiment = world.scripted({"validation 0 100": [copy]})
    (source,) = world.trials(experiment.id)
    world.start(source)
    world.checkpoint(source, 50, "old")
    world.validate(source, 100, 1.0)
    world.exit(source)
    assert world.trials(experiment.id)[1].source_checkpoint == "old"
    assert world.queue() == [f"trial-{world.trials(experiment.id)[1].id}"]


def test_a_killed_trial_ends_alone_and_the_search_goes_on(world: World) -> None:
    experiment = world.create({"name": "random", "metric": "loss", "max_trials": 3, "max_concurrent_trials": 2})
    first, second = world.trials(experiment.id)
    world.start(first)
    world.do(trials.operate, first.id, Operation.KILL)
    assert world.live(first).stop_reason is StopReason.KILLED
    world.do(trials.operate, second.id, Operation.CANCEL)
    assert world.states(experiment.id) == ["stopping", "canceled", "queued"]
    world.exit(first, Outcome.FAILED)
    assert world.states(experiment.id) == ["canceled", "canceled", "queued"]
    assert world.do(trials.operate, first.id, Operation.KILL).state is TrialState.CANCELED
    assert world.train(world.trials(experiment.id)[2]).state is TrialState.COMPLETED
    assert world.experiment(experiment.id).state is ExperimentState.COMPLETED


def test_only_what_trials_can_do_on_their_own_is_asked_of_them(world: World) -> None:
    (trial,) = world.trials(world.create().id)
    with pytest.raises(errors.Refused, match="do it with its experiment"):
        world.do(trials.operate, trial.id, Operation.PAUSE)
    with pytest.raises(errors.Refused, match="has not ended"):
        world.do(trials.continue_trial, trial.id)
    with pytest.raises(errors.NotFound):
        world.do(trials.operate, 99, Operation.KILL)


def test_an_ended_trial_is_continued_from_its_latest_checkpoint_and_the_search_hears_nothing(world: World) -> None:
    experiment = world.create({"name": "random", "metric": "loss", "max_trials": 9, "max_concurrent_trials": 1})
    (trial,) = world.trials(experiment.id)
    world.start(trial)
    world.checkpoint(trial, 100, "cut")
    world.operate(experiment.id, Operation.KILL)
    world.exit(trial, Outcome.FAILED)
    assert world.experiment(experiment.id).state is ExperimentState.CANCELED
    heard = world.heard(experiment.id)
    assert world.do(trials.continue_trial, trial.id).state is TrialState.QUEUED
    assert world.experiment(experiment.id).state is ExperimentState.ACTIVE
    assert world.start(trial).from_checkpoint == "cut"
    world.validate(trial, 200, 1.0)
    assert world.exit(trial).state is TrialState.COMPLETED
    assert world.experiment(experiment.id).state is ExperimentState.COMPLETED
    assert world.heard(experiment.id) == heard


@pytest.mark.parametrize("outcome", [*Outcome])
@pytest.mark.parametrize("wanted", [None, Operation.PAUSE, Operation.CANCEL, Operation.KILL])
def test_every_exit_twice_is_one_exit(world: World, outcome: Outcome, wanted: Operation | None) -> None:
    experiment = world.create(max_restarts=1)
    (trial,) = world.trials(experiment.id)
    allocation = world.start(trial)
    if wanted is not None:
        world.operate(experiment.id, wanted)
    ending = Ending(outcome=outcome, exit_code=1)
    world.do(allocations.record_exit, allocation.id, ending)
    once = world.trial(trial), world.experiment(experiment.id), world.heard(experiment.id)
    world.later()
    world.do(allocations.record_exit, allocation.id, ending)
    world.do(allocations.record_lost, allocation.id)
    world.do(allocations.ask_stop, allocation.id, StopReason.KILLED)
    world.do(allocations.record_running, allocation.id)
    assert (world.trial(trial), world.experiment(experiment.id), world.heard(experiment.id)) == once
    expected = {
        Outcome.COMPLETED: TrialState.COMPLETED,
        Outcome.INVALID_HP: TrialState.ERROR,
    }.get(outcome, TrialState.QUEUED)
    if wanted is Operation.PAUSE and expected is TrialState.QUEUED:
        expected = TrialState.PAUSED
    if wanted in (Operation.CANCEL, Operation.KILL) and outcome is not Outcome.COMPLETED:
        expected = TrialState.CANCELED
    assert once[0].state is expected


def test_a_preempted_trial_is_queued_again_and_a_stronger_order_wins(world: World) -> None:
    experiment = world.create()
    (trial,) = world.trials(experiment.id)
    allocation = world.start(trial)
    world.do(allocations.ask_stop, allocation.id, StopReason.PREEMPTED)
    assert (world.trial(trial).state, world.live(trial).stop_asked_at) == (TrialState.STOPPING, world.clock[0])
    world.later()
    assert world.do(allocations.ask_stop, allocation.id, StopReason.PREEMPTED).stop_asked_at == world.clock[0] - 1
    world.operate(experiment.id, Operation.KILL)
    assert (world.live(trial).stop_reason, world.live(trial).stop_asked_at) == (StopReason.KILLED, world.clock[0])
    assert world.do(allocations.ask_stop, allocation.id, StopReason.PAUSED).stop_reason is StopReason.KILLED


def test_progress_of_a_trial_is_that_of_its_experiment(world: World) -> None:
    experiment = world.create()
    (trial,) = world.trials(experiment.id)
    world.start(trial)
    world.later(2)
    world.do(trials.record_progress, trial.id, 0.25, 10)
    assert world.trial(trial).steps_completed == 10
    assert world.look(experiment_rows.require, experiment.id).progress == 0.25
