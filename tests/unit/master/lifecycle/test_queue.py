"""The queue: what scheduling is told, what people see, and how they change the order."""

from __future__ import annotations

import time

import pytest

from determined import errors
from determined.master.lifecycle import allocations, experiments, queue, tasks
from determined.master.operations import Operation
from determined.master.records import Experiment
from determined.master.scheduling import Fifo, Node, Placement, Priority, plan
from determined.master.states import TrialState
from determined.wire.outcome import Outcome
from tests.unit.master.lifecycle.world import HERE, World


def line(world: World) -> list[str]:
    return [entry.job_id for entry in world.look(queue.entries)]


def several(world: World, count: int, **config: object) -> list[Experiment]:
    found = []
    for _ in range(count):
        found.append(world.create(**config))  # type: ignore[arg-type]
        world.later()
    return found


def test_requests_say_what_the_config_asks_for(world: World) -> None:
    resources = {"slots_per_trial": 2, "max_slots": 4, "priority": 7, "weight": 2, "is_single_node": True}
    experiment = world.create(resources=resources)
    (request,) = world.look(queue.requests)
    (trial,) = world.trials(experiment.id)
    assert (request.id, request.job, request.slots) == (f"trial-{trial.id}", f"experiment-{experiment.id}", 2)
    assert (request.priority, request.weight, request.max_slots, request.single_node) == (7, 2.0, 4, True)
    assert (request.running, request.stopping, request.preemptible) == (None, False, True)
    world.do(allocations.assign, request.id, Placement({"a": (0,), "b": (3,)}), "local")
    (request,) = world.look(queue.requests)
    assert request.running == Placement({"a": (0,), "b": (3,)})
    world.operate(experiment.id, Operation.PAUSE)
    assert world.look(queue.requests)[0].stopping
    world.exit(trial, Outcome.STOPPED)
    assert world.look(queue.requests) == []


def test_trials_of_a_job_stand_together_in_their_order(world: World) -> None:
    older = world.scripted(trials=12)
    world.later()
    world.scripted(trials=1)
    requests = world.look(queue.requests)
    started = [start.id for start in plan(requests, [Node("here", tuple(range(12)))], Fifo()).starts]
    assert started == [f"trial-{trial.id}" for trial in world.trials(older.id)]


def test_each_pool_has_its_own_queue(world: World) -> None:
    world.create()
    other = world.create(resources={"resource_pool": "gpu"})
    world.do(tasks.create, tasks.NewTask(kind="job", name="j", config={}, resource_pool="gpu"))
    (trial,) = world.trials(other.id)
    assert [r.id for r in world.look(queue.requests, "gpu", "local")] == [f"trial-{trial.id}", "job-1"]
    assert len(world.look(queue.requests, "local", "local")) == 1
    world.assign(trial)
    # Where it runs it holds slots, whatever it was meant for.
    assert len(world.look(queue.requests, "local", "local")) == 2


def test_people_see_jobs_with_what_they_hold_and_wait_for(world: World) -> None:
    experiment = world.scripted(trials=3, name="mine", resources={"slots_per_trial": 2})
    world.do(tasks.create, tasks.NewTask(kind="notebook", name="n", config={}, priority=1))
    first, _, _ = world.trials(experiment.id)
    world.start(first)
    notebook, job = world.look(queue.entries)
    assert (notebook.job_id, notebook.kind, notebook.state, notebook.waiting) == ("notebook-1", "notebook", "QUEUED", 1)
    assert (job.job_id, job.name, job.kind, job.state) == (
        f"experiment-{experiment.id}",
        "mine",
        "experiment",
        "RUNNING",
    )
    assert (job.slots_wanted, job.slots_held, job.waiting, job.running, job.priority) == (6, 2, 2, 1, 42)


def test_a_job_can_be_put_before_or_behind_another(world: World) -> None:
    a, b, c = (f"experiment-{experiment.id}" for experiment in several(world, 3))
    assert line(world) == [a, b, c]
    world.do(queue.edit_job, c, ahead_of=a)
    assert line(world) == [c, a, b]
    world.do(queue.edit_job, c, behind=a)
    assert line(world) == [a, c, b]
    world.do(queue.edit_job, a, behind=b)
    assert line(world) == [c, b, a]


