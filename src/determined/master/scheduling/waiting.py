"""Why requests wait: worked out for those that somebody asks about."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence

from determined.master.scheduling.fit import Room, Shape
from determined.master.scheduling.requests import Cause, Request, Reservation, Why


@dataclasses.dataclass(frozen=True)
class Scene:
    """What a pass left behind: what is free, what each job holds, what was promised and what is kept."""

    room: Room
    held: Mapping[str, int]
    promised: Mapping[str, tuple[str, ...]]
    kept: Reservation | None


class Waiting(Mapping[str, Why]):
    """A reason for each waiting request, in the order of the queue.

    A pass over ten thousand requests must not write ten thousand sentences. So it hands over what it knows, and the
    end of the line that it did not walk; the first question walks it, and each answer is written when it is read.
    """

    def __init__(
        self,
        scene: Scene,
        gangs: tuple[Sequence[Request], Iterator[Request]],
        small: tuple[Sequence[Request], Iterator[Request]],
        count: int,
    ) -> None:
        self._scene = scene
        self._lines = (gangs, small)
        self._count = count
        self._places: dict[str, tuple[Request, int]] | None = None
        self._lock = threading.Lock()  # pages are made on other threads than plans

    def __getitem__(self, request_id: str) -> Why:
        request, position = self._in_line()[request_id]
        return _why(request, position, self._scene)

    def __iter__(self) -> Iterator[str]:
        return iter(self._in_line())

    def __len__(self) -> int:
        return self._count

    def _in_line(self) -> Mapping[str, tuple[Request, int]]:
        with self._lock:
            if self._places is None:
                self._places = {
                    request.id: (request, position)
                    for walked, rest in self._lines
                    for position, request in enumerate((*walked, *rest), start=1)
                }
            return self._places


def _why(request: Request, position: int, scene: Scene) -> Why:
    cause, text, waits_for = _explain(request, scene)
    if position > 1 and cause is not Cause.NEVER:
        text = f"{text}; {position - 1} {'is' if position == 2 else 'are'} before it"
    return Why(cause, text, position, request.slots, scene.room.free, scene.room.total, waits_for)


def _explain(request: Request, scene: Scene) -> tuple[Cause, str, tuple[str, ...]]:
    room, slots = scene.room, request.slots
    if not slots:
        if not room.machines:
            return Cause.PLACES, "there is no machine that takes new work", ()
        if request.excluded.issuperset(machine.id for machine in room.machines):
            return Cause.NEVER, f"may not be on {_listed(sorted(request.excluded))}, and there is no other machine", ()
        return Cause.PLACES, "needs no slot, but every machine has as many such tasks as it may have", ()
    limit = request.max_slots
    if limit is not None and slots > limit:
        return Cause.NEVER, f"needs {_slots(slots)}, but its job may use {limit} (max_slots): it can never start", ()
    if request.id in scene.promised:
        waits_for = scene.promised[request.id]
        have = "has" if len(waits_for) == 1 else "have"
        return (
            Cause.STOPPING,
            f"needs {_slots(slots)}, which it gets as soon as {_listed(waits_for)} {have} stopped",
            waits_for,
        )
    held = scene.held.get(request.job, 0)
    is_first = scene.kept is not None and scene.kept.id == request.id
    if limit is not None and held + slots > limit and not is_first:
        rest = "does" if held >= limit else f"uses {held}; this needs {slots} more"
        return Cause.LIMIT, f"{request.job} may use {_slots(limit)} (max_slots) and {rest}", ()
    if not room.total:
        return Cause.SLOTS, f"needs {_slots(slots)}, and no machine that takes new work has any", ()
    shape = room.shape(slots, request.single_node, request.excluded)
    if shape is None:
        return Cause.NEVER, _never(request, room), ()
    now = f"{room.free} of {room.total} {'is' if room.free == 1 else 'are'} free"
    where = ""
    if shape.machines > 1:
        where = f" on {shape.machines} machines, {shape.per_machine} on each"
    elif len(room.machines) > 1 and slots > 1:
        where = " on one machine"
    if _would_fit(room, shape):
        kept_for = (scene.kept.id,) if scene.kept is not None else ()
        whom = scene.kept.id if scene.kept is not None else "those before it"
        return Cause.KEPT, f"needs {_slots(slots)}{where}; {now}, but kept for {whom}", kept_for
    if where and room.free >= slots:
        now += f", at most {room.most_free} on one machine"
    return Cause.SLOTS, f"needs {_slots(slots)}{where}, {now}", ()


def _never(request: Request, room: Room) -> str:
    asked = f"asks for {_slots(request.slots)}"
    if request.slots > room.total:
        return f"{asked}, there are {room.total}: it can never start"
    if request.excluded:
        return f"{asked} on other machines than {_listed(sorted(request.excluded))}, which there are not enough of"
    if request.single_node:
        return f"{asked} on one machine, the largest has {room.largest}: it can never start"
    return f"{asked}, which cannot be divided equally among the machines there are: it can never start"


def _would_fit(room: Room, shape: Shape) -> bool:
    fitting = [machine for machine in room.machines if len(machine.free_ids) >= shape.per_machine]
    return sum(1 for machine in fitting if machine.id not in shape.excluded) >= shape.machines


def _slots(number: int) -> str:
    return f"{number} slot" if number == 1 else f"{number} slots"


def _listed(names: Sequence[str]) -> str:
    if len(names) > 3:
        names = [*names[:3], f"{len(names) - 3} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
