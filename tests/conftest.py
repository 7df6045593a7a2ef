"""What every test gets: an environment of its own, and nothing of the user's."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import hypothesis
import pytest

from tests import masters

# One torch thread: the suite runs two processes on two cores, and sums must not depend on how many there are.
os.environ["OMP_NUM_THREADS"] = "1"
# Nothing may be fetched. transformers asks the network for what it does not find unless it is told not to.
os.environ["HF_HUB_OFFLINE"] = "1"

# What is shown on a terminal is tried with terminals of the tests' own, wherever the suite runs.
os.environ.pop("CI", None)

# A test that starts processes hands them this environment: they must not take the caller's job for theirs.
PLACES_OF_A_RANK = [
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "USE_TORCH_DISTRIBUTED",
    "WORLD_SIZE",
]
for name in [*PLACES_OF_A_RANK, *(name for name in os.environ if name.startswith(("DET_", "TORCHELASTIC_")))]:
    os.environ.pop(name, None)

# The same examples every time, and no database of past ones in the checkout.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("suite")


@pytest.fixture(scope="session", autouse=True)
def runs_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs started outside a single test's fixtures land in pytest's folder, not in the user's data folder."""
    os.environ["DET_RUNS_DIR"] = str(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session", autouse=True)
def masters_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test that forgets to name a place for its master, or its credentials, does not find the user's."""
    place = tmp_path_factory.mktemp("masters")
    os.environ["DET_MASTER_DIR"] = str(place / "master")
    os.environ["DET_MASTER_PORT"] = "0"
    os.environ["XDG_CONFIG_HOME"] = str(place / "config")
    with masters.stopped_afterwards(place / "master"):
        yield


@pytest.fixture(autouse=True)
def runs_dir(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The parent of the run folders that this test makes; empty at first."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("DET_RUNS_DIR", str(folder))
    return folder
