"""First come, first served; nobody is stopped for another."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Mapping, Sequence

from determined.master.scheduling.requests import Request

BY_AGE = operator.attrgetter("queued_at", "id")


@dataclasses.dataclass(frozen=True)
class Fifo:
    """The older a request's place in line, the sooner it starts. Priorities and weights mean nothing."""

    def line(
        self, queued: Sequence[Request], running: Sequence[Request], capacity: int, usage: Mapping[str, int]
    ) -> Sorted:
        return Sorted(sorted(queued, key=BY_AGE))


@dataclasses.dataclass(frozen=True)
class Sorted:
    """A line whose order is settled before it is walked; nobody makes room."""

    order: Sequence[Request]

    def __iter__(self) -> Iterator[Request]:
        return iter(self.order)

    def victims(self, request: Request) -> Sequence[Sequence[Request]]:
        return ()
