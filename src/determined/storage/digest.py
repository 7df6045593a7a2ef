"""The digest that names a file's bytes: XXH3-128 over the XXH3-128 digests of its 1 MiB chunks.

Chunks make it possible to hash while writing, from several threads, and without ever holding a whole file.
"""

from __future__ import annotations

import os
import pathlib
from typing import Union

import xxhash

CHUNK_BYTES = 1 << 20
PREFIX = "xxh3:"

Buffer = Union[bytes, bytearray, memoryview]


def digest_bytes(data: Buffer) -> str:
    """The digest of bytes in memory; the same as that of a file holding them."""
    view = memoryview(data).cast("B")
    chunks = [xxhash.xxh3_128_digest(view[at : at + CHUNK_BYTES]) for at in range(0, len(view), CHUNK_BYTES)]
    return PREFIX + xxhash.xxh3_128_hexdigest(b"".join(chunks))


def digest_file(path: Union[str, os.PathLike[str]]) -> tuple[int, str]:
    """The size of a regular file and its digest. A link is an error: what it points to may change."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        digest = ChunkedDigest()
        buffer = bytearray(CHUNK_BYTES)
        view = memoryview(buffer)
        while count := file.readinto(buffer):
            digest.update(view[:count])
        return digest.size, digest.text()


class ChunkedDigest:
    """A digest that grows as bytes arrive, in pieces of any length."""

    def __init__(self) -> None:
        self.size = 0
        self._chunks: list[bytes] = []
        self._open = xxhash.xxh3_128()
        self._open_bytes = 0

    def update(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        self.size += len(view)
        at = 0
        while at < len(view):
            if not self._open_bytes and len(view) - at >= CHUNK_BYTES:
                self._chunks.append(xxhash.xxh3_128_digest(view[at : at + CHUNK_BYTES]))
                at += CHUNK_BYTES
                continue
            piece = view[at : at + CHUNK_BYTES - self._open_bytes]
            self._open.update(piece)
            self._open_bytes += len(piece)
            at += len(piece)
            if self._open_bytes == CHUNK_BYTES:
                self._chunks.append(self._open.digest())
                self._open.reset()
                self._open_bytes = 0

    def text(self) -> str:
        """The digest of everything so far; more may follow."""
        last = [self._open.digest()] if self._open_bytes else []
        return PREFIX + xxhash.xxh3_128_hexdigest(b"".join(self._chunks + last))


def copy_file(source: pathlib.Path, target: pathlib.Path) -> tuple[int, str]:
    """Copy a file and return the size and digest of what was written, hashed on the way."""
    digest = ChunkedDigest()
    buffer = bytearray(CHUNK_BYTES)  # small writes: large ones stall on some kernels
    view = memoryview(buffer)
    with open(source, "rb", buffering=0) as reader, open(target, "wb", buffering=0) as writer:
        while count := reader.readinto(buffer):
            digest.update(view[:count])
            at = 0
            while at < count:
                at += writer.write(view[at:count]) or 0
    return digest.size, digest.text()
