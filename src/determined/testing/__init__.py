"""Conformance suites for the seams: for us, and for authors of plug-ins. Needs pytest."""

from __future__ import annotations

from determined.testing.pools import PoolConformance
from determined.testing.scheduling import SchedulingConformance
from determined.testing.search import SearchConformance
from determined.testing.storage import StorageConformance

__all__ = ["PoolConformance", "SchedulingConformance", "SearchConformance", "StorageConformance"]
