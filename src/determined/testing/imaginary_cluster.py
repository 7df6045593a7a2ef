"""A cluster that exists only as data: requests come, run, end, are preempted, paused and moved, and every pass over it
is checked. Seeded: a failure is replayed from its number."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Sequence

from determined.master.scheduling import Node, Placement, Plan, Policy, Request, Reservation, plan
from determined.master.scheduling.fit import Room


@dataclasses.dataclass
class ImaginaryCluster:
    """Nodes, requests and a clock. ``step`` makes something happen; ``decide`` lets the policy plan and obeys it.

    Whatever is stopped takes part again, with the place in line it had.
    """

    nodes: tuple[Node, ...]
    policy: Policy
    now: float = 0.0
    patience: float = 50.0
    requests: dict[str, Request] = dataclasses.field(default_factory=dict)
    paused: set[str] = dataclasses.field(default_factory=set)  # not to be queued again when they have stopped
    reservation: Reservation | None = None
    submitted: int = 0
    ended: int = 0
    preempted: int = 0
    longest_wait: float = 0.0

    def submit(self, request: Request) -> None:
        self.submitted += 1
        self.requests[request.id] = request

    def end(self, request_id: str) -> None:
        """What runs has done its work, or what was stopped has let go."""
        request = self.requests.pop(request_id)
        if request.stopping and request_id not in self.paused:
            self.requests[request_id] = dataclasses.replace(request, running=None, stopping=False)
        else:
            self.paused.discard(request_id)
            self.ended += 1

    def pause(self, request_id: str) -> None:
        """A user wants it to stop: it holds its slots until it has, and does not come back."""
        request = self.requests[request_id]
        if request.running is None:
            del self.requests[request_id]
            self.ended += 1
        else:
            self.paused.add(request_id)
            self.requests[request_id] = dataclasses.replace(request, stopping=True)

    def decide(self) -> Plan:
        """Plan, check the plan, and do what it says."""
        before = tuple(self.requests.values())
        made = plan(before, self.nodes, self.policy, now=self.now, reservation=self.reservation, patience=self.patience)
        check(made, before, self.nodes)
        self.reservation = made.reservation
        for start in made.starts:
            request = self.requests[start.id]
            self.longest_wait = max(self.longest_wait, self.now - request.queued_at)
            self.requests[start.id] = dataclasses.replace(request, running=start.placement)
        for stop in made.stops:
            self.preempted += 1
            self.requests[stop.id] = dataclasses.replace(self.requests[stop.id], stopping=True)
        return made

    def settle(self) -> int:
        """Decide until there is nothing to decide, with everything that is stopped letting go at once.

        Returns how many passes that took; AssertionError if it goes on and on.
        """
        for passes in range(1, 10 * len(self.requests) + 10):
            made = self.decide()
            stopping = [request.id for request in self.requests.values() if request.stopping]
            for request_id in stopping:
                self.end(request_id)
            if not (made.starts or made.stops or stopping):
                return passes
        raise AssertionError("the policy starts and stops the same requests for ever")

    @property
    def running(self) -> list[Request]:
        return [request for request in self.requests.values() if request.running is not None]

    @property
    def queued(self) -> list[Request]:
        return [request for request in self.requests.values() if request.running is None]


def check(made: Plan, requests: Sequence[Request], nodes: Sequence[Node]) -> None:
    """AssertionError unless a plan keeps every promise that does not depend on the policy."""
    by_id = {request.id: request for request in requests}
    node_of = {node.id: node for node in nodes}
    taken: set[tuple[str, int]] = set()
    places: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for request in requests:
        for node_id, slots in (request.running or {}).items():
            taken.update((node_id, slot) for slot in slots)
            places[node_id] += not slots
        held[request.job] += request.slots if request.running is not None else 0
    room = Room(nodes, ())
    assert len({start.id for start in made.starts}) == len(made.starts), "started twice"
    for start in made.starts:
        request = by_id[start.id]
        assert request.running is None, f"{request.id} runs already"
        assert not request.stopping, f"{request.id} is to stop"
        assert start.placement.slots == request.slots, f"{request.id} is started with a part of its slots"
        sizes = {len(slots) for slots in start.placement.values()}
        assert len(sizes) == 1, f"{request.id} has unequal parts"
        largest = max((machine.total for machine in room.machines if machine.id not in request.excluded), default=0)
        assert not request.excluded & start.placement.keys(), f"{request.id} is started where it may not be"
        assert len(start.placement) == 1 or not (request.single_node or request.slots <= largest), (
            f"{request.id} is scattered although one machine is large enough"
        )
        for node_id, slots in start.placement.items():
            assert not node_of[node_id].draining, f"{request.id} is started on {node_id}, which is draining"
            assert set(slots) <= set(node_of[node_id].slots), f"{request.id} gets slots that {node_id} does not have"
            for slot in slots:
                assert (node_id, slot) not in taken, f"slot {slot} of {node_id} is given twice"
                taken.add((node_id, slot))
            places[node_id] += not slots
            assert slots or places[node_id] <= node_of[node_id].auxiliary_places, f"too many without slots on {node_id}"
        held[request.job] += request.slots
        if request.max_slots is not None and request.slots:
            assert held[request.job] <= request.max_slots, f"{request.job} uses more than it may"
    assert len({stop.id for stop in made.stops}) == len(made.stops), "stopped twice"
    for stop in made.stops:
        victim = by_id[stop.id]
        assert victim.running is not None and not victim.stopping, f"{victim.id} does not run"
        assert victim.preemptible, f"{victim.id} may not be stopped"
    started = {start.id for start in made.starts}
    queued = {request.id for request in requests if request.running is None and not request.stopping}
    assert len(made.waiting) == len(queued - started), "somebody is neither started nor told why it waits"


def random_nodes(draw: random.Random, most: int = 6, largest: int = 8) -> tuple[Node, ...]:
    """Some machines of one or of several sizes."""
    size = draw.randint(1, largest)
    sizes = [size if draw.random() < 0.6 else draw.randint(1, largest) for _ in range(draw.randint(1, most))]
    return tuple(
        Node(f"node{number}", tuple(range(size)), auxiliary_places=draw.randint(1, 4))
        for number, size in enumerate(sizes)
    )


def random_request(draw: random.Random, number: int, now: float, largest: int = 10) -> Request:
    """A request as users make them: mostly small, sometimes large, sometimes one that can never start."""
    job = draw.randint(0, 7)
    return Request(
        id=f"request{number}",
        job=f"job{job}",
        slots=0 if draw.random() < 0.05 else 1 if draw.random() < 0.5 else draw.randint(1, largest),
        priority=draw.choice((1, 10, 42, 42, 42, 90)),
        weight=1.0 + job % 3,
        queued_at=now,
        max_slots=12 if job == 0 else None,
        preemptible=draw.random() < 0.9,
        single_node=draw.random() < 0.1,
        excluded=frozenset({f"node{draw.randrange(3)}"} if draw.random() < 0.05 else ()),
    )


def random_event(cluster: ImaginaryCluster, draw: random.Random, load: float = 1.0) -> None:
    """Something happens: a submission, an end, a change of mind, a machine that drains or comes back."""
    cluster.now += draw.expovariate(1.0)
    what = draw.random()
    running, queued = cluster.running, cluster.queued
    if what < 0.45 and len(queued) < 40 * load:
        cluster.submit(random_request(draw, cluster.submitted, cluster.now))
    elif what < 0.9 and running:
        cluster.end(draw.choice(running).id)
    elif what < 0.94 and cluster.requests:
        cluster.pause(draw.choice(sorted(cluster.requests)))
    elif what < 0.97 and queued:
        moved = draw.choice(queued)
        cluster.requests[moved.id] = dataclasses.replace(moved, queued_at=draw.choice(queued).queued_at - 0.5)
    else:
        number = draw.randrange(len(cluster.nodes))
        node = cluster.nodes[number]
        changed = dataclasses.replace(node, draining=not node.draining)
        cluster.nodes = (*cluster.nodes[:number], changed, *cluster.nodes[number + 1 :])


def placed(node_id: str, *slots: int) -> Placement:
    """A placement on one machine."""
    return Placement({node_id: slots})
