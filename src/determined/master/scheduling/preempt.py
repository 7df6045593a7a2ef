"""Which running requests make room for one that is more important: enough of them, and no more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from determined.master.scheduling.fit import Machine, Room, Shape
from determined.master.scheduling.requests import Request

# How many machines are compared in detail: those where least is missing, so that a pass stays short.
COMPARED = 8


class Eviction(NamedTuple):
    """Stop these, and the gang can start on those machines."""

    victims: Sequence[Request]
    machines: Sequence[Machine]


class _Victim(NamedTuple):
    request: Request
    order: int  # the smaller, the rather it is stopped
    group: int


def choose(room: Room, shape: Shape, groups: Iterable[Sequence[Request]], spared: Set[str]) -> Eviction | None:
    """Whom to stop so that a gang fits, or None when even stopping all of them would not do.

    ``groups`` are candidates, the least important first, each youngest first; those in ``spared`` have been stopped
    already. No group is touched as long as the ones before it are enough. Within that, as few slots as possible are
    given up, then the youngest.
    """

    def is_open(machine: Machine) -> bool:
        return not machine.is_closed and machine.id not in shape.excluded

    soon = {machine.index: machine.free + machine.coming for machine in room.machines if is_open(machine)}
    candidates: dict[int, list[_Victim]] = {}
    large_enough = sum(1 for slots in soon.values() if slots >= shape.per_machine)
    order = 0
    for number, group in enumerate(groups):
        for request in group:
            if request.id in spared:
                continue
            victim = _Victim(request, order, number)
            order += 1
            for machine, slots in room.held_by(request):
                if not is_open(machine):
                    continue
                before = soon[machine.index]
                soon[machine.index] = before + slots
                large_enough += before < shape.per_machine <= before + slots
                candidates.setdefault(machine.index, []).append(victim)
        if large_enough >= shape.machines:
            return _cheapest(room, shape, candidates, soon)
    return None


def _cheapest(room: Room, shape: Shape, candidates: dict[int, list[_Victim]], soon: dict[int, int]) -> Eviction | None:
    def promise(machine: Machine) -> tuple[int, int]:
        """What is missing there, and how early in the list of candidates the first one comes."""
        victims = candidates.get(machine.index)
        return shape.per_machine - machine.free - machine.coming, victims[0].order if victims else -1

    possible = [machine for machine in room.machines if soon.get(machine.index, 0) >= shape.per_machine]
    possible.sort(key=promise)
    if shape.machines > 1:
        return _only_needed(room, shape, possible[: shape.machines], candidates)[1]
    choices = [_only_needed(room, shape, [machine], candidates) for machine in possible[:COMPARED]]
    return min(choices, key=lambda choice: choice[0])[1]


def _only_needed(
    room: Room, shape: Shape, machines: Sequence[Machine], candidates: dict[int, list[_Victim]]
) -> tuple[tuple[int, ...], Eviction]:
    """The victims on these machines less those that can stay; and what that costs, for comparison."""
    soon = {machine.index: machine.free + machine.coming for machine in machines}
    victims = {victim.order: victim for machine in machines for victim in candidates.get(machine.index, ())}
    gives = {
        order: [(machine.index, slots) for machine, slots in room.held_by(victim.request) if machine.index in soon]
        for order, victim in victims.items()
    }
    for given in gives.values():
        for index, slots in given:
            soon[index] += slots
    # The most important may stay first; among equals those who would lose most, then the oldest.
    for victim in sorted(victims.values(), key=lambda victim: (-victim.group, -victim.request.slots, -victim.order)):
        if all(soon[index] - slots >= shape.per_machine for index, slots in gives[victim.order]):
            del victims[victim.order]
            for index, slots in gives[victim.order]:
                soon[index] -= slots
    stopped = [victims[order] for order in sorted(victims)]
    slots_lost = sum(victim.request.slots for victim in stopped)
    most_important = max((victim.group for victim in stopped), default=0)
    oldest = max((victim.order for victim in stopped), default=0)
    cost = most_important, slots_lost, len(stopped), oldest, machines[0].index
    return cost, Eviction([victim.request for victim in stopped], machines)
