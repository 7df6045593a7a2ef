"""A master for each test."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.unit.master.api.listening import listening_on
from tests.unit.master.api.serving import Master, serving


@pytest.fixture
def master(tmp_path: pathlib.Path) -> Iterator[Master]:
    """A master of the test's own."""
    with serving(tmp_path) as started:
        yield started


@pytest.fixture
def listening(master: Master) -> Iterator[tuple[Master, str]]:
    """The test's master, and its address on loopback."""
    with listening_on(master) as url:
        yield master, url
