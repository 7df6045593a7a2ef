"""From what a config or an argument says about checkpoint storage to the storage itself."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any, Union

from determined import errors
from determined.storage.base import CheckpointStorage
from determined.storage.folder import FolderStorage

_BUCKETS = {"s3": "Amazon S3", "gs": "Google Cloud Storage", "gcs": "Google Cloud Storage", "azure": "Azure"}


def build_storage(wanted: Union[str, os.PathLike[str], Mapping[str, Any]]) -> CheckpointStorage:
    """Make the storage for a folder path, a URL, or a config's ``checkpoint_storage`` section.

    Raises InvalidConfigurationException when it names a storage that there is not.
    """
    if not isinstance(wanted, Mapping):
        scheme, colon, rest = os.fspath(wanted).partition("://")
        if not colon:
            return FolderStorage(wanted)
        if scheme == "file":
            return FolderStorage("/" + rest.lstrip("/"))
        raise _not_available(scheme)
    kind = wanted.get("type")
    if kind == "directory":
        return FolderStorage(_required(wanted, "container_path"))
    if kind == "shared_fs":
        host_path = pathlib.Path(_required(wanted, "host_path"))
        return FolderStorage(host_path / str(wanted.get("storage_path") or ""))
    raise _not_available(str(kind))


def _required(section: Mapping[str, Any], field: str) -> str:
    if not section.get(field):
        raise errors.InvalidConfigurationException(
            f"checkpoint_storage of type {section['type']} needs {field}: the folder that holds the checkpoints"
        )
    return str(section[field])


def _not_available(kind: str) -> errors.InvalidConfigurationException:
    if kind in _BUCKETS:
        return errors.InvalidConfigurationException(
            f"{_BUCKETS[kind]} as checkpoint storage comes with the extra resolute[storage], which is not available in "
            "this version; use a folder (type: directory or shared_fs)"
        )
    return errors.InvalidConfigurationException(
        f"checkpoint_storage cannot be {kind!r}; it is a folder path, or a section of type directory or shared_fs"
    )
