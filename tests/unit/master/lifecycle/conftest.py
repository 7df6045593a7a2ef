"""The world that these tests act on."""

from tests.unit.master.lifecycle.world import empty_database, world

__all__ = ["empty_database", "world"]
