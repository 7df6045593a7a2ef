"""Which machines take work: what people have switched off, and machines that fail gang after gang."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from determined import errors
from determined.master.scheduling import Node
from determined.master.store import settings
from determined.master.store.database import Database, Tx

# So many gangs in a row must a machine fail, before anything of them was heard, to get no more of them.
FAILURES_IN_A_ROW = 3
# A pool's only machine is tried again: nothing could run elsewhere. The pause doubles with each further failure.
_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 300.0
_NAME = "machines"


@dataclasses.dataclass(frozen=True)
class Machine:
    """What is known of one machine beside what its pool says."""

    enabled: bool = True
    draining: bool = False
    disabled_slots: tuple[int, ...] = ()
    quarantine: str = ""  # why it gets nothing, if it failed too often


class Machines:
    """The machines of all pools, by pool and id. What people said of them outlives the master."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._failures: dict[tuple[str, str], tuple[int, float]] = {}  # how many in a row, when the last was
        self._known: dict[tuple[str, str], Machine] = {
            (pool, node): Machine(
                state["enabled"], state["draining"], tuple(state["disabled_slots"]), state["quarantine"]
            )
            for pool, nodes in database.read_now(settings.get, _NAME, {}).items()
            for node, state in nodes.items()
        }

    def get(self, pool: str, node: str) -> Machine:
        """What is known of one."""
        with self._lock:
            return self._known.get((pool, node), Machine())

    def edit(self, pool: str, node: str, *, enabled: bool | None = None, draining: bool | None = None) -> Machine:
        """Switch a machine on or off. Switched on, it is given the chance again that it had lost."""
        before = self.get(pool, node)
        after = dataclasses.replace(
            before,
            enabled=before.enabled if enabled is None else enabled,
            draining=before.draining if draining is None else draining,
        )
        if enabled or (enabled is None and draining is False):
            after = dataclasses.replace(after, quarantine="", draining=bool(draining))
            with self._lock:
                self._failures.pop((pool, node), None)
        self._put(pool, node, after)
        return after

    def edit_slot(self, pool: str, node: Node, slot: int, enabled: bool) -> Machine:
        """Switch one slot on or off; raises NotFound if the machine has no such slot."""
        if slot not in node.slots:
            raise errors.NotFound(f"{node.id} has no slot {slot}")
        before = self.get(pool, node.id)
        slots = {*before.disabled_slots} - {slot} if enabled else {*before.disabled_slots, slot}
        after = dataclasses.replace(before, disabled_slots=tuple(sorted(slots)))
        self._put(pool, node.id, after)
        return after

    def usable(
        self, pool: str, nodes: Iterable[Node], now: float, unproven: Mapping[str, int] = MappingProxyType({})
    ) -> list[Node]:
        """The machines as scheduling is to see them; ``now`` by a monotonic clock.

        ``unproven`` says how many gangs there are on each of which nothing was heard yet.
        """
        nodes = [*nodes]
        return [self._as_usable(pool, node, now, unproven.get(node.id, 0), is_only=len(nodes) == 1) for node in nodes]

    def allowance(self, pool: str, node: str, unproven: int) -> int | None:
        """How many more gangs a machine that has failed before may be given; None if it has not."""
        with self._lock:
            failures, _ = self._failures.get((pool, node), (0, 0.0))
        return max(FAILURES_IN_A_ROW - failures, 1) - unproven if failures else None

    def _as_usable(self, pool: str, node: Node, now: float, unproven: int, is_only: bool) -> Node:
        machine = self.get(pool, node.id)
        closed = not machine.enabled or machine.draining or bool(machine.quarantine)
        if not closed:
            allowance = self.allowance(pool, node.id, unproven)
            closed = allowance is not None and allowance <= 0
        if is_only and not closed:
            with self._lock:
                failures, since = self._failures.get((pool, node.id), (0, 0.0))
            if failures >= FAILURES_IN_A_ROW:
                pause = _PAUSE_SECONDS * 2.0 ** min(failures - FAILURES_IN_A_ROW, 10)
                closed = now < since + min(pause, _LONGEST_PAUSE_SECONDS)
        return dataclasses.replace(
            node,
            slots=tuple(slot for slot in node.slots if slot not in machine.disabled_slots),
            draining=node.draining or closed,
        )

    def praise(self, pool: str, nodes: Collection[str]) -> None:
        """A gang on these machines did what it should."""
        with self._lock:
            for node in nodes:
                self._failures.pop((pool, node), None)

    def blame(
        self, pool: str, nodes: Collection[str], why: str, started_at: float, now: float, is_only: bool
    ) -> list[str]:
        """A gang came to nothing through no fault of its own; returns the machines that get no more from now on.

        Gangs that ended together count once: one was ``started_at`` a moment before the last failure.
        """
        closed = []
        for node in nodes:
            with self._lock:
                failures, last = self._failures.get((pool, node), (0, float("-inf")))
                if started_at < last:
                    continue
                self._failures[(pool, node)] = (failures + 1, now)
            if failures + 1 >= FAILURES_IN_A_ROW and not is_only:
                closed.append(node)
                reason = f"{FAILURES_IN_A_ROW} gangs in a row could not run on it: {why}"
                self._put(pool, node, dataclasses.replace(self.get(pool, node), quarantine=reason))
        return closed

    def closed(self, pool: str, nodes: Sequence[Node]) -> list[str]:
        """The machines whose gangs are to leave: those that were switched off."""
        return [node.id for node in nodes if not self.get(pool, node.id).enabled]

    def _put(self, pool: str, node: str, machine: Machine) -> None:
        with self._lock:
            self._known[(pool, node)] = machine
            stored: dict[str, dict[str, Any]] = {}
            for (its_pool, its_node), known in self._known.items():
                stored.setdefault(its_pool, {})[its_node] = dataclasses.asdict(known)
        self._database.write_now(_store, stored, pool, node)


def _store(tx: Tx, stored: dict[str, Any], pool: str, node: str) -> None:
    settings.put(tx, _NAME, stored)
    tx.changed("agent", f"{pool}/{node}")
