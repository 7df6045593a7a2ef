"""Figure X-c: gadgets in every file of a checkpoint, on all ways to it. None runs, and no file is believed."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import sys
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from determined import errors, pytorch
from determined.client.download import download
from determined.client.enums import DownloadMode
from determined.client.master import Master
from determined.storage import digest, manifest
from determined.wire.views import CheckpointView
from tests.unit.pytorch.test_pickles import gadgets
from tests.unit.pytorch.test_trainer import OneVariable, fit

UUID = "00000000-0000-4000-8000-000000000000"
MOST = 55

SEEN: list[str] = []
WATCHING: list[bool] = []
FORBIDDEN = {
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "pickle.find_class",
    "socket.connect",
}


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if WATCHING and event in FORBIDDEN:
        SEEN.append(f"{event} {arguments!r}"[:200])


sys.addaudithook(_audit)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    WATCHING.append(True)
    try:
        yield
    finally:
        WATCHING.clear()


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path) -> pathlib.Path:
    """A checkpoint as the trainer saves it."""
    with pytorch.init(hparams={"global_batch_size": 8}) as context:
        fit(OneVariable(context), context)
    (saved,) = pathlib.Path(os.environ["DET_RUNS_DIR"]).glob("*/checkpoints/*-*")
    folder = tmp_path / "storage" / UUID
    shutil.copytree(saved, folder)
    return folder


def sign(folder: pathlib.Path) -> None:
    """Whoever can change a file can change the manifest, too."""
    (folder / manifest.NAME).unlink(missing_ok=True)
    files = {path: manifest.FileRecord(*digest.digest_file(folder / path)) for path, _ in manifest.walk(folder)}
    (folder / manifest.NAME).write_bytes(manifest.encode(files))


def as_archive(data: bytes, path: pathlib.Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", data)
        file.writestr("archive/version", "3\n")


def resume(folder: pathlib.Path, target: pathlib.Path) -> None:
    with pytorch.init(hparams={"global_batch_size": 8}) as context:
        fit(OneVariable(context), context, latest_checkpoint=str(folder), max_length=pytorch.Batch(5))


def fetch_and_load(folder: pathlib.Path, target: pathlib.Path) -> None:
    section = {"type": "directory", "container_path": str(folder.parent)}
    view = CheckpointView(uuid=UUID, state="COMPLETED", storage=section, reported_at=0.0)
    # No master is asked: the storage is there.
    download(Master("http://127.0.0.1:9"), view, target, DownloadMode.DIRECT)
    pytorch.load_trial_from_checkpoint_path(str(target), trial_class=OneVariable)


def test_a_good_checkpoint_is_loaded_on_every_way(checkpoint: pathlib.Path, tmp_path: pathlib.Path) -> None:
    sign(checkpoint)
    names = {path.name for path in checkpoint.iterdir()}
    assert {"state_dict.pth", "trial_state.json", "load_data.json", "metadata.json", manifest.NAME} <= names
    with watched():
        resume(checkpoint, checkpoint)
        fetch_and_load(checkpoint, tmp_path / "here")
    assert SEEN == []


@pytest.mark.slow
def test_no_gadget_in_any_file_runs(checkpoint: pathlib.Path, tmp_path: pathlib.Path) -> None:
    canary = tmp_path / "it-ran"
    all_gadgets = [*gadgets(canary).items()][:MOST]
    assert len(all_gadgets) >= 50
    files = [path for path, _ in manifest.walk(checkpoint) if not path.endswith("/") and not path.startswith("code/")]
    assert len(files) >= 5
    good = tmp_path / "good"
    shutil.copytree(checkpoint, good)
    resume(good, good)  # what is imported once is imported now
    SEEN.clear()
    refused = 0
    for number, (name, data) in enumerate(all_gadgets):
        for path in files:
            ways: list[Any] = [lambda target: target.write_bytes(data)]  # noqa: B023
            if path.endswith(".pth"):
                ways.append(lambda target: as_archive(data, target))  # noqa: B023
            for way in ways:
                shutil.rmtree(checkpoint)
                shutil.copytree(good, checkpoint)
                way(checkpoint / path)
                if path != manifest.NAME:
                    sign(checkpoint)
                target = tmp_path / "fetched"
                with watched():
                    # Going on reads in the same way, and takes longer: it is tried with some.
                    for load in (fetch_and_load, resume)[: 1 if number % 10 else 2]:
                        try:
                            load(checkpoint, target)
                        except errors.DeterminedError:
                            refused += 1
                        except Exception as error:
                            raise AssertionError(f"{name} in {path}: {error!r}") from error
                shutil.rmtree(target, ignore_errors=True)
    assert SEEN == []
    assert not canary.exists()
    assert refused > len(all_gadgets) * 3
