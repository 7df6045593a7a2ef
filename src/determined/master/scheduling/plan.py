"""One pass of scheduling: what starts, what stops, and why the rest waits."""

from __future__ import annotations

import dataclasses
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from determined.master.scheduling import preempt
from determined.master.scheduling.fit import Machine, Room, Shape
from determined.master.scheduling.policy import Line, Policy
from determined.master.scheduling.requests import Node, Plan, Request, Reservation, Start, Stop
from determined.master.scheduling.waiting import Scene, Waiting

# How many requests may make others stop in one pass, and how many may look for somebody in vain: a pass stays short
# even when hundreds are to be replaced, and the next one goes on.
EVICTIONS = 4
SEARCHES = 8

_Size = tuple[int, bool, frozenset[str]]
_SIZE = operator.attrgetter("slots", "single_node", "excluded")


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
    sizes = set(map(_SIZE, gangs))
    walk = _Walk(room, line, sizes, held, usage, {request.id for request in stopping}, now, reservation, patience)
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
        # When the pass ended before it came to the first that does not fit, that one's patience goes on.
        reservation=walk.kept or (reservation if walk.is_partial else None),
        is_partial=walk.is_partial,
    )


def _sort_out(requests: Iterable[Request]) -> tuple[list[Request], list[Request], list[Request], list[Request]]:
    everything = [*requests]
    # Who is to stop and holds nothing wants nothing.
    queued = [request for request in everything if request.running is None and not request.stopping]
    holding = [request for request in everything if request.running is not None]
    return (
        [request for request in queued if request.slots],
        [request for request in queued if not request.slots],
        [request for request in holding if not request.stopping],
        [request for request in holding if request.stopping],
    )


@dataclasses.dataclass
class _Walk:
    """The walk along the line, from the first in it to where nothing more can be done."""

    room: Room
    line: Line
    sizes: set[_Size]
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
    # Sizes that fit neither now nor with what is coming: so they stay, as nothing but an eviction makes room in a walk.
    full: set[_Size] = dataclasses.field(default_factory=set)
    vain: dict[_Size, object] = dataclasses.field(default_factory=dict)  # size -> victims that did not do
    searches: int = 0
    evictions: int = 0

    def go(self) -> Iterator[Request]:
        """Decide about one request after another; returns those that were not looked at, all of which wait."""
        held, wait, victims_for = self.held, self.waiting.append, self.line.victims
        self.full = {size for size in self.sizes if self.room.shape(*size) is None}
        never = frozenset(self.full)
        is_searching = True
        order = iter(self.line)
        for request in order:
            limit = request.max_slots
            if limit is not None and held[request.job] + request.slots > limit:
                wait(request)
                continue
            size = (request.slots, request.single_node, request.excluded)
            if size not in self.full and self._place(request, size):
                continue
            if size in never:
                wait(request)
                continue
            if is_searching:
                victims = victims_for(request, self.stopped)
                if victims and self.evictions == EVICTIONS:
                    self.is_partial = True
                    wait(request)
                    break
                if victims and self._make_room(request, size, victims):
                    self.full = set(never)  # a large victim may give back more than was needed
                    continue
                is_searching = victims is not None and self.searches < SEARCHES
            if self.kept is None:
                self._keep(request)
            wait(request)
            if not is_searching and len(self.full) == len(self.sizes):
                break
        return order

    def _place(self, request: Request, size: _Size) -> bool:
        """Start it on free slots, or promise it those that are coming; if neither will do, remember its size."""
        shape = self._shape(request)
        machines = self.room.fit_now(shape)
        if machines is not None:
            self.starts.append(Start(request.id, self.room.start(machines, shape.per_machine)))
            self._count(request)
            return True
        machines = self.room.fit_soon(shape)
        if machines is not None:
            self._promise(request, machines, shape)
            return True
        self.full.add(size)
        return False

    def _make_room(self, request: Request, size: _Size, groups: Sequence[Sequence[Request]]) -> bool:
        """Stop others for it, if that helps."""
        if self.vain.get(size) is groups:
            return False
        shape = self._shape(request)
        eviction = preempt.choose(self.room, shape, groups, self.stopped)
        if eviction is None:
            self.vain[size] = groups
            self.searches += 1
            return False
        for victim in eviction.victims:
            self.stops.append(Stop(victim.id, f"makes room for {request.id}, which is before it in the queue"))
            self.stopped.add(victim.id)
            self.usage[victim.job] -= victim.slots
            self.room.expect(victim)
        self._promise(request, eviction.machines, shape)
        self.vain.clear()
        self.evictions += 1
        return True

    def _promise(self, request: Request, machines: Sequence[Machine], shape: Shape) -> None:
        self.promised[request.id] = tuple(sorted({name for machine in machines for name in machine.stopping}))
        self.room.promise(machines, shape.per_machine)
        self.waiting.append(request)
        self._count(request)

    def _count(self, request: Request) -> None:
        self.held[request.job] += request.slots
        self.usage[request.job] += request.slots

    def _shape(self, request: Request) -> Shape:
        shape = self.room.shape(request.slots, request.single_node, request.excluded)
        assert shape is not None, f"{request.id} never fits"
        return shape

    def _keep(self, request: Request) -> None:
        """Close the machines nearest to what a gang needs to those behind it; the longer it waits, the more."""
        shape = self._shape(request)
        is_same = self.before is not None and self.before.id == request.id
        self.kept = self.before if self.before is not None and is_same else Reservation(request.id, self.now)
        self.held[request.job] += request.slots  # its own job's others must not use up its limit meanwhile
        waited = max(0.0, self.now - self.kept.since)
        doublings = min(32, int(waited / self.patience)) if self.patience > 0 else 32
        self.room.close(self.room.nearest(shape, 2**doublings), shape.per_machine)


def _fill_places(room: Room, line: Iterator[Request]) -> tuple[list[Start], list[Request]]:
    """Start requests without slots wherever there is most room for them."""
    starts: list[Start] = []
    choosy: list[Request] = []
    for request in line:
        machine = room.fit_place(request.excluded)
        if machine is not None:
            starts.append(Start(request.id, room.start_in_place(machine)))
        elif request.excluded:
            choosy.append(request)  # there may be a place for the next
        else:
            return starts, [*choosy, request]
    return starts, choosy
