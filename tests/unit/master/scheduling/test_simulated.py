"""Hundreds of thousands of random events: what holds after each of them, and what holds in the long run.

Set ``SIMULATED_EVENTS`` to try more, such as 1000000; a failure names the seed that repeats it.
"""

from __future__ import annotations

import dataclasses
import heapq
import os
import random
from collections import Counter
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import strategies

from determined.master.scheduling import (
    Cause,
    FairShare,
    Fifo,
    Node,
    Placement,
    Plan,
    Policy,
    Priority,
    Request,
    plan,
)
from determined.master.scheduling.fit import Room
from determined.testing.imaginary_cluster import ImaginaryCluster, check, random_event, random_nodes

EVENTS = int(os.environ.get("SIMULATED_EVENTS", "100000"))
POLICIES: list[Policy] = [Fifo(), Priority(), FairShare()]
EVENTS_PER_SEED = 500


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_every_plan_of_a_long_life_keeps_its_promises(policy: Policy) -> None:
    preempted = 0
    for seed in range(EVENTS // len(POLICIES) // EVENTS_PER_SEED + 1):
        draw = random.Random(seed)
        cluster = ImaginaryCluster(random_nodes(draw), policy)
        for number in range(EVENTS_PER_SEED):
            random_event(cluster, draw)
            before = tuple(cluster.requests.values())
            made = cluster.decide()  # checks the plan: nothing twice, gangs whole, limits kept, nobody forgotten
            if isinstance(policy, (Fifo, Priority)):
                check_order(made, before, cluster, f"seed {seed}, event {number}")
        # Nobody is lost: whoever came has ended, or is still known.
        assert cluster.submitted == cluster.ended + len(cluster.requests), f"seed {seed}"
        preempted += cluster.preempted
    assert (preempted == 0) == isinstance(policy, Fifo)


def check_order(made: Plan, before: tuple[Request, ...], cluster: ImaginaryCluster, where: str) -> None:
    """Nobody behind the first who waits for slots was given slots on which that first one could have started."""
    first = next((name for name, why in made.waiting.items() if why.cause in (Cause.SLOTS, Cause.KEPT)), None)
    by_id = {request.id: request for request in before}
    if first is None or not by_id[first].slots:
        return
    key: Callable[[Request], tuple[float, ...]] = (
        (lambda r: (r.priority, r.queued_at)) if isinstance(cluster.policy, Priority) else (lambda r: (r.queued_at,))
    )
    ahead = [start for start in made.starts if key(by_id[start.id]) <= key(by_id[first])]
    promised = [name for name, why in made.waiting.items() if why.cause is Cause.STOPPING]
    if any(key(by_id[name]) <= key(by_id[first]) for name in promised):
        return  # what seems free belongs to those before it
    running = [dataclasses.replace(by_id[start.id], running=start.placement) for start in ahead]
    room = Room(cluster.nodes, [request for request in (*before, *running) if request.running is not None])
    shape = room.shape(by_id[first].slots, by_id[first].single_node, by_id[first].excluded)
    if shape is None:
        return  # no machine takes anything new
    assert room.fit_now(shape) is None, f"{first} was overtaken on its own slots ({where})"


@dataclasses.dataclass
class Workload:
    """Requests with hidden durations on a cluster that is never idle; time passes from one end to the next."""

    cluster: ImaginaryCluster
    ends: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    slot_seconds: Counter[str] = dataclasses.field(default_factory=Counter)

    def run(self, until: float, duration: Callable[[Request], float], refill: Callable[[], None]) -> None:
        known: set[str] = set()
        while self.cluster.now < until:
            refill()
            self.cluster.decide()
            for request in self.cluster.running:
                if request.stopping:
                    known.discard(request.id)
                    self.ends = [entry for entry in self.ends if entry[1] != request.id]
                    self.cluster.end(request.id)
                elif request.id not in known:
                    known.add(request.id)
                    heapq.heappush(self.ends, (self.cluster.now + duration(request), request.id))
            if not self.ends:
                continue
            at, ended = heapq.heappop(self.ends)
            for request in self.cluster.running:
                self.slot_seconds[request.job] += request.slots * (min(at, until) - self.cluster.now)  # type: ignore[assignment]
            self.cluster.now = at
            known.discard(ended)
            self.cluster.end(ended)


@pytest.mark.slow
@pytest.mark.parametrize("preemption", [True, False])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("sizes", "tolerance"), [((1,), 0.01), ((1, 2), 0.05), ((1, 1, 2, 4), 0.08)])
def test_shares_of_an_hour_follow_the_weights(
    sizes: tuple[int, ...], tolerance: float, seed: int, preemption: bool
) -> None:
    # Slots that are kept while a gang comes together are nobody's, and missing from the share of the gang's job: the
    # larger the gangs, measured against the share, the larger the error.
    draw = random.Random(seed)
    nodes = tuple(Node(f"n{number}", tuple(range(8))) for number in range(4))
    weights = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 4.0}
    cluster = ImaginaryCluster(nodes, FairShare(preemption), patience=60.0)
    workload = Workload(cluster)

    def refill() -> None:
        queued = Counter(request.job for request in cluster.queued)
        for job, weight in weights.items():
            for _ in range(queued[job], 20):
                slots = draw.choice(sizes) if job in "cd" else 1
                cluster.submit(
                    Request(f"{job}{cluster.submitted}", job, slots, weight=weight, queued_at=cluster.submitted)
                )

    workload.run(3600.0, lambda request: draw.uniform(10, 60), refill)
    used = sum(workload.slot_seconds.values())
    assert used > 0.9 * 32 * 3600, "more slots stood idle than keeping some for gangs explains"
    for job, weight in weights.items():
        due = used * weight / sum(weights.values())
        assert abs(workload.slot_seconds[job] - due) <= tolerance * due, (job, workload.slot_seconds[job] / due)


