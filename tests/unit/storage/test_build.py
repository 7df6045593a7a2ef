"""What a config or an argument says about storage becomes one, or one clear sentence."""

from __future__ import annotations

import pathlib

import pytest

from determined import errors
from determined.storage import FolderStorage, build_storage


def root(wanted: object) -> pathlib.Path:
    storage = build_storage(wanted)  # type: ignore[arg-type]
    assert isinstance(storage, FolderStorage)
    return storage.root


def test_folders() -> None:
    assert root("/data/checkpoints") == pathlib.Path("/data/checkpoints")
    assert root(pathlib.Path("/data")) == pathlib.Path("/data")
    assert root("relative") == pathlib.Path.cwd() / "relative"
    assert root("file:///data") == pathlib.Path("/data")
    assert root({"type": "directory", "container_path": "/data"}) == pathlib.Path("/data")
    assert root({"type": "shared_fs", "host_path": "/data"}) == pathlib.Path("/data")
    assert root({"type": "shared_fs", "host_path": "/data", "storage_path": "a/b"}) == pathlib.Path("/data/a/b")


@pytest.mark.parametrize("wanted", ["s3://bucket/x", "gs://bucket", {"type": "s3", "bucket": "b"}, {"type": "gcs"}])
def test_buckets_are_not_there_yet(wanted: object) -> None:
    with pytest.raises(
        errors.InvalidConfigurationException, match=r"resolute\[storage\].*not available in this version"
    ):
        root(wanted)


@pytest.mark.parametrize("wanted", ["ftp://x", {"type": "tape"}, {}])
def test_other_kinds_are_refused(wanted: object) -> None:
    with pytest.raises(errors.InvalidConfigurationException, match="directory or shared_fs"):
        root(wanted)


def test_a_section_must_name_its_folder() -> None:
    with pytest.raises(errors.InvalidConfigurationException, match="needs host_path"):
        root({"type": "shared_fs"})
