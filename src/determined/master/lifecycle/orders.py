"""Orders to stop: why an allocation is to leave, and which of two reasons counts."""

from __future__ import annotations

from determined.master.records import Allocation, AllocationState
from determined.master.states import Wanted
from determined.master.store import allocations
from determined.master.store.database import Tx
from determined.wire.reports import StopReason

# The weakest first: a later order only counts if it is stronger.
_STRENGTH = (StopReason.PREEMPTED, StopReason.PAUSED, StopReason.ENOUGH, StopReason.CANCELED, StopReason.KILLED)

REASONS = {
    Wanted.PAUSED: StopReason.PAUSED,
    Wanted.ENOUGH: StopReason.ENOUGH,
    Wanted.CANCELED: StopReason.CANCELED,
    Wanted.KILLED: StopReason.KILLED,
}


def order_stop(tx: Tx, allocation: Allocation, reason: StopReason) -> Allocation:
    """Write down that an allocation is to leave; an order that is no stronger than the one it has changes nothing."""
    if allocation.state is AllocationState.ENDED:
        return allocation
    before = allocation.stop_reason
    if before is not None and _STRENGTH.index(reason) <= _STRENGTH.index(before):
        return allocation
    allocations.update(tx, allocation.id, state=AllocationState.STOPPING, stop_reason=reason, stop_asked_at=tx.now)
    tx.changed("allocation", allocation.id, allocation.experiment_id, state=AllocationState.STOPPING.value)
    return allocations.require(tx, allocation.id)
