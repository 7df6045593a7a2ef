"""The submitted code: unpacked into a folder of the allocation, and its startup hook."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
from collections.abc import Iterator
from typing import IO

from determined import errors
from determined.wire import archive
from determined.wire.node_spec import ContextSpec

STARTUP_HOOK = "startup-hook.sh"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(context: ContextSpec, folder: pathlib.Path) -> None:
    """Unpack the code into a folder that is not there yet. Raises DeterminedError if it is not what was submitted."""
    if context.path is None:
        raise errors.InternalException("the archive of the code is not on this machine")
    try:
        with open(context.path, "rb") as file:
            # The same open file is hashed and read: nobody can put another in its place in between.
            if _sha256(file) != context.sha256:
                raise archive.BadArchive(
                    f"the archive of the code is damaged: {context.path} is not what its name says"
                )
            file.seek(0)
            extract(file, folder)
    except FileNotFoundError:
        raise errors.NotFound(
            f"the archive of the code is gone: {context.path}; submit the code again to run it again"
        ) from None


def extract(file: IO[bytes], folder: pathlib.Path, limits: archive.Limits | None = None) -> None:
    """Unpack an archive into a new folder: nothing is written outside of it, whatever is in the archive.

    Each path is walked folder by folder from an open descriptor, without following a link. Raises BadArchive.
    """
    folder.mkdir(mode=0o700)
    root = os.open(folder, _FOLDER)
    try:
        for entry, content in archive.entries(file, limits):
            with _inside(root, entry.parts if entry.is_folder else entry.parts[:-1]) as parent:
                if not entry.is_folder:
                    _write(parent, entry, content)
    finally:
        os.close(root)


@contextlib.contextmanager
def _inside(root: int, parts: tuple[str, ...]) -> Iterator[int]:
    """A folder below ``root``, made if need be, as a descriptor."""
    current = os.dup(root)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=current)
            try:
                following = os.open(part, _FOLDER, dir_fd=current)
            except OSError:
                raise archive.BadArchive(f"{'/'.join(parts)!a} is a file and a folder at once") from None
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def _write(parent: int, entry: archive.Entry, content: Iterator[bytes]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(entry.parts[-1], flags, 0o755 if entry.is_executable else 0o644, dir_fd=parent)
    except FileExistsError:
        raise archive.BadArchive(f"{'/'.join(entry.parts)!a} is in the archive of the code twice") from None
    with open(descriptor, "wb") as file:
        for piece in content:
            file.write(piece)


def _sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()
