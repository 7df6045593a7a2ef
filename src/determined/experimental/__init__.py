"""What may still change: ``client``, a master from Python, and its ``Determined``; ``core_v2``, the Core API as a
module; and ``test_one_batch``, a quick look at a trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Determined", "client", "core_v2", "test_one_batch"]

if TYPE_CHECKING:
    from determined.experimental import client, core_v2
    from determined.experimental.client import Determined
    from determined.experimental.one_batch import test_one_batch
else:
    # Hidden from type checkers, so that they refuse a misspelt name instead of taking it for Any.
    def __getattr__(name):
        """Fetch a name when it is first used: test_one_batch needs torch, and core_v2 does not."""
        import importlib

        if name in ("client", "core_v2"):
            return importlib.import_module(f"determined.experimental.{name}")
        if name == "Determined":
            return importlib.import_module("determined.experimental.client").Determined
        if name == "test_one_batch":
            return importlib.import_module("determined.experimental.one_batch").test_one_batch
        raise AttributeError(f"module 'determined.experimental' has no attribute {name!r}")
