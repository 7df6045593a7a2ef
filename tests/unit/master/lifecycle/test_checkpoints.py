"""Checkpoints: recorded, deleted, and which of them may go."""

from __future__ import annotations

import pytest

from determined import errors
from determined.master.lifecycle import checkpoints, tasks
from determined.master.operations import Operation
from determined.master.records import CheckpointState
from determined.master.store import checkpoints as checkpoint_rows
from determined.wire.outcome import Outcome
from determined.wire.reports import CheckpointReport
from tests.unit.master.lifecycle.test_experiments import register
from tests.unit.master.lifecycle.world import HERE, World


def test_a_checkpoint_knows_the_validation_at_its_steps(world: World) -> None:
    experiment = world.create()
    (trial,) = world.trials(experiment.id)
    world.start(trial)
    world.validate(trial, 100, 0.5)
    assert world.checkpoint(trial, 100, "after").searcher_metric == 0.5
    assert world.checkpoint(trial, 150, "between").searcher_metric is None
    assert world.checkpoint(trial, 200, "before").searcher_metric is None
    world.validate(trial, 200, 0.25)
    assert world.look(checkpoint_rows.require, "before").searcher_metric == 0.25
    world.validate(trial, 300, 0.1)
    world.validate(trial, 400, 0.2)
    assert world.checkpoint(trial, 300, "late").searcher_metric == 0.1


def test_the_same_report_twice_is_one_checkpoint(world: World) -> None:
    experiment = world.create()
    (trial,) = world.trials(experiment.id)
    world.start(trial)
    once = world.checkpoint(trial, 100, "abc")
    assert world.checkpoint(trial, 100, "abc") == once
    row = world.experiment(experiment.id)
    assert (row.checkpoint_count, row.checkpoint_size) == (1, 15)


def test_the_latest_is_the_one_with_the_most_steps(world: World) -> None:
    (trial,) = world.trials(world.create().id)
    world.start(trial)
    world.checkpoint(trial, 200, "b")
    world.checkpoint(trial, 100, "a")
    assert world.trial(trial).latest_checkpoint == "b"


def test_a_uuid_may_be_shortened_as_long_as_it_is_clear(world: World) -> None:
    (trial,) = world.trials(world.create().id)
    world.start(trial)
    world.checkpoint(trial, 1, "abcd-1")
    world.checkpoint(trial, 2, "abcd-2")
    assert world.look(checkpoint_rows.require, "abcd-2").steps_completed == 2
    with pytest.raises(errors.CheckpointNotFound, match="several"):
        world.look(checkpoint_rows.require, "abcd")
    with pytest.raises(errors.CheckpointNotFound, match="there is no"):
        world.look(checkpoint_rows.require, "abc")
    with pytest.raises(errors.CheckpointNotFound, match="there is no"):
        world.look(checkpoint_rows.require, "abcd%")


def test_metadata_is_edited_key_by_key(world: World) -> None:
    (trial,) = world.trials(world.create().id)
    world.start(trial)
    world.checkpoint(trial, 1, "abcd")
    world.do(checkpoints.edit_metadata, "abcd", {"a": 1, "b": {"c": 2}})
    edited = world.do(checkpoints.edit_metadata, "abcd", {"b": 3}, ["a", "absent"])
    assert edited.metadata == {"b": 3}


def test_deleting_is_two_steps_and_each_twice_is_once(world: World) -> None:
    experiment = world.create()
    (trial,) = world.trials(experiment.id)
    world.start(trial)
    world.checkpoint(trial, 100, "a")
    world.checkpoint(trial, 200, "b")
    for _ in range(2):
        assert world.do(checkpoints.mark_deleting, "a").state is CheckpointState.DELETING
    assert [checkpoint.uuid for checkpoint in world.look(checkpoint_rows.deleting)] == ["a"]
    for _ in range(2):
        world.do(checkpoints.record_deleted, "a")
    assert world.do(checkpoints.mark_deleting, "a").state is CheckpointState.DELETED
    row = world.experiment(experiment.id)
    assert (row.checkpoint_count, row.checkpoint_size) == (1, 15)


def test_what_something_goes_on_from_or_a_model_holds_is_not_deleted(world: World) -> None:
    experiment = world.create()
    (trial,) = world.trials(experiment.id)
    world.start(trial)
    world.checkpoint(trial, 100, "abcd")
    with pytest.raises(errors.Refused, match=f"trial {trial.id} needs it"):
        world.do(checkpoints.mark_deleting, "abcd")
    world.exit(trial)
    world.do(register, "abcd")
    with pytest.raises(errors.Refused, match="version 1 of model m"):
        world.do(checkpoints.mark_deleting, "abcd")


def test_of_an_ended_trial_the_one_before_becomes_the_latest(world: World) -> None:
    (trial,) = world.trials(world.create().id)
    world.start(trial)
    world.checkpoint(trial, 100, "a")
    world.checkpoint(trial, 200, "b")
    world.exit(trial)
    world.do(checkpoints.mark_deleting, "b")
    assert world.trial(trial).latest_checkpoint == "a"
    world.do(checkpoints.mark_deleting, "a")
    assert world.trial(trial).latest_checkpoint is None


