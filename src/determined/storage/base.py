"""The seam behind which checkpoints are kept, and what every implementation of it promises."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from determined import errors
from determined.storage.manifest import FileRecord

Selector = Callable[[str], bool]

_STORAGE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def new_storage_id() -> str:
    """A fresh random id in the shape of a version 4 UUID."""
    bits = bytearray(os.urandom(16))
    bits[6] = bits[6] & 0x0F | 0x40
    bits[8] = bits[8] & 0x3F | 0x80
    text = bits.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_storage_id(text: str) -> bool:
    return isinstance(text, str) and _STORAGE_ID.fullmatch(text) is not None


def check_storage_id(storage_id: str) -> str:
    """Return the id, or raise CheckpointNotFound: an id is a name, never a path."""
    if not is_storage_id(storage_id):
        raise errors.CheckpointNotFound(
            f"{storage_id!r} is not a checkpoint id; ids are made of letters, digits, '-' and '_' (like a uuid)"
        )
    return storage_id


class StagedCheckpoint(Protocol):
    """A checkpoint in the making: nobody can see it until ``publish`` returns."""

    storage_id: str
    path: pathlib.Path
    """A folder to write the files into."""

    def record(self, path: str, size: int, digest: str) -> None:
        """Say what a file holds that was hashed while it was written, so that it is not read again."""

    def publish(self) -> str:
        """Make it exist, all at once and durably, and return its id.

        When that fails nothing is left behind and errors.CheckpointStateException says why.
        """

    def discard(self) -> None:
        """Remove every trace. Does nothing after ``publish``."""


class CheckpointStorage(Protocol):
    """Where checkpoints are kept.

    A checkpoint exists when its manifest does, and that is written last: a process killed at any moment leaves either
    a whole checkpoint or none. Every file is hashed when it is written and verified when it is read. Ids that look
    like paths are refused. An unknown id raises errors.CheckpointNotFound, a damaged checkpoint
    errors.InvalidCheckpointException, and one that cannot be written errors.CheckpointStateException. All methods may
    be called from any thread, and from several processes that share the storage.
    """

    def begin(self, storage_id: str | None = None) -> StagedCheckpoint:
        """Start a checkpoint; under a new id unless one is given."""

    def upload(self, source: pathlib.Path, storage_id: str, paths: Iterable[str]) -> Mapping[str, FileRecord]:
        """Add files of a folder to a checkpoint that another process has begun, and return what was written.

        The one who began it hands the returned records to ``StagedCheckpoint.record`` before publishing.
        """

    def download(
        self,
        storage_id: str,
        target: pathlib.Path,
        selector: Selector | None = None,
        *,
        unverified: bool = False,
    ) -> Mapping[str, FileRecord]:
        """Copy a checkpoint, or the selected part of it, into a folder, verified on the way.

        The selector is given relative paths, those of folders with a ``/`` at their end. ``unverified`` also accepts
        a folder without a manifest, as Determined left them; what is in it is taken on trust.
        """

    def reading(
        self, storage_id: str, *, trusting: Container[str] = (), unverified: bool = False
    ) -> AbstractContextManager[pathlib.Path]:
        """A folder with the verified checkpoint in it, which stays until the ``with`` block ends.

        Files in ``trusting`` are compared by size alone, for a caller who hashes them while reading.
        """

    def files(self, storage_id: str, *, unverified: bool = False) -> Mapping[str, FileRecord]:
        """What the checkpoint holds, by relative path; empty folders end in ``/``. Without a manifest
        (``unverified``) the digests are empty."""

    def verify(self, storage_id: str) -> None:
        """Read every byte and raise errors.InvalidCheckpointException unless all is as it was saved."""

    def delete(self, storage_id: str) -> None:
        """Remove a checkpoint, at once for everybody. Deleting one that is being read is refused with
        errors.CheckpointStateException; deleting one that is not there raises errors.CheckpointNotFound."""

    def remove_files(self, storage_id: str, paths: Iterable[str]) -> Mapping[str, FileRecord]:
        """Remove some of a checkpoint's files, and return what is left of it: a whole checkpoint of fewer files.

        What it does not hold, or no longer, is passed over: after a crash, which may leave it damaged, the same again
        makes it whole. Refused as ``delete`` is.
        """

    def list(self) -> Sequence[str]:
        """The ids of all complete checkpoints, oldest first."""
