"""What scheduling is told and what it answers: requests, nodes and placements; starts, stops and reasons to wait."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping


class Placement(Mapping[str, tuple[int, ...]]):
    """Where a gang runs: for each node the slots it holds there; empty for a request without slots. Never changes."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Mapping[str, tuple[int, ...]]) -> None:
        self._parts = dict(parts)

    def __getitem__(self, node_id: str) -> tuple[int, ...]:
        return self._parts[node_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __hash__(self) -> int:
        return hash(frozenset(self._parts.items()))

    def __repr__(self) -> str:
        return f"Placement({self._parts!r})"

    @property
    def slots(self) -> int:
        """How many slots it holds on all nodes together."""
        return sum(map(len, self._parts.values()))


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One gang that runs or wants to. ``job`` is the experiment or task it belongs to; a job may have several.

    ``priority`` goes from 1, served first, to 99. ``queued_at`` is a place in line: the smaller is served first among
    equals. ``max_slots`` limits all running requests of the job together. While ``running`` holds a placement its
    slots are taken; ``stopping`` says that they will be given back without another word. Nothing of it is started on
    the ``excluded`` nodes.
    """

    id: str
    job: str
    slots: int
    priority: int = 42
    weight: float = 1.0
    queued_at: float = 0.0
    max_slots: int | None = None
    preemptible: bool = True
    single_node: bool = False
    excluded: frozenset[str] = frozenset()
    running: Placement | None = None
    stopping: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One machine with its enabled slots. A draining one keeps what runs there and gets nothing new.

    ``auxiliary_places`` says how many requests without slots it takes at a time.
    """

    id: str
    slots: tuple[int, ...]
    draining: bool = False
    auxiliary_places: int = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """Start this request there, now; the slots are free."""

    id: str
    placement: Placement


@dataclasses.dataclass(frozen=True, slots=True)
class Stop:
    """Ask this running request to make room; ``reason`` is for people."""

    id: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Reservation:
    """For whom slots are kept, and since when: handed back to the next pass, so that its patience has a beginning."""

    id: str
    since: float


class Cause(str, enum.Enum):
    """What a request waits for."""

    SLOTS = "slots"  # not enough are free where it could run
    KEPT = "kept"  # enough are free, and kept for one before it
    STOPPING = "stopping"  # its slots are being given back
    LIMIT = "limit"  # its job uses all it may
    PLACES = "places"  # every machine has its fill of requests without slots
    NEVER = "never"  # the machines there are cannot run it, or its own limit forbids it


@dataclasses.dataclass(frozen=True, slots=True)
class Why:
    """Why a request waits, as data and as a sentence. ``position`` counts from 1; ``waits_for`` are requests' ids."""

    cause: Cause
    text: str
    position: int
    needs: int
    free: int
    total: int
    waits_for: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What to do now. ``waiting`` has a reason for everything queued that is not started; it is worked out when read.

    ``is_partial`` says that another pass right after this one would decide more. Hand ``reservation`` to the next.
    """

    starts: tuple[Start, ...]
    stops: tuple[Stop, ...]
    waiting: Mapping[str, Why]
    reservation: Reservation | None = None
    is_partial: bool = False
