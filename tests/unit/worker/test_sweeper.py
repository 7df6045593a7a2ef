"""Whoever carries the marker is found and killed, and nobody else."""

from __future__ import annotations

import os
import pathlib
import secrets
import subprocess
from collections.abc import Iterator, Sequence

import pytest

from determined.worker import sweeper, sweepers
from tests.flow.processes import wait_until

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


@pytest.fixture
def service() -> Iterator[str]:
    started = sweepers.Service()
    yield started.address
    started.let_go()
    assert os.waitpid(started.pid, 0)[1] == 0


def connect(service: str, marker: str, folder: pathlib.Path, kept: Sequence[int] = ()) -> sweepers.SharedSweeper:
    made: list[sweepers.SharedSweeper] = []

    def is_there() -> bool:
        try:
            made.append(sweepers.SharedSweeper(service, marker, folder, kept))
        except OSError:
            return False
        return True

    assert wait_until(is_there)
    return made[0]


def test_a_service_sweeps_for_whoever_goes_without_a_word(marker: str, service: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "left").touch()
    reader, kept = os.pipe()
    carrier = start(env={sweeper.VARIABLE: marker})
    other = start(env={sweeper.VARIABLE: f"{marker}0"})
    leader = start(env={})
    try:
        gone = connect(service, marker, tmp_path / "a folder", [kept])
        os.close(kept)
        dismissed = connect(service, f"{marker}0", tmp_path)
        gone.watch([leader.pid])
        assert gone.is_alive and dismissed.is_alive
        dismissed.dismiss()
        dismissed.close()
        gone.close()
        assert (carrier.wait(10), leader.wait(10)) == (-9, -9)
        # What it was to hold on to it holds until it has swept.
        assert os.read(reader, 1) == b""
        assert wait_until(lambda: not (tmp_path / "a folder").exists())
        assert other.poll() is None
    finally:
        os.close(reader)
        for process in (carrier, other, leader):
            process.kill()
            process.wait()


def test_a_service_that_is_not_there_is_told(marker: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(OSError):
        sweepers.SharedSweeper(f"\0{marker}", marker, tmp_path, [])
