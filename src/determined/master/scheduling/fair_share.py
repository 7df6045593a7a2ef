"""Fair shares: slots are divided among jobs by weight, whatever the number of their requests."""

from __future__ import annotations

import dataclasses
import functools
import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from determined.master.scheduling.fifo import by_age
from determined.master.scheduling.requests import Request


@dataclasses.dataclass(frozen=True)
class FairShare:
    """Whoever has the least for its weight is served first.

    With ``preemption``, a job that stays below its share gets slots back from jobs above theirs, as long as neither
    crosses its own share by it: so two jobs never take the same slots from each other again and again.
    """

    preemption: bool = True

    def line(
        self, queued: Sequence[Request], running: Sequence[Request], capacity: int, usage: Mapping[str, int]
    ) -> ByShare:
        return ByShare(queued, running if self.preemption else (), running, capacity, usage)


@dataclasses.dataclass(frozen=True)
class ByShare:
    """The queue of a pass: it changes with every start, because the job's share does."""

    queued: Sequence[Request]
    may_stop: Sequence[Request]
    running: Sequence[Request]
    capacity: int
    usage: Mapping[str, int]

    def __iter__(self) -> Iterator[Request]:
        usage = self.usage
        jobs = {job: requests[::-1] for job, requests in self._by_job.items()}
        heap = [
            (usage.get(job, 0) / requests[-1].weight, requests[-1].queued_at, job) for job, requests in jobs.items()
        ]
        heapq.heapify(heap)
        while heap:
            _, _, job = heap[0]
            requests = jobs[job]
            yield requests.pop()
            if requests:
                heapq.heapreplace(heap, (usage.get(job, 0) / requests[-1].weight, requests[-1].queued_at, job))
            else:
                heapq.heappop(heap)

    def victims(self, request: Request, stopped: Set[str]) -> Sequence[Sequence[Request]] | None:
        if not self.may_stop:
            return None
        if self.usage.get(request.job, 0) + request.slots > self._shares[request.job]:
            return ()
        surplus = {job: self.usage.get(job, 0) - share for job, share in self._shares.items()}
        chosen = []
        for other in self._youngest_first:
            if other.id not in stopped and other.job != request.job and other.slots <= surplus[other.job]:
                surplus[other.job] -= other.slots
                chosen.append(other)
        return [chosen] if chosen else ()

    @functools.cached_property
    def _youngest_first(self) -> Sequence[Request]:
        may_stop = [other for other in self.may_stop if other.preemptible and not other.stopping and other.slots]
        return by_age(may_stop)[::-1]

    @functools.cached_property
    def _by_job(self) -> Mapping[str, list[Request]]:
        return group_by_job(self.queued)

    @functools.cached_property
    def _shares(self) -> Mapping[str, float]:
        """How many slots each job is due: by weight, but none more than it asks for; what one leaves others divide."""
        asked: dict[str, int] = {}
        weights: dict[str, float] = {}
        for requests in (*self._by_job.values(), *group_by_job(self.running).values()):
            job, limit = requests[0].job, requests[0].max_slots
            asked[job] = asked.get(job, 0) + sum(request.slots for request in requests)
            if limit is not None:
                asked[job] = min(asked[job], limit)
            weights.setdefault(job, requests[0].weight)
        return divide(self.capacity, asked, weights)


def group_by_job(requests: Iterable[Request]) -> dict[str, list[Request]]:
    """The requests of each job, the older first."""
    jobs: defaultdict[str, list[Request]] = defaultdict(list)
    for request in by_age(requests):
        jobs[request.job].append(request)
    return jobs


def divide(capacity: float, asked: Mapping[str, int], weights: Mapping[str, float]) -> dict[str, float]:
    """Divide slots by weight, giving nobody more than it asks for; what one leaves the others divide.

    >>> divide(8, {"a": 1, "b": 9, "c": 9}, {"a": 2, "b": 1, "c": 1})
    {'a': 1.0, 'b': 3.5, 'c': 3.5}
    """
    shares: dict[str, float] = {}
    left = float(capacity)
    weight = sum(weights.values())
    for job in sorted(weights, key=lambda job: (asked.get(job, 0) / weights[job], job)):
        shares[job] = min(float(asked.get(job, 0)), left * weights[job] / max(weight, weights[job]))
        left -= shares[job]
        weight -= weights[job]
    return shares
