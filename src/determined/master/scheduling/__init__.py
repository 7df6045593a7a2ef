"""Who runs next, where, and who makes room. Pure: the same requests and nodes give the same plan."""

from __future__ import annotations

from determined.master.scheduling.build import build_policy
from determined.master.scheduling.fair_share import FairShare
from determined.master.scheduling.fifo import Fifo
from determined.master.scheduling.plan import plan
from determined.master.scheduling.policy import Line, Policy
from determined.master.scheduling.priority import Priority
from determined.master.scheduling.requests import (
    Cause,
    Node,
    Placement,
    Plan,
    Request,
    Reservation,
    Start,
    Stop,
    Why,
)

__all__ = [
    "Cause",
    "FairShare",
    "Fifo",
    "Line",
    "Node",
    "Placement",
    "Plan",
    "Policy",
    "Priority",
    "Request",
    "Reservation",
    "Start",
    "Stop",
    "Why",
    "build_policy",
    "plan",
]
