"""Priorities: the more important first, among equals first come, first served."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Mapping, Sequence, Set

from determined.master.scheduling.fifo import Sorted, by_age
from determined.master.scheduling.requests import Request

_PRIORITY = operator.attrgetter("priority")


@dataclasses.dataclass(frozen=True)
class Priority:
    """Priority 1 is served first, 99 last. With ``preemption``, the less important make room for the more important."""

    preemption: bool = True

    def line(
        self, queued: Sequence[Request], running: Sequence[Request], capacity: int, usage: Mapping[str, int]
    ) -> ByImportance:
        order = by_age(queued)
        order.sort(key=_PRIORITY)
        return ByImportance(order, running if self.preemption else ())


@dataclasses.dataclass(frozen=True)
class ByImportance(Sorted):
    """The queue by priority; whoever has a larger number may be stopped."""

    running: Sequence[Request] = ()

    def victims(self, request: Request, stopped: Set[str]) -> Sequence[Sequence[Request]] | None:
        return self._by_priority[request.priority] or None

    @functools.cached_property
    def _by_priority(self) -> Mapping[int, Sequence[Sequence[Request]]]:
        """For each priority the groups below it; the same object every time it is asked for."""
        return _GroupsBelow(self.running)


class _GroupsBelow(dict[int, Sequence[Sequence[Request]]]):
    """Worked out for a priority when it is asked for: most passes ask for few of them, or for none."""

    def __init__(self, running: Sequence[Request]) -> None:
        super().__init__()
        may_stop = by_age(other for other in running if other.preemptible and not other.stopping)
        may_stop.reverse()
        may_stop.sort(key=_PRIORITY, reverse=True)
        self._groups = [(priority, tuple(group)) for priority, group in itertools.groupby(may_stop, _PRIORITY)]

    def __missing__(self, priority: int) -> Sequence[Sequence[Request]]:
        self[priority] = tuple(group for other, group in self._groups if other > priority)
        return self[priority]
