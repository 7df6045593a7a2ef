"""The seam behind which gangs of processes run, and what every implementation of it promises."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Union

from determined.master.scheduling import Node, Placement
from determined.wire.node_spec import NodeSpec
from determined.wire.outcome import Ending
from determined.wire.reports import ReportBatch, Source


@dataclasses.dataclass(frozen=True)
class Gang:
    """All of one allocation: where each node process goes and what it is told.

    ``specs`` has one NodeSpec for each node of ``placement``, in its order; the pool fills in what only it knows
    (addresses, ports, folders of that machine).
    """

    allocation_id: str
    placement: Placement
    specs: Sequence[NodeSpec]


@dataclasses.dataclass(frozen=True)
class Running:
    """The engine has it: it is about to run, or runs."""

    has_begun: bool = True


@dataclasses.dataclass(frozen=True)
class Exited:
    """It is over, and none of its processes is left."""

    ending: Ending


Sighting = Union[Running, Exited]


class EngineOutOfReach(Exception):
    """The engine does not answer. Nothing is known, so nothing is lost: the caller asks again later."""


class Pool(Protocol):
    """Runs gangs on one engine: this machine, Ray, Slurm.

    ``start`` twice is once. ``poll`` tells the engine's own truth, also to a master that has just been started: to
    find its gangs again a master does nothing but poll. All nodes of a gang run, or none. A gang that has ended is
    told of until ``forget``. Methods are called from one thread at a time and may block for seconds, not minutes.
    """

    name: str
    queues_itself: bool  # has a queue of its own, and is handed gangs at once
    device: str  # what its slots are: cpu, cuda or rocm

    def capacity(self) -> Sequence[Node]:
        """The machines there are, with their enabled slots."""

    def start(self, gang: Gang) -> None:
        """See that the gang runs; does nothing if it does, or did. Raises EngineOutOfReach."""

    def poll(self) -> Mapping[str, Sighting]:
        """What there is, by allocation. One that was started and is not in it is gone without a trace."""

    def stop(self, allocation_id: str, grace_seconds: float) -> None:
        """Ask its processes to save and leave, and end them after the grace (0: at once). Again and unknown is fine."""

    def unshipped(self, allocation_id: str, acknowledged: Mapping[Source, int]) -> Sequence[ReportBatch]:
        """What a gang that has ended wrote down and did not ship: the lines of each spool after so many.

        Each spool's batches are in order. Nothing for a spool that is not, or not any more, within reach.
        """

    def watch(self, callback: Callable[[], None]) -> None:
        """From now on call this, from a thread of the pool's, whenever a gang may have ended. May never call it."""

    def engine_log(self, allocation_id: str) -> str:
        """What the engine itself has to say about a gang that would not start; for people."""

    def forget(self, allocation_id: str) -> None:
        """Remove what is left of a gang that has ended."""

    def close(self) -> None:
        """Let go of the engine. Gangs run on."""
