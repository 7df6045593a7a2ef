"""LocalPool keeps the promises of Pool, with and without a starter."""

from __future__ import annotations

import pathlib

import pytest

from determined import testing
from determined.master.pools.base import Pool
from determined.master.pools.local import LocalPool


class TestLocalPool(testing.PoolConformance):
    def make_pool(self, folder: pathlib.Path) -> Pool:
        return LocalPool(folder, slots=2, warm=False)


@pytest.mark.slow
class TestWarmLocalPool(testing.PoolConformance):
    def make_pool(self, folder: pathlib.Path) -> Pool:
        return LocalPool(folder, slots=2, warm=True)
