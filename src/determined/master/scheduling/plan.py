"""One pass of scheduling: what starts, what stops, and why the rest waits."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from determined.master.scheduling import preempt
from determined.master.scheduling.fit import Machine, Room, Shape
from determined.master.scheduling.policy import Line, Policy
from determined.master.scheduling.requests import Node, Plan, Request, Reservation, Start, Stop
from determined.master.scheduling.waiting import Scene, Waiting

# How many requests may make others stop in one pass, and how many may look for somebody in vain: a pass stays short
# even when hundreds are to be replaced, and the next one goes on.
EVICTIONS = 24
SEARCHES = 24


def plan(
    requests: Iterable[Request],
    nodes: Iterable[Node],
    policy: Policy,
    *,
    now: float = 0.0,
    reservation: Reservation | None = None,
    patience: float = 300.0,
) -> Plan:
    """Decide what starts now, what makes room, and why everything else waits.

    A gang gets all its slots at once or none, and never one that somebody holds, stopping or not. The slots of what is
    stopping are promised to the first in line whom they help, before anybody else is stopped.

    The first gang in line that neither fits nor has been promised anything gets a reservation: the machines on which
    least is missing for it are closed to those behind it; elsewhere they may overtake it. Durations are unknown, so for
    every ``patience`` seconds that it has been first the number of closed machines doubles, until all are: from then on
    it waits for nothing but what runs already. ``now`` is any clock in seconds, ``reservation`` what the pass before
    returned; without them only the nearest machines are closed.
    """
    gangs, small, running, stopping = _sort_out(requests)
    room = Room(nodes, (*running, *stopping))
    held: defaultdict[str, int] = defaultdict(int)
    usage: defaultdict[str, int] = defaultdict(int)
    for request in running:
        held[request.job] += request.slots
        usage[request.job] += request.slots
    for request in stopping:
        held[request.job] += request.slots
    line = policy.line(gangs, running, room.total, usage)
    walk = _Walk(room, line, held, usage, {request.id for request in stopping}, now, reservation, patience)
    rest = walk.go()
    places = iter(policy.line(small, (), room.total, usage))
    starts_in_places, without_place = _fill_places(room, places)
    scene = Scene(room, held, walk.promised, walk.kept)
    return Plan(
        starts=(*walk.starts, *starts_in_places),
        stops=tuple(walk.stops),
        waiting=Waiting(
            scene,
            (walk.waiting, rest),
            (without_place, places),
            len(gangs) + len(small) - len(walk.starts) - len(starts_in_places),
        ),
        reservation=walk.kept,
        is_partial=walk.is_partial,
    )


def _sort_out(requests: Iterable[Request]) -> tuple[list[Request], list[Request], list[Request], list[Request]]:
    gangs: list[Request] = []
    small: list[Request] = []
    running: list[Request] = []
    stopping: list[Request] = []
    for request in requests:
        if request.running is not None:
            (stopping if request.stopping else running).append(request)
        elif not request.stopping:  # who is to stop and holds nothing wants nothing
            (gangs if request.slots else small).append(request)
    return gangs, small, running, stopping


@dataclasses.dataclass
class _Walk:
    """The walk along the line, from the first in it to where nothing more can be done."""

    room: Room
    line: Line
    held: defaultdict[str, int]
    usage: defaultdict[str, int]
    stopped: set[str]
    now: float
    before: Reservation | None
    patience: float
    starts: list[Start] = dataclasses.field(default_factory=list)
    stops: list[Stop] = dataclasses.field(default_factory=list)
    waiting: list[Request] = dataclasses.field(default_factory=list)
    promised: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    kept: Reservation | None = None
    is_partial: bool = False

    def go(self) -> Iterator[Request]:
        """Decide about one request after another; returns those that were not looked at, all of which wait."""
        held, wait = self.held, self.waiting.append
        full: set[tuple[int, bool]] = set()  # sizes that fit neither now nor with what is coming
        vain: dict[tuple[int, bool], object] = {}  # size -> victims that were looked through in vain
        searches = evictions = 0
        order = iter(self.line)
        for request in order:
            size = slots, single_node = request.slots, request.single_node
            limit = request.max_slots
            if limit is not None and held[request.job] + slots > limit:
                wait(request)
                continue
            shape = self.room.shape(slots, single_node)
            if shape is None:
                wait(request)
                continue
            if size not in full:
                machines = self.room.fit_now(shape)
                if machines is not None:
                    self._start(request, machines, shape)
                    continue
                machines = self.room.fit_soon(shape)
                if machines is not None:
                    self._promise(request, machines, shape)
                    continue
                full.add(size)
            victims = self.line.victims(request)
            if victims and vain.get(size) is not victims and searches < SEARCHES:
                if evictions >= EVICTIONS:
                    self.is_partial = True
                    wait(request)
                    break
                eviction = preempt.choose(self.room, shape, victims, self.stopped)
                if eviction is not None:
                    self._evict(request, eviction, shape)
                    evictions += 1
                    full.clear()
                    vain.clear()
                    continue
                vain[size] = victims
                searches += 1
            if self.kept is None:
                self._keep(request, shape)
            wait(request)
        return order

    def _start(self, request: Request, machines: Sequence[Machine], shape: Shape) -> None:
        self.starts.append(Start(request.id, self.room.start(machines, shape.per_machine)))
        self._count(request)

    def _promise(self, request: Request, machines: Sequence[Machine], shape: Shape) -> None:
        self.promised[request.id] = tuple(dict.fromkeys(id for machine in machines for id in machine.stopping))
        self.room.promise(machines, shape.per_machine)
        self.waiting.append(request)
        self._count(request)

    def _evict(self, request: Request, eviction: preempt.Eviction, shape: Shape) -> None:
        for victim in eviction.victims:
            self.stops.append(Stop(victim.id, f"makes room for {request.id}, which is before it in the queue"))
            self.stopped.add(victim.id)
            self.usage[victim.job] -= victim.slots
            self.room.expect(victim)
        self._promise(request, eviction.machines, shape)

    def _count(self, request: Request) -> None:
        self.held[request.job] += request.slots
        self.usage[request.job] += request.slots

    def _keep(self, request: Request, shape: Shape) -> None:
        """Close the machines nearest to what a gang needs to those behind it; the longer it waits, the more."""
        is_same = self.before is not None and self.before.id == request.id
        self.kept = self.before if self.before is not None and is_same else Reservation(request.id, self.now)
        waited = max(0.0, self.now - self.kept.since)
        doublings = min(32, int(waited / self.patience)) if self.patience > 0 else 32
        self.room.promise(self.room.nearest(shape, 2**doublings), shape.per_machine)


def _fill_places(room: Room, line: Iterator[Request]) -> tuple[list[Start], list[Request]]:
    """Start requests without slots wherever there is most room for them."""
    starts: list[Start] = []
    for request in line:
        machine = room.fit_place()
        if machine is None:
            return starts, [request]
        starts.append(Start(request.id, room.start_in_place(machine)))
    return starts, []
