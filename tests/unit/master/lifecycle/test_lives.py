"""Random lives of experiments: whatever happens in whatever order, no state is illegal and nothing is stuck.

Each life is made from its number and can be lived again. Changes crash on the way, are tried again, come twice, and the
master's memory is lost between them; in the end the same search is replayed from its events.
"""

from __future__ import annotations

import pathlib
import random
from typing import Any

import pytest

from determined import errors
from determined.master.lifecycle import allocations, checkpoints, experiments, queue, trials
from determined.master.operations import Operation
from determined.master.records import Allocation, AllocationState, Trial
from determined.master.states import ExperimentState, TrialState, Wanted
from determined.master.store import allocations as allocation_rows
from determined.master.store import checkpoints as checkpoint_rows
from determined.master.store import experiments as experiment_rows
from determined.master.store import metrics, searches
from determined.master.store import trials as trial_rows
from determined.master.store.database import Tx
from determined.wire.outcome import Ending, Outcome
from determined.wire.reports import CheckpointReport, StopReason
from tests.unit.master.lifecycle.world import HERE, World, open_world

SEARCHERS: list[dict[str, Any]] = [
    {"name": "single", "metric": "loss"},
    {"name": "random", "metric": "loss", "max_trials": 6, "max_concurrent_trials": 3},
    {"name": "grid", "metric": "loss", "max_concurrent_trials": 2},
    {
        "name": "async_halving",
        "metric": "loss",
        "max_trials": 8,
        "num_rungs": 3,
        "divisor": 2,
        "max_length": {"batches": 8},
        "max_concurrent_trials": 4,
    },
    {
        "name": "async_halving",
        "metric": "loss",
        "max_trials": 8,
        "num_rungs": 3,
        "divisor": 2,
        "max_length": {"batches": 8},
        "max_concurrent_trials": 4,
        "stop_once": False,
    },
    {"name": "adaptive_asha", "metric": "loss", "max_trials": 8, "divisor": 2, "max_length": {"batches": 8}},
    {
        "name": "pbt",
        "metric": "loss",
        "population_size": 4,
        "num_rounds": 3,
        "length_per_round": {"batches": 4},
    },
]
HYPERPARAMETERS = {"lr": {"type": "double", "minval": 0.0, "maxval": 1.0, "count": 5}}
LENGTH = 8


class Crash(Exception):
    """The master died before it could commit."""


def loss(trial: Trial, steps: int) -> float:
    """What a trial reaches depends on its values alone, as training that is exact does."""
    return float(round(trial.hparams["lr"] * 7 + 1 / (1 + steps), 6))