def test_again_and_again_between_two_there_is_always_room(world: World) -> None:
    first, second, *others = (f"experiment-{experiment.id}" for experiment in several(world, 4))
    for turn in range(60):
        moved = others[turn % 2]
        world.do(queue.edit_job, moved, behind=first)
        assert line(world)[:2] == [first, moved]
        world.do(queue.edit_job, moved, ahead_of=second)
        found = line(world)
        assert found.index(moved) + 1 == found.index(second)


def test_put_next_to_another_it_gets_that_ones_priority(world: World) -> None:
    several(world, 1, resources={"priority": 10})
    several(world, 1)
    world.do(tasks.create, tasks.NewTask(kind="job", name="j", config={}))
    world.do(queue.edit_job, "job-1", behind="experiment-1")
    assert line(world) == ["experiment-1", "job-1", "experiment-2"]
    world.do(queue.edit_job, "job-1", priority=99, weight=3.0, resource_pool="gpu")
    entry = world.look(queue.entries)[-1]
    assert (entry.job_id, entry.priority, entry.weight, entry.pool) == ("job-1", 99, 3.0, "gpu")
    world.do(queue.edit_job, "experiment-2", priority=1)
    assert world.experiment(2).config["resources"]["priority"] == 1


def test_what_cannot_be_done_is_said(world: World) -> None:
    (ended,) = several(world, 1)
    world.operate(ended.id, Operation.KILL)
    several(world, 1)
    with pytest.raises(errors.Refused, match="no longer waits"):
        world.do(queue.edit_job, f"experiment-{ended.id}", priority=1)
    with pytest.raises(errors.NotFound, match="no job experiment-1"):
        world.do(queue.edit_job, "experiment-2", ahead_of="experiment-1")
    for both in ({"ahead_of": "experiment-2"}, {"ahead_of": "a", "behind": "b"}):
        with pytest.raises(errors.BadRequest):
            world.do(queue.edit_job, "experiment-2", **both)  # type: ignore[arg-type]
    for unknown in ("experiment-9", "job-9", "x", "experiment-"):
        with pytest.raises(errors.NotFound):
            world.do(queue.edit_job, unknown, priority=1)


def test_a_more_important_job_makes_another_leave_and_it_comes_back(world: World) -> None:
    modest = world.create()
    (trial,) = world.trials(modest.id)
    world.start(trial)
    urgent = world.create(resources={"priority": 1})
    nodes, policy = [Node("here", (0,))], Priority()
    (stop,) = plan(world.look(queue.requests), nodes, policy).stops
    assert stop.id == f"trial-{trial.id}"
    from determined.wire.reports import StopReason

    world.do(allocations.ask_stop, world.live(trial).id, StopReason.PREEMPTED)
    assert plan(world.look(queue.requests), nodes, policy).starts == ()
    world.exit(trial, Outcome.STOPPED)
    (start,) = plan(world.look(queue.requests), nodes, policy).starts
    assert start.id == f"trial-{world.trials(urgent.id)[0].id}"
    world.do(allocations.assign, start.id, start.placement, "local")
    world.exit(world.trials(urgent.id)[0])
    assert world.trial(trial).state is TrialState.QUEUED
    assert plan(world.look(queue.requests), nodes, policy).starts[0].id == f"trial-{trial.id}"


def test_what_was_started_by_hand_is_not_in_the_queue(world: World) -> None:
    experiment = world.create(unmanaged=True, external_id="mine")
    assert world.look(queue.requests) == [] and experiment.trial_count == 0
    assert world.do(experiments.settle, experiment.id).id == experiment.id


def test_a_long_queue_is_read_quickly(world: World) -> None:
    for _ in range(3):
        world.scripted(trials=1000)
    world.do(allocations.assign, "trial-1", HERE, "local")
    best = 1e9
    for _ in range(5):
        begun = time.perf_counter()
        assert len(world.look(queue.requests)) == 3000
        best = min(best, time.perf_counter() - begun)
    assert best < 0.2


def test_what_was_lost_again_and_again_says_when_it_is_tried_again(world: World) -> None:
    (trial,) = world.trials(world.create().id)
    for _ in range(4):
        world.start(trial)
        world.exit(trial, Outcome.LOST)
        world.later(600.0)
    world.start(trial)
    world.exit(trial, Outcome.LOST)
    (entry,) = world.look(queue.entries)
    assert entry.waiting == 1 and entry.retry_at is not None and entry.retry_at > world.clock[0]
    world.later(600.0)
    (entry,) = world.look(queue.entries)
    assert entry.retry_at is None
