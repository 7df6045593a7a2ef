"""Files of checkpoints: only what a sealed manifest lists is opened, beneath its folder and through no link."""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from determined import errors, storage
from determined.master.records import Checkpoint
from determined.master.settings import Settings
from determined.storage import manifest

_CHUNK = 1 << 20
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


def place_of(checkpoint: Checkpoint, settings: Settings) -> pathlib.Path:
    """The folder of a checkpoint; raises NoDirectStorageAccess if it is kept in no folder of this machine."""
    if not storage.is_storage_id(checkpoint.uuid):
        raise errors.CheckpointNotFound(f"{checkpoint.uuid!r} is no checkpoint id")
    section = checkpoint.storage
    if not section.get("type"):
        usual = settings.checkpoint_storage.model_dump(mode="json")
        section = usual if usual.get("type") else {"type": "directory", "container_path": str(settings.checkpoints_dir)}
    found = storage.build_storage(section)
    if not isinstance(found, storage.FolderStorage):
        raise errors.NoDirectStorageAccess(f"checkpoint {checkpoint.uuid} is in storage that only its own tools read")
    return found.root / checkpoint.uuid


def files(place: pathlib.Path) -> dict[str, int]:
    """What the manifest lists, and the manifest itself."""
    listed = {path: record.size for path, record in _listed(place).items()}
    return {**listed, manifest.NAME: os.stat(place / manifest.NAME).st_size}


async def send(place: pathlib.Path, path: str, wanted: str | None) -> Response:
    """A file, or the part of it that a Range header asks for. Raises NotFound for what the manifest does not list."""
    descriptor = await asyncio.to_thread(_open, place, path)
    try:
        size = os.fstat(descriptor).st_size
        found = _part(wanted, size)
    except BaseException:
        os.close(descriptor)
        raise
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(path.rpartition('/')[2], safe='')}",
    }
    if found is None:
        os.close(descriptor)
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"})
    first, end = found
    headers["Content-Length"] = str(end - first)
    if wanted is not None and _RANGE.fullmatch(wanted):
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
    status = 206 if "Content-Range" in headers else 200
    return StreamingResponse(
        _pieces(descriptor, first, end), status, headers=headers, media_type="application/octet-stream"
    )


def _listed(place: pathlib.Path) -> dict[str, manifest.FileRecord]:
    try:
        return manifest.read(place)
    except OSError:
        raise errors.CheckpointNotFound(f"the files of checkpoint {place.name} are not where they were kept") from None
    except errors.InvalidCheckpointException as error:
        raise errors.CheckpointNotFound(f"checkpoint {place.name} cannot be handed out: {error}") from None


def _open(place: pathlib.Path, path: str) -> int:
    if path != manifest.NAME and (path.endswith("/") or path not in _listed(place)):
        raise errors.NotFound(f"checkpoint {place.name} has no file {path!r}")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    here = -1
    try:
        here = os.open(place, flags | os.O_DIRECTORY)
        *folders, name = path.split("/")
        for folder in folders:
            inner = os.open(folder, flags | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = inner
        return os.open(name, flags | os.O_NONBLOCK, dir_fd=here)
    except (OSError, ValueError):
        raise errors.NotFound(f"checkpoint {place.name} has no file {path!r}") from None
    finally:
        if here >= 0:
            os.close(here)


def _part(wanted: str | None, size: int) -> tuple[int, int] | None:
    """The first byte and the one behind the last; None if there are none of what is wanted."""
    match = _RANGE.fullmatch(wanted) if wanted else None
    if match is None or match.groups() == ("", ""):
        return 0, size  # absent, or of a form that may be ignored
    start, end = match.groups()
    if not start:
        return (max(size - int(end), 0), size) if int(end) and size else None
    first = int(start)
    last = min(int(end), size - 1) if end else size - 1
    return (first, last + 1) if first <= last else None


async def _pieces(descriptor: int, first: int, end: int) -> AsyncIterator[bytes]:
    try:
        while first < end:
            piece = await asyncio.to_thread(os.pread, descriptor, min(_CHUNK, end - first), first)
            if not piece:
                raise OSError("the file has become shorter while it was read")
            yield piece
            first += len(piece)
    finally:
        os.close(descriptor)