def test_some_files_of_a_checkpoint_may_go(world: World) -> None:
    experiment = world.create()
    (trial,) = world.trials(experiment.id)
    world.start(trial)
    world.checkpoint(trial, 100, "a")
    world.exit(trial)
    with pytest.raises(errors.Refused, match=r"checkpoint a has no file that matches \*\.pt or c"):
        world.do(checkpoints.mark_deleting, "a", ["*.pt", "c"])
    assert world.do(checkpoints.mark_deleting, "a", ["[a]"]).globs == ["[a]"]
    world.do(checkpoints.record_deleted, "a", {"b": 5})
    left = world.look(checkpoint_rows.require, "a")
    assert (left.state, left.resources, left.size, left.globs) == (
        CheckpointState.PARTIALLY_DELETED,
        {"b": 5},
        5,
        None,
    )
    assert world.experiment(experiment.id).checkpoint_size == 5
    world.do(checkpoints.mark_deleting, "a")
    world.do(checkpoints.record_deleted, "a")
    assert world.experiment(experiment.id).checkpoint_count == 0


def test_training_code_may_delete_its_own(world: World) -> None:
    (trial,) = world.trials(world.create().id)
    world.start(trial)
    world.checkpoint(trial, 100, "a")
    world.checkpoint(trial, 200, "b")
    own = world.live(trial)
    for _ in range(2):
        world.do(checkpoints.record_gone, own, "b")
    world.do(checkpoints.record_gone, own, "unknown")
    assert world.trial(trial).latest_checkpoint == "a"
    world.exit(trial, Outcome.LOST)
    assert world.start(trial).from_checkpoint == "a"


def test_nobody_deletes_what_others_trained(world: World) -> None:
    one, other = world.trials(world.scripted(trials=2).id)
    world.start(one)
    world.start(other)
    world.checkpoint(one, 100, "a")
    world.do(checkpoints.record_gone, world.live(other), "a")
    assert world.look(checkpoint_rows.require, "a").state is CheckpointState.COMPLETED


def test_by_default_the_best_and_the_latest_of_each_trial_are_kept(world: World) -> None:
    experiment = world.scripted(trials=2)
    for trial in world.trials(experiment.id):
        world.start(trial)
        for steps, loss in ((1, 0.5), (2, 0.1), (3, 0.7), (4, 0.9)):
            world.validate(trial, steps, loss)
            world.checkpoint(trial, steps, f"{trial.number}-{steps}")
    assert world.look(checkpoints.deletable, experiment.id) == ["0-1", "0-3", "1-1", "1-3"]
    assert world.look(checkpoints.deletable, experiment.id, trial.id) == ["1-1", "1-3"]


def test_what_is_needed_is_kept_against_the_policy(world: World) -> None:
    storage = {"save_trial_best": 0, "save_trial_latest": 0, "save_experiment_best": 1}
    experiment = world.create(checkpoint_storage=storage)
    (trial,) = world.trials(experiment.id)
    world.start(trial)
    for steps, loss in ((1, 0.5), (2, 0.1), (3, 0.7)):
        world.validate(trial, steps, loss)
        world.checkpoint(trial, steps, f"s{steps}")
    for trial_id in (None, trial.id):
        assert world.look(checkpoints.deletable, experiment.id, trial_id) == ["s1"]
    world.exit(trial)
    for trial_id in (None, trial.id):
        assert world.look(checkpoints.deletable, experiment.id, trial_id) == ["s1", "s3"]
    other = world.create({"name": "single", "metric": "loss", "source_checkpoint_uuid": "s1"})
    assert world.look(checkpoints.deletable, experiment.id) == ["s3"]
    world.operate(other.id, Operation.KILL)
    world.do(register, "s3")
    assert world.look(checkpoints.deletable, experiment.id) == ["s1"]


def test_while_a_search_may_copy_the_latest_of_every_trial_is_kept(world: World) -> None:
    copy = {"action": "create", "trial": 2, "hparams": {}, "seed": 1, "target": None, "copy_of": 0}
    storage = {"save_trial_best": 0, "save_trial_latest": 0}
    experiment = world.scripted({"exit 1 completed": [copy]}, trials=2, checkpoint_storage=storage)
    first, second = world.trials(experiment.id)
    world.train(first)
    assert world.look(checkpoints.deletable, experiment.id) == []
    world.train(second)
    copied = world.trials(experiment.id)[2]
    assert copied.source_checkpoint == f"{first.id:08}-100"
    world.train(copied)
    assert len(world.look(checkpoints.deletable, experiment.id)) == 3


def test_a_job_has_checkpoints_too(world: World) -> None:
    from determined.master.lifecycle import allocations

    task = world.do(tasks.create, tasks.NewTask(kind="job", name="j", config={}))
    allocation = world.do(allocations.assign, task.id, HERE, "local")
    assert allocation is not None
    report = CheckpointReport(uuid="abc", steps_completed=3, time=1.0)
    recorded = world.do(checkpoints.record, allocation, report)
    assert (recorded.task_id, recorded.trial_id, recorded.experiment_id) == (task.id, None, None)
    world.do(checkpoints.mark_deleting, "abc")
    world.do(checkpoints.record_deleted, "abc")