class Life:
    """One experiment, two slots, and everything that can befall them."""

    def __init__(self, world: World, seed: int, calm: bool) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.calm = calm
        searcher = SEARCHERS[seed % len(SEARCHERS)]
        self.experiment_id = world.create(searcher, hyperparameters=HYPERPARAMETERS, max_restarts=3, seed=seed).id
        self.steps: dict[str, int] = {}
        self.told: set[tuple[int, int]] = set()

    def do(self, change: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a change; sometimes it crashes first, sometimes it comes twice, sometimes memory is lost."""
        if not self.calm and self.rng.random() < 0.1:

            def crash(tx: Tx) -> None:
                change(tx, *args, **kwargs)
                raise Crash

            with pytest.raises((Crash, errors.Refused)):
                self.world.do(crash)
        if not self.calm and self.rng.random() < 0.05:
            self.world.do(lambda tx: tx.memory.clear())
        done = self.world.do(change, *args, **kwargs)
        if not self.calm and self.rng.random() < 0.1 and change in (allocations.record_exit, experiments.operate):
            self.world.do(change, *args, **kwargs)
        return done

    # What happens.

    def start_one(self) -> bool:
        live = self.world.look(allocation_rows.live)
        queued = self.world.queue()
        if len(live) >= 2 or not queued:
            return False
        allocation = self.do(allocations.assign, self.rng.choice(queued) if not self.calm else queued[0], HERE, "p")
        assert allocation is not None
        trial = self.world.look(trial_rows.require, allocation.trial_id)
        cut = self.world.look(checkpoint_rows.get, trial.latest_checkpoint) if trial.latest_checkpoint else None
        self.steps[allocation.id] = cut.steps_completed if cut else 0
        rows = self.world.look(metrics.rows, trial.id, "validation")
        assert all(row.steps_completed <= self.steps[allocation.id] for row in rows)
        self.do(allocations.record_running, allocation.id)
        return True

    def step_one(self) -> bool:
        live = self.world.look(allocation_rows.live)
        if not live:
            return False
        allocation = self.rng.choice(live) if not self.calm else live[0]
        assert allocation.trial_id is not None
        trial = self.world.look(trial_rows.require, allocation.trial_id)
        target = allocation.target or LENGTH
        if allocation.state is AllocationState.STOPPING and self.rng.random() < (1.0 if self.calm else 0.5):
            self.leave(allocation, trial)
            return True
        if self.steps[allocation.id] >= target:
            self.end(allocation, Outcome.COMPLETED)
            return True
        self.steps[allocation.id] += 1
        self.report(trial, self.steps[allocation.id])
        if self.steps[allocation.id] >= target or self.rng.random() < 0.4:
            self.save(allocation, self.steps[allocation.id])
        return True

    def report(self, trial: Trial, steps: int) -> None:
        from tests.unit.master.lifecycle.world import _validate

        self.do(_validate, trial, steps, {"loss": loss(trial, steps)})

    def save(self, allocation: Allocation, steps: int) -> None:
        report = CheckpointReport(uuid=f"{allocation.id}-{steps}", steps_completed=steps, time=self.world.clock[0])
        self.do(checkpoints.record, allocation, report)

    def leave(self, allocation: Allocation, trial: Trial) -> None:
        if allocation.stop_reason is not StopReason.KILLED:
            self.save(allocation, self.steps[allocation.id])
        self.end(allocation, Outcome.STOPPED)

    def end(self, allocation: Allocation, outcome: Outcome) -> None:
        self.do(allocations.record_exit, allocation.id, Ending(outcome=outcome, exit_code=1))

    def fail_one(self) -> bool:
        live = self.world.look(allocation_rows.live)
        if not live:
            return False
        outcome = self.rng.choice([Outcome.LOST, Outcome.LOST, Outcome.FAILED, Outcome.STOPPED, Outcome.INVALID_HP])
        self.end(self.rng.choice(live), outcome)
        return True

    def collect(self) -> None:
        for uuid in self.world.look(checkpoints.deletable, self.experiment_id):
            self.do(checkpoints.mark_deleting, uuid)
            self.do(checkpoints.record_deleted, uuid)

    def people(self) -> None:
        state = self.world.experiment(self.experiment_id).state
        choices: list[Any] = [Operation.PAUSE, Operation.ACTIVATE, Operation.ACTIVATE, "preempt", "kill trial"]
        if self.rng.random() < 0.2 or state.has_ended:
            choices += [Operation.CANCEL, Operation.KILL, "continue", "retry", "continue trial"]
        choice = self.rng.choice(choices)
        found = self.world.trials(self.experiment_id)
        trial = self.rng.choice(found)
        try:
            match choice:
                case "preempt":
                    for allocation in self.world.look(allocation_rows.live)[:1]:
                        self.do(allocations.ask_stop, allocation.id, StopReason.PREEMPTED)
                case "kill trial":
                    if self.rng.random() < 0.3:
                        self.do(trials.operate, trial.id, Operation.KILL)
                case "continue":
                    self.do(experiments.continue_, self.experiment_id)
                case "retry":
                    self.do(experiments.retry, self.experiment_id)
                case "continue trial":
                    self.do(trials.continue_trial, trial.id)
                case _:
                    self.do(experiments.operate, self.experiment_id, choice)
        except errors.Refused:
            pass

    # What must hold.

    def check(self) -> None:
        world = self.world
        experiment = world.experiment(self.experiment_id)
        found = world.trials(self.experiment_id)
        live = {allocation.task_id: allocation for allocation in world.look(allocation_rows.live)}
        assert [trial.number for trial in found] == [*range(experiment.trial_count)]
        for trial in found:
            allocation = live.pop(f"trial-{trial.id}", None)
            assert trial.state.has_allocation is (allocation is not None), trial
            assert trial.state.has_ended is (trial.ended_at is not None) is (trial.exit is not None), trial
            if allocation is not None:
                assert allocation.run_epoch == trial.run_epoch
                assert (allocation.state is AllocationState.STOPPING) is (trial.state is TrialState.STOPPING)
                if experiment.wanted is not Wanted.ACTIVE:
                    assert trial.state is TrialState.STOPPING
            elif experiment.wanted.is_final:
                assert trial.state.has_ended
            for uuid in (trial.latest_checkpoint, trial.source_checkpoint):
                if uuid is not None and not trial.state.has_ended:
                    checkpoint = world.look(checkpoint_rows.require, uuid)
                    assert checkpoint.state.value == "completed", (trial, checkpoint)
        assert not live
        if experiment.state.has_ended:
            assert all(trial.state.has_ended for trial in found)
        else:
            assert not all(trial.state.has_ended for trial in found)
        values = [trial.best_metric for trial in found if trial.best_metric is not None]
        assert experiment.best_metric == (min(values) if values else None)
        assert experiment.checkpoint_count == len(world.look(checkpoint_rows.usable, experiment_id=self.experiment_id))
        self.check_search()

    def check_search(self) -> None:
        """Each validation was told once and in order, each exit once, and nothing of a trial after its exit."""
        last: dict[int, int] = {}
        gone: set[int] = set()
        for number, event in enumerate(self.world.look(searches.events, self.experiment_id)):
            assert event.number == number
            if event.kind == "validation":
                assert event.trial is not None and event.trial not in gone
                assert last.get(event.trial, -1) < event.told["batches"]
                last[event.trial] = event.told["batches"]
            elif event.kind == "exit":
                assert event.trial not in gone and event.trial is not None
                gone.add(event.trial)
        known, answers, recorded = self.world.replayed(self.experiment_id)
        assert answers == recorded
        self.known = known

    def finish(self) -> None:
        """Whatever has happened, when people want it to go on and nothing more breaks it comes to its end."""
        if not self.world.experiment(self.experiment_id).wanted.is_final:
            self.world.operate(self.experiment_id, Operation.ACTIVATE) if not self.world.experiment(
                self.experiment_id
            ).state.has_ended else None
        self.calm = True
        for _ in range(2000):
            if self.world.experiment(self.experiment_id).state.has_ended:
                break
            self.world.later(100)
            moved = self.start_one()
            if not (self.step_one() or moved):
                raise AssertionError(f"stuck: {self.world.states(self.experiment_id)}")
        ended = self.world.experiment(self.experiment_id)
        assert ended.state.has_ended and ended.state is not ExperimentState.DELETING
        self.check()

    def table(self) -> list[tuple[Any, ...]]:
        """What came of it: each trial's values, how far it came and how good it was."""
        return [
            (t.number, t.hparams["lr"], t.seed, t.state.value, t.copy_of, t.searched_steps, t.best_metric)
            for t in self.world.trials(self.experiment_id)
        ]


@pytest.mark.parametrize("seed", range(14))
def test_no_life_reaches_an_illegal_state_or_gets_stuck(
    tmp_path: pathlib.Path, empty_database: pathlib.Path, seed: int
) -> None:
    with open_world(tmp_path, empty_database) as world:
        life = Life(world, seed, calm=False)
        for turn in range(60):
            world.later(life.rng.choice([0.1, 1.0, 30.0]))
            happens = life.rng.random()
            if happens < 0.25:
                life.start_one()
            elif happens < 0.75:
                life.step_one()
            elif happens < 0.85:
                life.fail_one()
            elif happens < 0.9:
                life.collect()
            else:
                life.people()
            if turn % 6 == 0:
                life.check()
        life.finish()
        life.collect()
        policy_bound = 2 * world.experiment(life.experiment_id).trial_count
        assert world.experiment(life.experiment_id).checkpoint_count <= policy_bound


@pytest.mark.parametrize("seed", range(7, 14))
def test_losses_and_crashes_change_nothing_in_what_a_search_comes_to(
    tmp_path: pathlib.Path, empty_database: pathlib.Path, seed: int
) -> None:
    """One slot, so that the order is the same: gangs are lost, the master crashes, and the table is the same."""
    tables = []
    for is_disturbed in (False, True):
        folder = tmp_path / str(is_disturbed)
        folder.mkdir()
        with open_world(folder, empty_database) as world:
            life = Life(world, seed, calm=True)
            trouble = random.Random(seed)
            for _ in range(3000):
                if world.experiment(life.experiment_id).state.has_ended:
                    break
                world.later(100)
                live = world.look(allocation_rows.live)
                if live and is_disturbed and trouble.random() < 0.1:
                    life.calm = False
                    life.end(live[0], Outcome.LOST)
                elif live:
                    life.step_one()
                else:
                    assert life.start_one()
                life.calm = True
            assert world.experiment(life.experiment_id).state is ExperimentState.COMPLETED
            tables.append(life.table())
    assert tables[0] == tables[1]


def test_every_other_place_in_line_is_empty_when_nothing_is_left(world: World) -> None:
    experiment = world.create(SEARCHERS[1], hyperparameters=HYPERPARAMETERS)
    for _ in range(6):
        (first, *_) = [t for t in world.trials(experiment.id) if t.state is TrialState.QUEUED]
        world.train(first)
    assert world.look(queue.requests) == [] and world.look(queue.entries) == []
    assert world.look(experiment_rows.ids, [ExperimentState.COMPLETED]) == [experiment.id]
