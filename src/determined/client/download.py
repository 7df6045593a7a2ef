"""Brings a checkpoint here, whole and verified: from its storage where that can be reached, else through the master."""

from __future__ import annotations

import os
import pathlib
import shutil

from determined import errors
from determined.client.enums import DownloadMode
from determined.client.master import Master
from determined.wire.views import CheckpointView

_NOT_THERE = (errors.NotFound, errors.CheckpointNotFound, errors.NoDirectStorageAccess)
_METADATA = "metadata.json"
_MANIFEST = "manifest.json"


def download(master: Master, view: CheckpointView, target: pathlib.Path, mode: DownloadMode) -> pathlib.Path:
    """Fetch the files of a checkpoint into a folder; does nothing if they are there already.

    Every file is compared with the digest it was saved with. Nothing is to be seen in ``target`` before all of it is.
    Raises CheckpointStateException for one that is deleted, NoDirectStorageAccess or ProxiedDownloadFailed for the
    way that was asked for, and MultipleDownloadsFailed when neither works.
    """
    if (target / _METADATA).exists():
        return target
    if view.state == "DELETED":
        raise errors.CheckpointStateException(f"checkpoint {view.uuid} is deleted; its files are gone")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise errors.CheckpointStateException(f"{target} is in the way of checkpoint {view.uuid}; name another folder")
    failures: list[str] = []
    if mode in (DownloadMode.AUTO, DownloadMode.DIRECT):
        try:
            return _from_storage(view, target)
        except (errors.NoDirectStorageAccess, errors.CheckpointNotFound) as error:
            if mode is DownloadMode.DIRECT:
                raise
            failures.append(str(error))
    try:
        return _from_master(master, view, target)
    except (OSError, errors.ProxiedDownloadFailed, errors.MasterUnreachable, *_NOT_THERE) as error:
        if mode is DownloadMode.MASTER:
            raise errors.ProxiedDownloadFailed(
                f"the master could not hand over checkpoint {view.uuid}: {error}"
            ) from None
        failures.append(str(error))
    raise errors.MultipleDownloadsFailed(f"checkpoint {view.uuid} could not be fetched: {'; and '.join(failures)}")


def _from_storage(view: CheckpointView, target: pathlib.Path) -> pathlib.Path:
    from determined import storage

    section = view.storage or {}
    folder = section.get("container_path") or section.get("host_path")
    if not section.get("type") or (folder and not os.path.isdir(folder)):
        raise errors.NoDirectStorageAccess(
            f"the storage of checkpoint {view.uuid} cannot be reached from this machine; "
            "fetch it through the master (mode master)"
        )
    partial = _partial(target)
    try:
        storage.build_storage(section).download(view.uuid, partial)
    except errors.DeterminedError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not isinstance(error, errors.InvalidConfigurationException):
            raise
        raise errors.NoDirectStorageAccess(f"the storage of checkpoint {view.uuid} cannot be read: {error}") from None
    except OSError as error:
        raise errors.NoDirectStorageAccess(f"the storage of checkpoint {view.uuid} cannot be read: {error}") from None
    return _publish(partial, target)


def _from_master(master: Master, view: CheckpointView, target: pathlib.Path) -> pathlib.Path:
    files = master.checkpoint_files(view.uuid)
    partial = _partial(target)
    for path, size in sorted(files.items()):
        place = _beneath(partial, path)
        if path.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if not (place.exists() and place.stat().st_size == size and path != _MANIFEST):
            master.download_checkpoint_file(view.uuid, path, place)
        if path != _MANIFEST and place.stat().st_size != size:
            raise errors.ProxiedDownloadFailed(f"{path} came with {place.stat().st_size} bytes instead of {size}")
    if (partial / _MANIFEST).exists():
        from determined import storage

        try:
            storage.verify_folder(partial)
        except errors.InvalidCheckpointException:
            # What came is not what was saved; the next attempt must not build on it.
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return _publish(partial, target)


def _beneath(folder: pathlib.Path, path: str) -> pathlib.Path:
    """Where a file of the checkpoint goes. Names are the master's word: they must not lead elsewhere."""
    parts = path.removesuffix("/").split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise errors.InvalidCheckpointException(f"the checkpoint lists {path!r}, which is no file of a checkpoint")
    return folder.joinpath(*parts)


def _partial(target: pathlib.Path) -> pathlib.Path:
    partial = target.with_name(f".{target.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    return partial


def _publish(partial: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    if target.exists():
        target.rmdir()  # empty: looked at above
    partial.rename(target)
    return target
