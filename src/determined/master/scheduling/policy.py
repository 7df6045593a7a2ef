"""The seam for scheduling policies: who is next, and who has to make room."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Protocol

from determined.master.scheduling.requests import Request


class Line(Protocol):
    """The queue of one pass."""

    def __iter__(self) -> Iterator[Request]:
        """Every queued request once, next one first. Whoever asks for more has decided about all given so far."""
        ...

    def victims(self, request: Request, stopped: Set[str]) -> Sequence[Sequence[Request]] | None:
        """Running requests that may be stopped for this one: groups, the least important first, each youngest first.

        Empty if there are none; None if there are none for those behind it either, so that nobody need ask. Any part of
        what is named here may be stopped; the caller takes no more than it needs. Only preemptible ones that are not
        stopping may be named, and only such that would not be allowed in turn to make this one stop. ``stopped`` are
        those that this pass has stopped before; to name them again does no harm.
        """
        ...


class Policy(Protocol):
    """Decides about order and preemption, not about places: that is ``plan``'s, and the same for all policies.

    A policy is a value: ``line`` has no memory and no clock, and does not depend on the order of its arguments.
    """

    def line(
        self, queued: Sequence[Request], running: Sequence[Request], capacity: int, usage: Mapping[str, int]
    ) -> Line:
        """The queue of one pass over ``capacity`` slots.

        ``queued`` need no or some slots, never both kinds in one call. ``usage`` says how many slots each job holds or
        has been promised; it changes while the line is walked. Those being stopped no longer count.
        """
        ...
