"""Submitted code: archives, each known by the hash of its bytes, which is verified while they come in."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import pathlib
import secrets
from typing import IO, Annotated, Any

from fastapi import Path, Request
from starlette.responses import FileResponse, PlainTextResponse, Response

from determined import errors
from determined.master import archives
from determined.master.api.access import Db
from determined.master.api.policy import Router, policy
from determined.master.records import CodeContext
from determined.master.store import contexts
from determined.master.store.database import Tx
from determined.wire.views import ContextView

router = Router()

MAX_BYTES = 95 * 2**20 + 2**16  # what may be packed, and a little for what packing adds
_MAX_TEXT = 4 * 2**20
_PIECE = 2**20
PARTIAL = ".partial"

Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the archive.")]


@router.put(
    "/contexts/{sha256}",
    dependencies=[policy("write", replays=False)],
    openapi_extra={
        "requestBody": {"content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def put_context(sha256: Sha256, request: Request, db: Db) -> ContextView:
    """Hand over code, as a gzipped tar of plain files and folders. What is there already is not taken again."""
    folder: pathlib.Path = request.app.state.settings.contexts_dir
    path = path_of(folder, sha256)
    found = await db.read(contexts.get, sha256)
    if found is not None and path.exists():
        return _show(found)
    partial = folder / f"{secrets.token_hex(8)}{PARTIAL}"
    try:
        size = await _receive(request, partial, sha256)
        files = await asyncio.to_thread(archives.list_files, partial)
        await asyncio.to_thread(_publish, partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
    return await db.write(_insert, sha256, size, files)


@router.head("/contexts/{sha256}", dependencies=[policy("read", allocations="any")])
async def has_context(sha256: Sha256, request: Request, db: Db) -> Response:
    """Whether the master has this code."""
    found = await _require(sha256, request, db)
    return Response(headers={"Content-Length": str(found.size), "Content-Type": "application/gzip"})


@router.get("/contexts/{sha256}", dependencies=[policy("read", allocations="any")], response_class=FileResponse)
async def get_context(sha256: Sha256, request: Request, db: Db) -> FileResponse:
    """The archive, to download."""
    await _require(sha256, request, db)
    path = path_of(request.app.state.settings.contexts_dir, sha256)
    return FileResponse(path, media_type="application/gzip", filename=f"code-{sha256[:12]}.tar.gz")


@router.get("/contexts/{sha256}/files", dependencies=[policy("read", allocations="any")])
async def list_files(sha256: Sha256, request: Request, db: Db) -> dict[str, int]:
    """The files in it, with their sizes."""
    return (await _require(sha256, request, db)).files


@router.get(
    "/contexts/{sha256}/files/{path:path}",
    dependencies=[policy("read", allocations="any")],
    response_class=PlainTextResponse,
)
async def get_file(
    sha256: Sha256, path: Annotated[str, Path(description="The file's place in the archive.")], request: Request, db: Db
) -> Response:
    """The text of one of its files."""
    found = await _require(sha256, request, db)
    # A name that is on the list is looked for in the archive; no name ever becomes a path.
    if path not in found.files:
        raise errors.NotFound("there is no such file in this code")
    archive = path_of(request.app.state.settings.contexts_dir, sha256)
    content = await asyncio.to_thread(archives.read_file, archive, path, _MAX_TEXT)
    return Response(content.decode(errors="replace"), media_type="text/plain; charset=utf-8")


def path_of(folder: pathlib.Path, sha256: str) -> pathlib.Path:
    """Where the archive of this hash is."""
    return folder / f"{sha256}.tar.gz"


async def _receive(request: Request, path: pathlib.Path, sha256: str) -> int:
    """Write the body to a file while it is hashed; returns its size. Raises BadRequest if the hash is another."""
    digest, size, pending = hashlib.sha256(), 0, bytearray()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        async for piece in request.stream():
            size += len(piece)
            if size > MAX_BYTES:
                raise errors.TooLarge("the code is larger than 95 MB when packed; leave data out with .detignore")
            pending += piece
            if len(pending) >= _PIECE:
                await asyncio.to_thread(_write, file, digest, bytes(pending))
                pending.clear()
        await asyncio.to_thread(_write, file, digest, bytes(pending))
        await asyncio.to_thread(_sync, file)
    if digest.hexdigest() != sha256:
        raise errors.BadRequest("the bytes that came have another SHA-256 than the address says; send them again")
    return size


def _write(file: IO[bytes], digest: Any, piece: bytes) -> None:
    digest.update(piece)
    file.write(piece)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _publish(partial: pathlib.Path, path: pathlib.Path) -> None:
    """A file is there whole, or not at all, also after a power cut."""
    os.replace(partial, path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def _require(sha256: str, request: Request, db: Db) -> CodeContext:
    found = await db.read(contexts.get, sha256)
    if found is None or not path_of(request.app.state.settings.contexts_dir, sha256).exists():
        raise errors.NotFound(f"there is no code {sha256[:12]} here; upload it first")
    return found


def _insert(tx: Tx, sha256: str, size: int, files: dict[str, int]) -> ContextView:
    return _show(contexts.insert(tx, sha256, size, files))


def _show(found: CodeContext) -> ContextView:
    return ContextView(sha256=found.sha256, size=found.size, file_count=len(found.files), created_at=found.created_at)
