"""Our policies pass the suite for policies."""

from __future__ import annotations

from determined import testing
from determined.master import scheduling


class TestFifo(testing.SchedulingConformance):
    def make_policy(self) -> scheduling.Policy:
        return scheduling.Fifo()


class TestPriority(testing.SchedulingConformance):
    def make_policy(self) -> scheduling.Policy:
        return scheduling.Priority()


class TestPriorityWithoutPreemption(testing.SchedulingConformance):
    def make_policy(self) -> scheduling.Policy:
        return scheduling.Priority(preemption=False)


class TestFairShare(testing.SchedulingConformance):
    def make_policy(self) -> scheduling.Policy:
        return scheduling.FairShare()


class TestFairShareWithoutPreemption(testing.SchedulingConformance):
    def make_policy(self) -> scheduling.Policy:
        return scheduling.FairShare(preemption=False)
