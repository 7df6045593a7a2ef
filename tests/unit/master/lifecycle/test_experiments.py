"""Experiments: created, operated in every state, edited, continued, retried, and deleted."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import sqlalchemy as sa

from determined import config as configs
from determined import errors
from determined.core.connect import DEFAULT_SEED
from determined.master.lifecycle import experiments
from determined.master.operations import Operation
from determined.master.records import Experiment
from determined.master.states import ExperimentState, TrialState, Wanted
from determined.master.store import checkpoints as checkpoint_rows
from determined.master.store import experiments as experiment_rows
from determined.master.store import searches, tables
from determined.master.store.database import Tx
from determined.wire.outcome import Outcome
from determined.wire.reports import StopReason
from tests.unit.master.lifecycle.world import World, add_project

RANDOM = {"name": "random", "metric": "loss", "max_trials": 4, "max_concurrent_trials": 2}


def register(tx: Tx, uuid: str) -> None:
    """Make a checkpoint the first version of a model."""
    model = {"name": "m", "labels": [], "metadata": {}, "created_at": tx.now, "updated_at": tx.now}
    inserted = tx.execute(sa.insert(tables.models), model).inserted_primary_key
    assert inserted is not None
    version = {"version": 1, "checkpoint_uuid": uuid, "labels": [], "metadata": {}, "created_at": tx.now}
    tx.execute(sa.insert(tables.model_versions), {"model_id": inserted[0], **version})


def test_what_the_config_says_is_in_the_row(world: World) -> None:
    experiment = world.create(
        RANDOM,
        name="mnist",
        labels=["a", "b"],
        description="d",
        max_restarts=3,
        resources={"slots_per_trial": 2, "max_slots": 4, "priority": 7, "weight": 2, "is_single_node": True},
        user_id=None,
        written="name: mnist",
        notices=["n"],
        python="/usr/bin/python",
        context_sha256="ab",
    )
    assert (experiment.name, experiment.labels, experiment.description, experiment.searcher) == (
        "mnist",
        ["a", "b"],
        "d",
        "random",
    )
    assert (experiment.slots_per_trial, experiment.max_slots, experiment.priority, experiment.weight) == (2, 4, 7, 2.0)
    assert (experiment.max_restarts, experiment.seed, experiment.notices, experiment.single_node) == (3, 7, ["n"], True)
    assert configs.load(experiment.config) == configs.load(experiment.config)
    assert experiment.trial_count == 2


def test_the_seed_is_the_configs_or_drawn(world: World) -> None:
    assert world.create(seed=None, reproducibility={"experiment_seed": 11}).seed == 11
    ranges = {"lr": {"type": "double", "minval": 0.0, "maxval": 1.0}}
    drawn = {world.create(RANDOM, hyperparameters=ranges, seed=None).seed for _ in range(3)}
    assert len(drawn) == 3 and all(0 <= seed < 2**31 for seed in drawn)


def test_what_draws_nothing_is_seeded_as_a_plain_script(world: World) -> None:
    experiment = world.create(seed=None)
    assert experiment.seed == DEFAULT_SEED and world.trials(experiment.id)[0].seed == DEFAULT_SEED


def test_ids_are_never_used_again(world: World) -> None:
    first = world.create()
    (trial,) = world.trials(first.id)
    world.operate(first.id, Operation.KILL)
    world.do(experiments.delete, first.id)
    world.do(experiments.record_deleted, first.id)
    second = world.create()
    assert second.id == first.id + 1
    assert world.trials(second.id)[0].id == trial.id + 1


def test_projects_that_are_archived_or_not_there_take_none(world: World) -> None:
    closed = world.do(add_project, archived=True)
    with pytest.raises(errors.Refused, match="archived"):
        world.create(project_id=closed)
    with pytest.raises(errors.NotFound):
        world.create(project_id=99)
    experiment = world.create()
    with pytest.raises(errors.Refused, match="archived"):
        world.do(experiments.move, experiment.id, closed)
    other = world.do(add_project)
    assert world.do(experiments.move, experiment.id, other).project_id == other


def test_a_method_that_cannot_be_made_creates_nothing(world: World) -> None:
    with pytest.raises(errors.InvalidConfigurationException):
        world.create({"name": "nowhere:Nothing"})
    assert world.look(experiment_rows.get, 1) is None


def test_created_paused_nothing_is_queued_until_it_is_activated(world: World) -> None:
    experiment = world.create(RANDOM, paused=True)
    assert (experiment.state, world.states(experiment.id)) == (ExperimentState.PAUSED, ["paused", "paused"])
    assert world.queue() == []
    assert world.operate(experiment.id, Operation.ACTIVATE).state is ExperimentState.ACTIVE
    assert len(world.queue()) == 2


def test_pausing_settles_the_queued_at_once_and_the_running_when_they_have_saved(world: World) -> None:
    experiment = world.create(RANDOM)
    running, _ = world.trials(experiment.id)
    world.start(running)
    assert world.operate(experiment.id, Operation.PAUSE).state is ExperimentState.STOPPING
    assert world.states(experiment.id) == ["stopping", "paused"]
    assert world.live(running).stop_reason is StopReason.PAUSED
    world.checkpoint(running, 50, "kept")
    world.exit(running, Outcome.STOPPED)
    assert world.experiment(experiment.id).state is ExperimentState.PAUSED
    assert world.operate(experiment.id, Operation.ACTIVATE).state is ExperimentState.ACTIVE
    assert world.start(running).from_checkpoint == "kept"


def test_activated_while_it_still_stops_it_is_queued_when_it_has_stopped(world: World) -> None:
    experiment = world.create()
    (trial,) = world.trials(experiment.id)
    world.start(trial)
    world.operate(experiment.id, Operation.PAUSE)
    world.operate(experiment.id, Operation.ACTIVATE)
    assert world.trial(trial).state is TrialState.STOPPING
    assert world.exit(trial, Outcome.STOPPED).state is TrialState.QUEUED


@pytest.mark.parametrize("operation", [Operation.CANCEL, Operation.KILL])
def test_ending_settles_the_queued_at_once_and_creates_no_more(world: World, operation: Operation) -> None:
    experiment = world.create(RANDOM)
    running, _ = world.trials(experiment.id)
    world.start(running)
    world.operate(experiment.id, operation)
    assert world.states(experiment.id) == ["stopping", "canceled"]
    world.exit(running, Outcome.STOPPED if operation is Operation.CANCEL else Outcome.FAILED)
    ended = world.experiment(experiment.id)
    assert (ended.state, world.states(experiment.id)) == (ExperimentState.CANCELED, ["canceled", "canceled"])
    assert ended.ended_at is not None


def test_ten_thousand_queued_trials_are_killed_in_one_go(world: World) -> None:
    experiment = world.scripted(trials=2000)
    assert len(world.queue()) == 2000
    assert world.operate(experiment.id, Operation.KILL).state is ExperimentState.CANCELED
    assert world.queue() == []


def test_every_operation_twice_is_once(world: World) -> None:
    for operation in (Operation.PAUSE, Operation.ACTIVATE, Operation.CANCEL, Operation.KILL, Operation.ARCHIVE):
        experiment = world.create(RANDOM)
        if operation is Operation.ARCHIVE:
            world.operate(experiment.id, Operation.KILL)
        once = world.operate(experiment.id, operation), world.trials(experiment.id)
        world.later()
        assert (world.operate(experiment.id, operation), world.trials(experiment.id)) == once


def in_state(world: World, state: str) -> Experiment:
    experiment = world.create()
    (trial,) = world.trials(experiment.id)
    match state:
        case "queued":
            pass
        case "starting":
            world.assign(trial)
        case "running":
            world.start(trial)
        case "stopping":
            world.start(trial)
            world.operate(experiment.id, Operation.PAUSE)
        case "canceling":
            world.start(trial)
            world.operate(experiment.id, Operation.CANCEL)
        case "paused":
            world.operate(experiment.id, Operation.PAUSE)
        case "completed":
            world.train(trial)
        case "canceled":
            world.operate(experiment.id, Operation.KILL)
        case "error":
            world.start(trial)
            world.exit(trial, Outcome.INVALID_HP)
        case "deleting":
            world.operate(experiment.id, Operation.KILL)
            world.do(experiments.delete, experiment.id)
        case "delete_failed":
            world.operate(experiment.id, Operation.KILL)
            world.do(experiments.delete, experiment.id)
            world.do(experiments.record_delete_failed, experiment.id, "no permission")
    return world.experiment(experiment.id)


STATES = ["queued", "starting", "running", "stopping", "canceling", "paused", "completed", "canceled", "error"]
STATES += ["deleting", "delete_failed"]


@pytest.mark.parametrize("state", STATES)
def test_in_every_state_every_operation_is_done_or_refused_with_a_sentence(world: World, state: str) -> None:
    def ask(operation: Operation, experiment_id: int) -> Any:
        match operation:
            case Operation.DELETE:
                return world.do(experiments.delete, experiment_id)
            case Operation.MOVE:
                return world.do(experiments.move, experiment_id, 1)
            case Operation.EDIT:
                return world.do(experiments.edit, experiment_id, {"notes": "new"})
            case Operation.ADJUST:
                return world.do(experiments.edit, experiment_id, {"priority": 9})
            case Operation.CONTINUE:
                return world.do(experiments.continue_, experiment_id)
            case Operation.FORK:
                return world.create(parent_id=experiment_id)
            case _:
                return world.operate(experiment_id, operation)

    allowed = set()
    for operation in Operation:
        experiment = in_state(world, state)
        before = world.trials(experiment.id)
        try:
            ask(operation, experiment.id)
            allowed.add(operation.value)
        except errors.Refused as refused:
            assert str(experiment.id) in str(refused)
            assert world.experiment(experiment.id) == experiment
            assert world.trials(experiment.id) == before
    assert "fork" in allowed
    assert ("delete" in allowed) is (state in ("completed", "canceled", "error", "deleting", "delete_failed"))
    assert ("pause" in allowed) is (state in ("queued", "starting", "running", "stopping", "paused"))
    assert ("kill" in allowed) is True
    assert ("adjust" in allowed) is (state in ("queued", "starting", "running", "stopping", "canceling", "paused"))
    # A failure of invalid hyperparameters is nothing to go on from, and of a completed one nothing is left.
    assert ("continue" in allowed) is (state == "canceled")


def test_editing_changes_the_row_and_the_config_alike(world: World) -> None:
    experiment = world.create()
    changes = {"name": "new", "notes": "n", "labels": ["x"], "priority": 3, "max_slots": 2, "save_trial_best": 5}
    edited = world.do(experiments.edit, experiment.id, {**changes, "log_retention_days": 7})
    config = configs.load(edited.config)
    assert (edited.name, edited.notes, edited.labels, edited.priority, edited.max_slots) == ("new", "n", ["x"], 3, 2)
    assert (config.name, config.labels, config.resources.priority) == ("new", ("x",), 3)
    assert config.checkpoint_storage.save_trial_best == 5
    assert config.retention_policy.log_retention_days == 7
    with pytest.raises(errors.BadRequest, match="seed"):
        world.do(experiments.edit, experiment.id, {"seed": 3})


def test_how_many_checkpoints_are_kept_may_change_after_the_end(world: World) -> None:
    experiment = in_state(world, "completed")
    world.do(experiments.edit, experiment.id, {"save_trial_best": 0, "priority": None})
    with pytest.raises(errors.Refused, match="no longer waits"):
        world.do(experiments.edit, experiment.id, {"priority": 1})


# Continue, fork, warm start, retry.


def test_a_canceled_search_goes_on_as_if_it_had_been_paused(world: World) -> None:
    experiment, undisturbed = world.create(RANDOM), world.create(RANDOM)
    first, second = world.trials(experiment.id)
    world.start(first)
    world.checkpoint(first, 30, "cut")
    world.operate(experiment.id, Operation.CANCEL)
    world.exit(first, Outcome.STOPPED)
    again = world.do(experiments.continue_, experiment.id)
    assert (again.state, again.wanted, again.ended_at) == (ExperimentState.ACTIVE, Wanted.ACTIVE, None)
    assert world.states(experiment.id) == ["queued", "queued"]
    assert world.start(first).from_checkpoint == "cut"
    world.exit(first)
    world.train(second)
    for experiment_id in (experiment.id, undisturbed.id):
        while queued := [trial for trial in world.trials(experiment_id) if trial.state is TrialState.QUEUED]:
            world.train(queued[0])
        assert world.experiment(experiment_id).state is ExperimentState.COMPLETED
    pairs = zip(world.trials(experiment.id), world.trials(undisturbed.id), strict=True)
    assert all((mine.hparams, mine.seed) == (other.hparams, other.seed) for mine, other in pairs)
    assert world.heard(experiment.id).count("exit 0 completed") == 1


def test_a_completed_single_trial_trains_longer(world: World) -> None:
    searcher = {"name": "single", "metric": "loss", "max_length": {"batches": 100}}
    experiment = world.create(searcher)
    (trial,) = world.trials(experiment.id)
    world.train(trial, steps=100)
    with pytest.raises(errors.Refused, match="nothing left to train"):
        world.do(experiments.continue_, experiment.id)
    longer = configs.load({**experiment.config, "searcher": {**searcher, "max_length": {"batches": 200}}})
    again = world.do(experiments.continue_, experiment.id, longer)
    assert again.config["searcher"]["max_length"] == {"batches": 200}
    allocation = world.start(trial)
    assert (allocation.run_epoch, allocation.from_checkpoint) == (2, f"{trial.id:08}-100")
    world.exit(trial)
    assert world.experiment(experiment.id).state is ExperimentState.COMPLETED
    assert world.heard(experiment.id) == ["start", "validation 0 100", "exit 0 completed", "continue"]
    known, answers, recorded = world.replayed(experiment.id)
    snapshot = world.look(searches.snapshot, experiment.id)
    assert answers == recorded and snapshot is not None and snapshot[1] == known


def test_a_search_that_goes_on_cannot_become_another(world: World) -> None:
    experiment = world.create(RANDOM)
    world.operate(experiment.id, Operation.KILL)
    for change in (
        {"searcher": {**RANDOM, "max_trials": 9}},
        {"hyperparameters": {"lr": 0.1}},
        {"searcher": {"name": "single", "metric": "loss"}},
    ):
        with pytest.raises(errors.Refused, match="fork experiment"):
            world.do(experiments.continue_, experiment.id, configs.load({**experiment.config, **change}))


def test_other_settings_may_change_when_it_goes_on(world: World) -> None:
    experiment = world.create(max_restarts=0)
    (trial,) = world.trials(experiment.id)
    world.start(trial)
    assert world.exit(trial, Outcome.FAILED).state is TrialState.ERROR
    after = configs.load({**experiment.config, "max_restarts": 1})
    assert world.do(experiments.continue_, experiment.id, after).max_restarts == 1
    world.start(trial)
    assert world.exit(trial, Outcome.FAILED).state is TrialState.QUEUED
    assert world.train(trial).state is TrialState.COMPLETED
    assert world.experiment(experiment.id).state is ExperimentState.COMPLETED


def test_a_fork_knows_its_parent(world: World) -> None:
    parent = world.create()
    assert world.create(parent_id=parent.id).parent_id == parent.id
    with pytest.raises(errors.NotFound):
        world.create(parent_id=99)


def test_a_warm_start_begins_with_the_weights_of_a_trial_or_a_checkpoint(world: World) -> None:
    (trial,) = world.trials(world.create().id)
    searcher = {"name": "single", "metric": "loss"}
    with pytest.raises(errors.CheckpointNotFound, match="has no checkpoint"):
        world.create({**searcher, "source_trial_id": trial.id})
    world.train(trial)
    uuid = f"{trial.id:08}-100"
    for source in ({"source_trial_id": trial.id}, {"source_checkpoint_uuid": uuid}):
        (begun,) = world.trials(world.create({**searcher, **source}).id)
        assert (begun.source_checkpoint, begun.latest_checkpoint, begun.steps_completed) == (uuid, None, 0)
        assert world.start(begun).from_checkpoint == uuid
    with pytest.raises(errors.CheckpointNotFound):
        world.create({**searcher, "source_checkpoint_uuid": "nowhere"})
    with pytest.raises(errors.NotFound):
        world.create({**searcher, "source_trial_id": 99})


def test_failed_trials_are_trained_again_and_the_search_hears_nothing(world: World) -> None:
    experiment = world.scripted(trials=3, max_restarts=0)
    failed, invalid, fine = world.trials(experiment.id)
    for trial, outcome in ((failed, Outcome.FAILED), (invalid, Outcome.INVALID_HP), (fine, Outcome.COMPLETED)):
        world.start(trial)
        world.exit(trial, outcome)
    assert world.experiment(experiment.id).state is ExperimentState.COMPLETED
    heard = world.heard(experiment.id)
    assert world.do(experiments.retry, experiment.id).state is ExperimentState.ACTIVE
    assert world.states(experiment.id) == ["queued", "error", "completed"]
    world.train(failed, loss=0.1)
    ended = world.experiment(experiment.id)
    assert (ended.state, ended.best_trial_id, world.heard(experiment.id)) == (
        ExperimentState.COMPLETED,
        failed.id,
        heard,
    )
    with pytest.raises(errors.Refused, match="no failed trial"):
        world.do(experiments.retry, experiment.id)


def test_failed_trials_are_trained_again_while_others_still_run(world: World) -> None:
    experiment = world.scripted(trials=2, max_restarts=0)
    failed, _ = world.trials(experiment.id)
    world.start(failed)
    world.exit(failed, Outcome.FAILED)
    assert world.do(experiments.retry, experiment.id).state is ExperimentState.ACTIVE
    assert world.states(experiment.id) == ["queued", "queued"]
    world.operate(experiment.id, Operation.PAUSE)
    assert world.states(experiment.id) == ["paused", "paused"]


# A search that fails, or forgets to end.


def test_a_search_that_raises_ends_the_experiment_with_its_words(world: World) -> None:
    bug = {"action": "raise", "message": "division by zero"}
    experiment = world.scripted({"validation 0 1": [bug]}, trials=2)
    first, _ = world.trials(experiment.id)
    world.start(first)
    world.validate(first, 1, 1.0)
    assert world.experiment(experiment.id).state is ExperimentState.STOPPING
    assert world.states(experiment.id) == ["stopping", "canceled"]
    world.validate(first, 2, 0.5)
    world.exit(first, Outcome.STOPPED)
    ended = world.experiment(experiment.id)
    assert (ended.state, ended.error) == (
        ExperimentState.ERROR,
        "the search method failed: RuntimeError: division by zero",
    )
    with pytest.raises(errors.Refused, match="fork it instead"):
        world.do(experiments.continue_, experiment.id)


def test_a_search_that_gives_up_ends_the_experiment(world: World) -> None:
    fail = {"action": "finish", "failure": "the metric is missing"}
    experiment = world.scripted({"start": [fail]})
    assert (experiment.state, experiment.error) == (ExperimentState.ERROR, "the metric is missing")
    assert world.states(experiment.id) == ["canceled"]


def test_a_search_that_creates_nothing_has_failed(world: World) -> None:
    experiment = world.scripted(trials=0)
    assert experiment.state is ExperimentState.ERROR


# Deletion.


def test_deleting_takes_the_rows_when_the_files_are_gone(world: World) -> None:
    experiment, other = in_state(world, "completed"), in_state(world, "completed")
    with pytest.raises(errors.Refused, match="has not ended"):
        world.do(experiments.delete, world.create().id)
    assert world.do(experiments.delete, experiment.id).state is ExperimentState.DELETING
    assert world.do(experiments.delete, experiment.id).state is ExperimentState.DELETING
    world.do(experiments.record_delete_failed, experiment.id, "no permission")
    assert world.experiment(experiment.id).state is ExperimentState.DELETE_FAILED
    world.do(experiments.record_deleted, experiment.id)
    assert world.experiment(experiment.id).state is ExperimentState.DELETE_FAILED
    world.do(experiments.delete, experiment.id)
    for _ in range(2):
        world.do(experiments.record_deleted, experiment.id)
    with pytest.raises(errors.NotFound):
        world.experiment(experiment.id)

    def counts(tx: Tx) -> dict[str, int]:
        names = ("experiments", "trials", "allocations", "checkpoints", "metrics", "searches", "search_snapshots")
        count = sa.func.count()
        return {n: tx.execute(sa.select(count).select_from(tables.metadata.tables[n])).scalar_one() for n in names}

    left = world.look(counts)
    assert left == {**dict.fromkeys(left, 1), "experiments": 2, "trials": 2, "searches": 2}
    assert world.experiment(other.id).state is ExperimentState.COMPLETED


def test_what_a_registered_model_or_another_experiment_needs_is_not_deleted(world: World) -> None:
    experiment = in_state(world, "completed")
    (trial,) = world.trials(experiment.id)
    other = world.create({"name": "single", "metric": "loss", "source_trial_id": trial.id})
    with pytest.raises(errors.Refused, match=f"experiment {other.id} begins with"):
        world.do(experiments.delete, experiment.id)
    world.operate(other.id, Operation.KILL)
    assert trial.latest_checkpoint is not None
    world.do(register, trial.latest_checkpoint)
    with pytest.raises(errors.Refused, match="version 1 of model m"):
        world.do(experiments.delete, experiment.id)
    assert world.look(checkpoint_rows.require, trial.latest_checkpoint).experiment_id == experiment.id


def test_a_change_that_is_taken_back_leaves_the_search_as_it_was(world: World) -> None:
    experiment = world.create(RANDOM)
    first, _ = world.trials(experiment.id)
    world.start(first)
    before = (
        world.trials(experiment.id),
        world.heard(experiment.id),
        dataclasses.replace(world.experiment(experiment.id)),
    )

    class Crash(Exception):
        pass

    def crash(tx: Tx) -> None:
        from determined.master.lifecycle import allocations
        from determined.wire.outcome import Ending

        allocations.record_exit(tx, world.live(first).id, Ending(outcome=Outcome.COMPLETED, exit_code=0))
        raise Crash

    for _ in range(3):
        with pytest.raises(Crash):
            world.do(crash)
    after = world.trials(experiment.id), world.heard(experiment.id), world.experiment(experiment.id)
    assert after == before
    world.exit(first)
    known, answers, recorded = world.replayed(experiment.id)
    assert answers == recorded and known["created"] == 3
