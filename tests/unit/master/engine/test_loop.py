"""The engine's rounds: what is wanted starts, stops and ends, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
import io
import pathlib
import tarfile
from collections.abc import Iterator

import pytest

from determined import config as configs
from determined.master.lifecycle import experiments
from determined.master.operations import Operation
from determined.master.scheduling import Node
from determined.master.states import ExperimentState, TrialState
from determined.master.store import allocations as allocation_rows
from determined.master.store.database import temporary_database
from determined.testing.fake_pool import FakeGang
from determined.wire.outcome import Ending, Outcome
from tests.unit.master.engine.scenes import Scene, Training

SINGLE = {"searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 16}}}
RANDOM = {
    "searcher": {"name": "random", "metric": "loss", "max_trials": 6, "max_length": {"batches": 16}},
    "hyperparameters": {"x": {"type": "double", "minval": 0.0, "maxval": 1.0}},
    "reproducibility": {"experiment_seed": 7},
}


@pytest.fixture
def scene(tmp_path: pathlib.Path) -> Iterator[Scene]:
    with temporary_database(str(tmp_path / "master.db")) as database:
        scene = Scene(database, tmp_path)
        yield scene
        assert scene.pool.faults == []


def test_a_trial_is_trained_to_its_end(scene: Scene) -> None:
    scene.submit(**SINGLE)
    scene.play(Training())
    [trial] = scene.trials()
    assert scene.experiment().state is ExperimentState.COMPLETED
    assert (trial.state, trial.steps_completed, trial.latest_checkpoint) == (TrialState.COMPLETED, 16, "trial-1.1-16")
    assert trial.best_metric == 1 / 16
    assert trial.summary_metrics["training"]["loss"]["count"] == 4


def test_a_search_is_played_to_its_end_by_as_many_at_once_as_there_are_slots(scene: Scene) -> None:
    scene.submit(**RANDOM)
    scene.engine.round()
    assert len(scene.pool.running) == 4
    scene.play(Training())
    assert scene.experiment().state is ExperimentState.COMPLETED
    assert [trial.state for trial in scene.trials()] == [TrialState.COMPLETED] * 6


def test_a_gang_is_told_all_it_needs(scene: Scene) -> None:
    scene.submit(**SINGLE, resources={"slots_per_trial": 4}, preemption_timeout=7)
    scene.engine.round()
    [gang] = scene.pool.running
    one, two = gang.gang.specs
    assert (one.nodes, one.node_rank, two.node_rank, one.slots, two.slots) == (2, 0, 1, 2, 2)
    assert (one.entrypoint, one.ranks, one.grace_seconds) == (["model_def:Digits"], None, 7.0)
    assert one.run_folder == scene.settings.state_dir / "runs" / "trial-1"
    assert one.checkpoint_storage is not None
    assert one.checkpoint_storage["container_path"] == str(scene.settings.state_dir / "checkpoints")
    assert one.master is not None
    assert one.master.run_epoch == 1
    assert one.master.session_token in one.secrets


def test_packages_are_named_by_a_file_of_the_code(scene: Scene) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        entry = tarfile.TarInfo("deps/requirements.txt")
        entry.size = 6
        tar.addfile(entry, io.BytesIO(b"attrs\n"))
    scene.settings.contexts_dir.mkdir()
    (scene.settings.contexts_dir / "abc.tar.gz").write_bytes(archive.getvalue())
    for name in ("./deps/requirements.txt", "missing.txt"):
        config = configs.load({**SINGLE, "entrypoint": "m:C", "environment": {"requirements": name}, "max_restarts": 0})
        new = experiments.NewExperiment(config=config, context_sha256="abc")
        scene.database.write_now(experiments.create, new)
    for _ in range(3):
        scene.engine.round()
    [gang] = scene.pool.running
    assert gang.gang.specs[0].requirements == "attrs\n"
    assert "missing.txt" in (scene.trials(2)[0].error or "")


@pytest.mark.parametrize("device", ["cpu", "cuda", "rocm"])
def test_variables_are_those_of_the_pools_device(scene: Scene, device: str) -> None:
    scene.pool.device = device
    variables = {name: [f"WHERE={name}"] for name in ("cpu", "cuda", "rocm")}
    scene.submit(**SINGLE, environment={"environment_variables": variables})
    scene.engine.round()
    assert scene.pool.running[0].gang.specs[0].environment["WHERE"] == device


def test_a_machine_that_a_log_policy_warns_of_is_left_to_others(scene: Scene) -> None:
    scene.submit(**SINGLE, log_policies=[{"name": "ECC", "pattern": "x", "action": "exclude_node"}])
    scene.engine.round()
    [gang] = scene.pool.running
    [node] = gang.gang.placement
    scene.pool.end(gang.gang.allocation_id, Ending(outcome=Outcome.FAILED, exit_code=1, policies=["ECC"]))
    for _ in range(2):
        scene.engine.round()
    [gang] = scene.pool.running
    assert [*gang.gang.placement] != [node]
    scene.pool.end(gang.gang.allocation_id, Ending(outcome=Outcome.FAILED, exit_code=1, policies=["ECC"]))
    for _ in range(2):
        scene.engine.round()
    assert "the pool has no other machine" in (scene.trials()[0].error or "")


def test_a_new_master_finds_its_gangs_by_looking(scene: Scene) -> None:
    scene.submit(**SINGLE)
    scene.engine.round()
    scene.restart()
    scene.engine.round()
    assert scene.pool.starts == 1
    scene.play(Training())
    assert scene.experiment().state is ExperimentState.COMPLETED


def test_what_was_assigned_and_never_started_is_started_by_the_next_master(scene: Scene) -> None:
    scene.submit(**SINGLE)
    scene.pool.is_out_of_reach = True
    lane = scene.engine.lanes["default"]
    lane.nodes = scene.pool.nodes
    with pytest.raises(Exception, match="does not answer"):
        lane.act()
    assert len(scene.database.read_now(allocation_rows.live)) == 1
    scene.pool.is_out_of_reach = False
    scene.restart()
    scene.engine.round()
    assert len(scene.pool.running) == 1


def test_an_engine_out_of_reach_loses_nothing(scene: Scene) -> None:
    scene.submit(**SINGLE)
    scene.engine.round()
    scene.pool.is_out_of_reach = True
    scene.engine.round()
    scene.pool.is_out_of_reach = False
    scene.engine.round()
    assert [gang.gang.allocation_id for gang in scene.pool.running] == ["trial-1.1"]


@pytest.mark.parametrize("without_trace", [True, False])
def test_a_lost_machine_costs_no_restart(scene: Scene, without_trace: bool) -> None:
    scene.submit(**SINGLE)
    scene.engine.round()
    training = Training()
    [gang] = scene.pool.running
    training.report(gang, 4)
    scene.ship(gang)
    training.report(gang, 8)  # acknowledged by nobody
    scene.pool.lose(next(iter(gang.gang.placement)), without_trace)
    scene.engine.round()
    scene.engine.round()
    [again] = scene.pool.running
    assert again.run_epoch == 2
    assert again.gang.specs[0].trial is not None
    # What was written down counts where the spool is still there.
    assert again.gang.specs[0].trial.steps_completed == (4 if without_trace else 8)
    assert scene.trials()[0].restarts == 0
    scene.play(training)
    assert scene.experiment().state is ExperimentState.COMPLETED


def test_its_own_failures_are_counted(scene: Scene) -> None:
    scene.submit(**SINGLE, max_restarts=2)
    attempts = []

    def fail(gang: FakeGang) -> Ending:
        attempts.append(gang.gang.allocation_id)
        return Ending(outcome=Outcome.FAILED, exit_code=1, reason="a bug", detail="Traceback: a bug")

    scene.play(fail)
    assert attempts == ["trial-1.1", "trial-1.2", "trial-1.3"]
    assert scene.experiment().state is ExperimentState.ERROR
    assert scene.trials()[0].error == "Traceback: a bug"


def test_paused_and_activated(scene: Scene) -> None:
    scene.submit(**SINGLE)
    scene.engine.round()
    [gang] = scene.pool.running
    training = Training()
    scene.database.write_now(experiments.operate, 1, Operation.PAUSE)
    scene.engine.round()
    assert gang.grace_seconds == pytest.approx(60.0, abs=5.0)
    reply = scene.ship(gang)
    assert reply.stop is not None
    training.report(gang, 4)
    scene.pool.end(gang.gang.allocation_id, Outcome.STOPPED)
    scene.engine.round()
    assert scene.experiment().state is ExperimentState.PAUSED
    scene.engine.round()
    assert scene.pool.running == []
    scene.database.write_now(experiments.operate, 1, Operation.ACTIVATE)
    scene.engine.round()
    [again] = scene.pool.running
    assert again.gang.specs[0].trial is not None
    assert again.gang.specs[0].trial.steps_completed == 4
    scene.play(training)
    assert scene.experiment().state is ExperimentState.COMPLETED


def test_whoever_does_not_stop_is_ended(scene: Scene) -> None:
    scene.submit(**SINGLE, preemption_timeout=5)
    scene.engine.round()
    [gang] = scene.pool.running
    scene.database.write_now(experiments.operate, 1, Operation.CANCEL)
    scene.engine.round()
    scene.engine.round()
    assert (gang.orders, gang.is_running) == (1, True)
    scene.now += 20.0
    scene.engine.round()
    assert not gang.is_running
    scene.engine.round()
    assert scene.experiment().state is ExperimentState.CANCELED


def test_killed_at_once_even_while_it_stops(scene: Scene) -> None:
    scene.submit(**SINGLE)
    scene.engine.round()
    scene.database.write_now(experiments.operate, 1, Operation.CANCEL)
    scene.engine.round()
    scene.database.write_now(experiments.operate, 1, Operation.KILL)
    scene.engine.round()
    assert scene.pool.running == []
    scene.engine.round()
    assert scene.experiment().state is ExperimentState.CANCELED


def test_somebody_more_important_makes_room(scene: Scene) -> None:
    scene.submit(**SINGLE, resources={"slots_per_trial": 4, "priority": 50})
    scene.engine.round()
    [first] = scene.pool.running
    scene.submit(**SINGLE, resources={"slots_per_trial": 4, "priority": 10})
    scene.engine.round()
    assert first.orders == 1
    why = scene.engine.why_of("trial-2")
    assert why is not None
    assert "trial-1" in why.text
    scene.pool.end(first.gang.allocation_id, Outcome.STOPPED)
    scene.engine.round()
    [second] = scene.pool.running
    assert second.gang.allocation_id == "trial-2.1"
    scene.play(Training())
    assert {scene.experiment(1).state, scene.experiment(2).state} == {ExperimentState.COMPLETED}


def test_a_machine_that_fails_gang_after_gang_gets_no_more(tmp_path: pathlib.Path) -> None:
    with temporary_database(str(tmp_path / "master.db")) as database:
        scene = Scene(database, tmp_path, [Node("bad", (0, 1)), Node("good", (0,))])
        scene.pool.refuses.add("bad")
        scene.submit(**RANDOM)
        for _ in range(300):
            scene.engine.round()
            scene.now += 1.0
            for gang in scene.pool.running:
                ending = Training()(gang)
                scene.ship(gang)
                scene.pool.end(gang.gang.allocation_id, ending)
            if scene.experiment().state.has_ended:
                break
        assert scene.experiment().state is ExperimentState.COMPLETED
        assert "3 gangs in a row" in scene.engine.machines.get("default", "bad").quarantine
        losses = sum(trial.run_epoch - 1 for trial in scene.trials())
        assert losses <= 3
        assert all(trial.restarts == 0 for trial in scene.trials())
        scene.restart()
        assert scene.engine.machines.get("default", "bad").quarantine
        assert not scene.engine.machines.edit("default", "bad", enabled=True).quarantine


def test_a_machine_that_is_switched_off_is_left(scene: Scene) -> None:
    scene.submit(**SINGLE)
    scene.engine.round()
    [gang] = scene.pool.running
    [node] = gang.gang.placement
    scene.engine.machines.edit("default", node, enabled=False)
    scene.engine.round()
    assert gang.orders == 1
    scene.pool.end(gang.gang.allocation_id, Outcome.STOPPED)
    scene.engine.round()
    [again] = scene.pool.running
    assert [*again.gang.placement] != [node]


def test_what_cannot_be_prepared_is_its_own_fault(scene: Scene) -> None:
    scene.submit(**{**SINGLE, "entrypoint": None}, max_restarts=1)
    for _ in range(4):
        scene.engine.round()
    assert scene.experiment().state is ExperimentState.ERROR
    assert "entrypoint" in (scene.trials()[0].error or "")


def test_a_gang_that_is_over_and_still_runs_is_ended(scene: Scene) -> None:
    scene.submit(**SINGLE)
    scene.engine.round()
    scene.engine.round()
    [gang] = scene.pool.running
    del scene.pool.gangs[gang.gang.allocation_id]
    scene.engine.round()
    scene.pool.gangs[gang.gang.allocation_id] = gang
    scene.pool.faults.clear()
    scene.engine.round()
    assert not gang.is_running


def test_a_running_engine_starts_at_once_what_is_submitted(scene: Scene) -> None:
    async def go() -> float:
        loop = asyncio.get_running_loop()
        started = asyncio.Event()
        scene.pool.on_start = lambda gang: loop.call_soon_threadsafe(started.set)
        running = asyncio.create_task(scene.engine.run())
        try:
            began = loop.time()
            await asyncio.to_thread(scene.submit, **SINGLE)
            await asyncio.wait_for(started.wait(), 5.0)
            return loop.time() - began
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    scene.now = 1.0
    # Not the second that the next look would take.
    assert asyncio.run(go()) < 0.5
