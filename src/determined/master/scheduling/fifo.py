"""First come, first served; nobody is stopped for another."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from determined.master.scheduling.requests import Request

_QUEUED_AT = operator.attrgetter("queued_at")
_BY_AGE = operator.attrgetter("queued_at", "id")


@dataclasses.dataclass(frozen=True)
class Fifo:
    """The older a request's place in line, the sooner it starts. Priorities and weights mean nothing."""

    def line(
        self, queued: Sequence[Request], running: Sequence[Request], capacity: int, usage: Mapping[str, int]
    ) -> Sorted:
        return Sorted(by_age(queued))


@dataclasses.dataclass(frozen=True)
class Sorted:
    """A line whose order is settled before it is walked; nobody makes room."""

    order: Sequence[Request]

    def __iter__(self) -> Iterator[Request]:
        return iter(self.order)

    def victims(self, request: Request, stopped: Set[str]) -> Sequence[Sequence[Request]] | None:
        return None


def by_age(requests: Iterable[Request]) -> list[Request]:
    """The older first, by id where the place in line is the same."""
    order = sorted(requests, key=_QUEUED_AT)
    # Comparing numbers alone is several times faster than comparing pairs, and ties are rare.
    if len(set(map(_QUEUED_AT, order))) < len(order):
        order.sort(key=_BY_AGE)
    return order
