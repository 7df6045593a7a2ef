"""A pool that runs nothing: its gangs report and end when a test says so, or as an imaginary training would.

It keeps the promises of ``Pool`` and remembers every promise that its caller broke. It is the world outside the
master: throw the master away, make a new one, and hand it the same pool.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence

from determined.master.pools.base import EngineOutOfReach, Exited, Gang, Running, Sighting
from determined.master.scheduling import Node
from determined.wire.outcome import Ending, Outcome
from determined.wire.reports import Report, ReportBatch, Source


@dataclasses.dataclass
class FakeGang:
    """What there is of one allocation. ``ending`` is None while it runs."""

    gang: Gang
    run_epoch: int
    ending: Ending | None = None
    grace_seconds: float | None = None  # of the last order to stop
    orders: int = 0
    spools: dict[Source, list[Report]] = dataclasses.field(default_factory=lambda: {source: [] for source in Source})

    @property
    def is_running(self) -> bool:
        return self.ending is None

    def report(self, report: Report, source: Source = Source.CHIEF) -> None:
        """Write a line into a spool."""
        self.spools[source].append(report)

    def batch(self, source: Source = Source.CHIEF, first: int = 0, limit: int | None = None) -> ReportBatch:
        """Lines of a spool, as its shipper would send them."""
        lines = self.spools[source][first:] if limit is None else self.spools[source][first : first + limit]
        return ReportBatch(run_epoch=self.run_epoch, source=source, first=first, reports=lines)


class FakePool:
    """Gangs in memory. ``faults`` lists broken promises: a slot taken twice, a gang without all its nodes, ..."""

    queues_itself = False
    device = "cpu"

    def __init__(self, nodes: Sequence[Node] = (Node("local", (0, 1, 2, 3)),), name: str = "default") -> None:
        self.name = name
        self.nodes = [*nodes]
        self.gangs: dict[str, FakeGang] = {}
        self.faults: list[str] = []
        self.is_out_of_reach = False
        self.refuses: set[str] = set()  # nodes on which nothing can be started
        self.on_start: Callable[[FakeGang], object] | None = None
        self.on_stop: Callable[[FakeGang], object] | None = None
        self.on_ended: Callable[[], None] | None = None
        self.starts = 0
        self._lock = threading.RLock()

    # The seam.

    def capacity(self) -> Sequence[Node]:
        self._reach()
        return [*self.nodes]

    def start(self, gang: Gang) -> None:
        self._reach()
        with self._lock:
            if gang.allocation_id in self.gangs:
                return
            refusing = self.refuses & set(gang.placement)
            if refusing:
                raise OSError(f"{min(refusing)} cannot start anything")
            self._check(gang)
            epoch = int(gang.allocation_id.rpartition(".")[2])
            started = self.gangs[gang.allocation_id] = FakeGang(gang, epoch)
            self.starts += 1
        if self.on_start is not None:
            self.on_start(started)

    def poll(self) -> Mapping[str, Sighting]:
        self._reach()
        with self._lock:
            return {
                allocation_id: Running() if gang.ending is None else Exited(gang.ending)
                for allocation_id, gang in self.gangs.items()
            }

    def stop(self, allocation_id: str, grace_seconds: float) -> None:
        self._reach()
        gang = self.gangs.get(allocation_id)
        if gang is None or not gang.is_running:
            return
        gang.grace_seconds = grace_seconds
        gang.orders += 1
        if grace_seconds <= 0:
            self.end(allocation_id, Ending(outcome=Outcome.STOPPED, exit_code=137, reason="killed as asked"))
        elif self.on_stop is not None:
            self.on_stop(gang)

    def unshipped(self, allocation_id: str, acknowledged: Mapping[Source, int]) -> Sequence[ReportBatch]:
        self._reach()
        gang = self.gangs.get(allocation_id)
        if gang is None:
            return []
        batches = (gang.batch(source, acknowledged.get(source, 0)) for source in Source)
        return [batch for batch in batches if batch.reports]

    def engine_log(self, allocation_id: str) -> str:
        return ""

    def forget(self, allocation_id: str) -> None:
        self._reach()
        gang = self.gangs.get(allocation_id)
        if gang is not None and gang.is_running:
            self.faults.append(f"{allocation_id} was forgotten while it ran")
        self.gangs.pop(allocation_id, None)

    def watch(self, callback: Callable[[], None]) -> None:
        self.on_ended = callback

    def close(self) -> None:
        self.on_ended = None

    # What tests do.

    @property
    def running(self) -> list[FakeGang]:
        """The gangs that run."""
        return [gang for gang in self.gangs.values() if gang.is_running]

    def end(self, allocation_id: str, ending: Ending | Outcome = Outcome.COMPLETED) -> None:
        """A gang ends."""
        if isinstance(ending, Outcome):
            ending = Ending(outcome=ending, exit_code=0 if ending in (Outcome.COMPLETED, Outcome.STOPPED) else 1)
        with self._lock:
            gang = self.gangs.get(allocation_id)
            if gang is None or not gang.is_running:
                return
            gang.ending = ending
        if self.on_ended is not None:
            self.on_ended()

    def lose(self, node_id: str, without_trace: bool = False) -> None:
        """A machine is gone with all that ran on it."""
        for allocation_id, gang in [*self.gangs.items()]:
            if node_id in gang.gang.placement and gang.is_running:
                if without_trace:
                    del self.gangs[allocation_id]
                else:
                    self.end(allocation_id, Ending(outcome=Outcome.LOST, exit_code=1, reason=f"{node_id} went away"))

    def _reach(self) -> None:
        if self.is_out_of_reach:
            raise EngineOutOfReach("the imaginary engine does not answer")

    def _check(self, gang: Gang) -> None:
        if len(gang.specs) != len(gang.placement):
            self.faults.append(f"{gang.allocation_id} has {len(gang.specs)} specifications for {gang.placement}")
        there = {node.id for node in self.nodes}
        task = gang.allocation_id.rpartition(".")[0]
        for node_id, slots in gang.placement.items():
            if node_id not in there:
                self.faults.append(f"{gang.allocation_id} is to run on {node_id}, which is not there")
            for other in self.running:
                taken = set(other.gang.placement.get(node_id, ())) & set(slots)
                if taken:
                    self.faults.append(f"{gang.allocation_id} gets slots of {other.gang.allocation_id}: {taken}")
        for other in self.running:
            if other.gang.allocation_id.rpartition(".")[0] == task:
                self.faults.append(f"{gang.allocation_id} is started while {other.gang.allocation_id} runs")
