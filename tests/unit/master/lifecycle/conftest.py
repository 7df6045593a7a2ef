"""The world that these tests act on."""

from tests.unit.master.lifecycle.world import world

__all__ = ["world"]