@pytest.mark.parametrize("policy", [Fifo(), Priority(), Priority(preemption=False)])
@pytest.mark.parametrize("seed", range(5))
def test_waiting_is_bounded_by_patience_and_the_longest_duration(seed: int, policy: Policy) -> None:
    # The first in line waits until all machines are closed (patience, doubled over 4 machines: twice), and then for
    # what runs. Here one gang of each size comes, and small ones without end.
    draw = random.Random(seed)
    patience, longest = 30.0, 40.0
    nodes = tuple(Node(f"n{number}", tuple(range(4))) for number in range(4))
    cluster = ImaginaryCluster(nodes, policy, patience=patience)
    gangs = [2, 4, 8, 16]
    arrived: dict[str, float] = {}

    def refill() -> None:
        if gangs and cluster.now > 100 * (4 - len(gangs)):
            arrived[f"gang{len(gangs)}"] = cluster.now
            cluster.submit(Request(f"gang{len(gangs)}", f"gang{len(gangs)}", gangs.pop(0), queued_at=cluster.now))
        while len(cluster.queued) < 20:
            number = cluster.submitted
            cluster.submit(Request(f"s{number}", f"s{number}", draw.choice((1, 1, 2)), queued_at=cluster.now))

    bound = 3 * patience + 20 * 2 + longest  # closing all, the queue before it, the last to end
    ended: set[str] = set()

    def duration(request: Request) -> float:
        if request.id in arrived:
            ended.add(request.id)
            assert cluster.now - arrived[request.id] <= bound, f"{request.id} waited too long"
        return draw.uniform(1, longest)

    Workload(cluster).run(1500.0, duration, refill)
    assert ended == {"gang4", "gang3", "gang2", "gang1"}


@strategies.composite
def clusters(draw: strategies.DrawFn) -> tuple[list[Node], list[Request]]:
    """Machines, what runs on them, and what wants to."""
    sizes = draw(strategies.lists(strategies.integers(0, 5), min_size=1, max_size=4))
    nodes = [Node(f"n{i}", tuple(range(size)), draw(strategies.booleans()), 2) for i, size in enumerate(sizes)]
    free = [(node.id, slot) for node in nodes for slot in node.slots]
    requests = []
    for number in range(draw(strategies.integers(0, 12))):
        wants = draw(strategies.integers(0, 8))
        runs = bool(free) and draw(strategies.booleans())
        parts: dict[str, tuple[int, ...]] = {}
        for _ in range(min(max(1, wants), len(free)) if runs else 0):
            node_id, slot = free.pop()
            parts[node_id] = (*parts.get(node_id, ()), slot)
        requests.append(
            Request(
                id=f"r{number}",
                job=draw(strategies.sampled_from("ab")),
                slots=sum(map(len, parts.values())) if runs else wants,
                priority=draw(strategies.sampled_from((1, 50, 99))),
                weight=2.0,
                queued_at=float(draw(strategies.integers(0, 3))),
                max_slots=draw(strategies.sampled_from((None, 0, 3, 30))) if not runs else None,
                preemptible=draw(strategies.booleans()),
                single_node=draw(strategies.booleans()),
                running=Placement(parts) if runs else None,
                stopping=draw(strategies.booleans()),
            )
        )
    return nodes, requests


@hypothesis.settings(max_examples=300)
@hypothesis.given(clusters(), strategies.sampled_from(POLICIES), strategies.floats(0, 1e9))
def test_any_cluster_whatever_gets_a_plan_that_keeps_its_promises(
    cluster: tuple[list[Node], list[Request]], policy: Policy, now: float
) -> None:
    nodes, requests = cluster
    made = plan(requests, nodes, policy, now=now)
    within_limits = [request for request in requests if request.max_slots is None]
    check(plan(within_limits, nodes, policy, now=now), within_limits, nodes)
    assert all(str(why) for why in made.waiting.values())
    assert len(list(made.waiting)) == len(made.waiting)
