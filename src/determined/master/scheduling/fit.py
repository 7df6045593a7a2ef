"""Where a gang fits: what is free on each machine, what is coming, and which machines suit a gang best."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from determined.master.scheduling.requests import Node, Placement, Request


class Shape(NamedTuple):
    """How a gang is laid out: the same number of slots on each of so many machines."""

    machines: int
    per_machine: int
    excluded: frozenset[str] = frozenset()  # machines that it may not be on


class Machine:
    """A node that takes new work, as a pass goes on. ``free`` and ``coming`` are what nobody has been promised."""

    __slots__ = ("coming", "free", "free_ids", "id", "index", "is_closed", "places", "stopping", "total")

    def __init__(self, node: Node, index: int) -> None:
        self.id = node.id
        self.index = index
        self.total = len(node.slots)
        self.free_ids = sorted(node.slots, reverse=True)
        self.free = self.total
        self.coming = 0
        self.is_closed = False
        self.places = node.auxiliary_places
        self.stopping: list[str] = []


class Room:
    """The machines of a pass. Starting and promising take from it; ``expect`` adds what stopping requests give back."""

    def __init__(self, nodes: Iterable[Node], running: Iterable[Request]) -> None:
        open_nodes = sorted((node for node in nodes if not node.draining), key=lambda node: node.id)
        self.machines = [Machine(node, index) for index, node in enumerate(open_nodes)]
        self._by_id = {machine.id: machine for machine in self.machines}
        self._enabled = {node.id: frozenset(node.slots) for node in open_nodes}
        self._held: dict[str, list[tuple[Machine, int]]] = {}
        for request in running:
            self._occupy(request)
        for machine in self.machines:
            machine.free = len(machine.free_ids)
        self._totals = sorted(machine.total for machine in self.machines)
        self.total = sum(self._totals)
        self.largest = self._totals[-1] if self._totals else 0
        self._by_free = sorted(_free_key(machine) for machine in self.machines)
        self._by_soon = sorted(_soon_key(machine) for machine in self.machines)
        self._by_places = [(-machine.places, machine.index) for machine in self.machines]
        heapq.heapify(self._by_places)
        self._shapes: dict[tuple[int, bool, frozenset[str]], Shape | None] = {}

    @property
    def free(self) -> int:
        """Slots that nothing runs on, promised or not."""
        return sum(len(machine.free_ids) for machine in self.machines)

    @property
    def most_free(self) -> int:
        """The largest number of slots that nothing runs on, on one machine."""
        return max((len(machine.free_ids) for machine in self.machines), default=0)

    def shape(self, slots: int, single_node: bool, excluded: frozenset[str] = frozenset()) -> Shape | None:
        """How a gang of so many slots is laid out here, or None if the machines there are cannot hold it.

        It is divided only when no machine is large enough for all of it, and then equally among as few as possible:
        traffic between machines is what slows a gang down, so waiting is better than being scattered.
        """
        key = slots, single_node, excluded
        if key not in self._shapes:
            self._shapes[key] = self._lay_out(slots, single_node, excluded)
        return self._shapes[key]

    def fit_now(self, shape: Shape) -> list[Machine] | None:
        """The machines whose free slots suit the gang best: those that keep the fewest free slots afterwards."""
        return self._pick(self._by_free, shape)

    def fit_soon(self, shape: Shape) -> list[Machine] | None:
        """The same, counting the slots of what is stopping as free."""
        return self._pick(self._by_soon, shape)

    def fit_place(self, excluded: frozenset[str] = frozenset()) -> Machine | None:
        """The machine with most room for requests without slots."""
        if excluded:
            possible = [machine for machine in self.machines if machine.places > 0 and machine.id not in excluded]
            return min(possible, key=lambda machine: (-machine.places, machine.index), default=None)
        if not self._by_places or self._by_places[0][0] >= 0:
            return None
        return self.machines[self._by_places[0][1]]

    def start(self, machines: Sequence[Machine], per_machine: int) -> Placement:
        """Take free slots."""
        placement = {}
        for machine in machines:
            placement[machine.id] = tuple(machine.free_ids.pop() for _ in range(per_machine))
            self._set(machine, machine.free - per_machine, machine.coming)
        return Placement(placement)

    def start_in_place(self, machine: Machine) -> Placement:
        """Take one place for a request without slots."""
        machine.places -= 1
        if self._by_places[0][1] == machine.index:
            heapq.heapreplace(self._by_places, (-machine.places, machine.index))
        else:
            self._by_places = [(-machine.places, machine.index) for machine in self.machines]
            heapq.heapify(self._by_places)
        return Placement({machine.id: ()})

    def promise(self, machines: Sequence[Machine], per_machine: int) -> None:
        """Keep slots for a gang that will start when all of them are free; first those that are still coming."""
        for machine in machines:
            from_coming = min(machine.coming, per_machine)
            from_free = min(machine.free, per_machine - from_coming)
            self._set(machine, machine.free - from_free, machine.coming - from_coming)

    def close(self, machines: Sequence[Machine], per_machine: int) -> None:
        """Keep slots for a gang although some are missing: where they are, nobody may even be stopped for another."""
        for machine in machines:
            machine.is_closed = machine.free + machine.coming < per_machine
        self.promise(machines, per_machine)

    def expect(self, request: Request) -> None:
        """Count on the slots of a request that is about to be stopped."""
        for machine, slots in self.held_by(request):
            machine.stopping.append(request.id)
            self._set(machine, machine.free, machine.coming + slots)

    def held_by(self, request: Request) -> list[tuple[Machine, int]]:
        """How many slots that are of use to others a running request holds on each machine."""
        held = self._held.get(request.id)
        if held is None:
            held = self._held[request.id] = [
                (self._by_id[node_id], len(self._enabled[node_id].intersection(slots)))
                for node_id, slots in (request.running or {}).items()
                if slots and node_id in self._by_id
            ]
        return held

    def nearest(self, shape: Shape, alternatives: int) -> list[Machine]:
        """The machines on which least is missing for a gang, as many as it needs, times ``alternatives``."""
        per_machine = shape.per_machine
        large_enough = [machine for machine in self.machines if _suits(machine, shape)]
        large_enough.sort(key=lambda machine: (max(0, per_machine - machine.free - machine.coming), machine.index))
        return large_enough[: shape.machines * alternatives]

    def _occupy(self, request: Request) -> None:
        for node_id, slots in (request.running or {}).items():
            machine = self._by_id.get(node_id)
            if machine is None:
                continue
            if not slots:
                machine.places -= 1
                continue
            for slot in slots:
                if slot in machine.free_ids:
                    machine.free_ids.remove(slot)
                    machine.coming += request.stopping
            if request.stopping:
                machine.stopping.append(request.id)

    def _lay_out(self, slots: int, single_node: bool, excluded: frozenset[str]) -> Shape | None:
        totals = self._totals
        if excluded:
            totals = sorted(machine.total for machine in self.machines if machine.id not in excluded)
        if totals and 0 < slots <= totals[-1]:
            return Shape(1, slots, excluded)
        if single_node or not 0 < slots <= sum(totals):
            return None
        for machines in range(2, len(totals) + 1):
            if slots % machines == 0:
                per_machine = slots // machines
                large_enough = len(totals) - bisect.bisect_left(totals, per_machine)
                if large_enough >= machines:
                    return Shape(machines, per_machine, excluded)
        return None

    def _pick(self, order: Sequence[tuple[int, int, int]], shape: Shape) -> list[Machine] | None:
        # Sorted by room and then by size: those that fit exactly come first, and of these the small machines, so that
        # the large ones stay whole for large gangs.
        first = bisect.bisect_left(order, (shape.per_machine,))
        if shape.excluded:
            suitable = [machine for *_, index in order[first:] if _suits(machine := self.machines[index], shape)]
            return suitable[: shape.machines] if len(suitable) >= shape.machines else None
        if len(order) - first < shape.machines:
            return None
        return [self.machines[index] for _, _, index in order[first : first + shape.machines]]

    def _set(self, machine: Machine, free: int, coming: int) -> None:
        _remove(self._by_free, _free_key(machine))
        _remove(self._by_soon, _soon_key(machine))
        machine.free, machine.coming = free, coming
        bisect.insort(self._by_free, _free_key(machine))
        bisect.insort(self._by_soon, _soon_key(machine))


def _suits(machine: Machine, shape: Shape) -> bool:
    return machine.total >= shape.per_machine and machine.id not in shape.excluded


def _free_key(machine: Machine) -> tuple[int, int, int]:
    return machine.free, machine.total, machine.index


def _soon_key(machine: Machine) -> tuple[int, int, int]:
    return machine.free + machine.coming, machine.total, machine.index


def _remove(order: list[tuple[int, int, int]], key: tuple[int, int, int]) -> None:
    del order[bisect.bisect_left(order, key)]
