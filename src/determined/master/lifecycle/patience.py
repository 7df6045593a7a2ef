"""How long what is asked to stop may take to save and leave."""

from __future__ import annotations

from determined.master.records import Allocation
from determined.master.store import experiments, tasks
from determined.master.store.database import Tx
from determined.wire.reports import StopReason

GRACE_SECONDS = 60.0


def grace_seconds(tx: Tx, allocation: Allocation) -> float:
    """Seconds from now; 0 for what is to be killed."""
    whole = full_grace_seconds(tx, allocation)
    if allocation.stop_reason is StopReason.KILLED:
        return 0.0
    if allocation.stop_asked_at is None:
        return whole
    return min(max(whole - (tx.now - allocation.stop_asked_at), 0.0), whole)


def full_grace_seconds(tx: Tx, allocation: Allocation) -> float:
    """Seconds from when it is asked: ``preemption_timeout`` of its config."""
    if allocation.experiment_id is not None:
        found = experiments.get(tx, allocation.experiment_id)
        config = found.config if found is not None else {}
    else:
        task = tasks.get(tx, allocation.task_id)
        config = task.config if task is not None else {}
    timeout = config.get("preemption_timeout")
    return GRACE_SECONDS if timeout is None else float(timeout)
