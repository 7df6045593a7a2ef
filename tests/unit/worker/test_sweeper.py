"""Whoever carries the marker is found and killed, and nobody else."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator

import pytest

from determined.worker import sweeper

SLEEP = ["sleep", "600"]


@pytest.fixture
def marker() -> Iterator[str]:
    name = secrets.token_hex(8)
    yield name
    sweeper.sweep(name, set(), 5.0)


def start(**options: object) -> subprocess.Popen[bytes]:
    process: subprocess.Popen[bytes] = subprocess.Popen(SLEEP, start_new_session=True, **options)  # type: ignore[call-overload]
    return process


def test_carriers_are_found_by_marker_nested_marker_and_session(marker: str) -> None:
    carrier = start(env={"PATH": os.environ["PATH"], sweeper.VARIABLE: marker})
    nested = start(env={"PATH": os.environ["PATH"], sweeper.VARIABLE: f"{marker}/0-ab"})
    other = start(env={"PATH": os.environ["PATH"], sweeper.VARIABLE: f"{marker}0", "NOT": marker})
    try:
        assert sorted(sweeper.carriers(marker, set())) == sorted([carrier.pid, nested.pid])
        assert sorted(sweeper.carriers(marker, {other.pid})) == sorted([carrier.pid, nested.pid, other.pid])
        assert sweeper.sweep(marker, set()) == []
        assert (carrier.wait(5), nested.wait(5)) == (-9, -9)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
