"""Reading a gzipped tar of submitted code from somebody we need not trust: plain files and folders, within limits.

The standard library's extraction filters can be led outside by a long chain of links, and its reader takes sizes from
the archive into memory. Here whatever is not a plain file or folder is refused, and nothing is read that has no limit.
"""

from __future__ import annotations

import dataclasses
import gzip
import zlib
from collections.abc import Iterator
from typing import IO, NamedTuple

from determined import errors

_BLOCK = 512
_PIECE = 1 << 16
_FILES = b"0\0"
_FOLDER = b"5"
_LONG_NAME = b"L"
_EXTENDED = b"x"
_EXTENDED_FOR_ALL = b"g"
_KINDS = {b"1": "hard link", b"2": "link", b"3": "device", b"4": "device", b"6": "named pipe"}


class BadArchive(errors.BadRequest):
    """The archive of the code is damaged, or holds what no archive of code may hold."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What an archive may cost whoever reads it."""

    total_bytes: int = 2 << 30
    entries: int = 100_000
    depth: int = 64
    name_bytes: int = 1024
    # A file of zeros shrinks a thousandfold, and so does a bomb: past the free part it must not be so easy.
    ratio: int = 200
    ratio_free_bytes: int = 64 << 20


class Entry(NamedTuple):
    """A file or a folder: the parts of its path, and for a file its size."""

    parts: tuple[str, ...]
    is_folder: bool
    size: int
    is_executable: bool


def entries(file: IO[bytes], limits: Limits | None = None) -> Iterator[tuple[Entry, Iterator[bytes]]]:
    """Every entry in turn with its content, to be read before the next. Raises BadArchive."""
    limits = limits or Limits()
    stream = _Stream(file, limits)
    count = 0
    long_name: bytes | None = None
    while True:
        header = stream.read(_BLOCK)
        if not header.strip(b"\0"):
            return  # the end mark, or the end
        count += 1
        if count > limits.entries:
            raise BadArchive(f"the code has more than {limits.entries} files; leave data out with .detignore")
        if len(header) < _BLOCK or not _sum_is_right(header):
            raise BadArchive("the archive of the code is damaged: this is not the beginning of a file")
        size, kind = _number(header[124:136]), header[156:157]
        if kind in (_LONG_NAME, _EXTENDED, _EXTENDED_FOR_ALL):
            if size > 4 * limits.name_bytes + 1024:
                raise BadArchive("the archive of the code is damaged: a name in it is too long")
            text = stream.read_padded(size)
            if kind == _LONG_NAME:
                long_name = text.rstrip(b"\0")
            elif kind == _EXTENDED:
                long_name = _path_in(text) or long_name
            continue
        name, long_name = long_name or _short_name(header), None
        # An old writer's folder is a file whose name ends so.
        is_folder = kind == _FOLDER or (kind in _FILES and name.endswith(b"/"))
        if not is_folder and (len(kind) != 1 or kind not in _FILES):
            what = _KINDS.get(kind, f"something of kind {kind!r}")
            raise BadArchive(f"{_shown(name)} is a {what}: code is made of plain files and folders")
        parts = _parts(name, limits)
        if kind == _FOLDER:
            size = 0
        content = stream.content(size)
        if parts:
            yield Entry(parts, is_folder, size, bool(_number(header[100:108]) & 0o100)), content
        elif not is_folder:
            raise BadArchive("the archive of the code has a file without a name")
        for _ in content:
            pass


class _Stream:
    """The unpacked bytes, counted."""

    def __init__(self, file: IO[bytes], limits: Limits) -> None:
        self._file = file
        self._unpacked = gzip.GzipFile(fileobj=file, mode="rb")
        self._limits = limits
        self._count = 0

    def read(self, size: int) -> bytes:
        """So many bytes, less only at the end. For small sizes."""
        pieces = []
        while size > 0:
            try:
                piece = self._unpacked.read(min(size, _PIECE))
            except (OSError, EOFError, zlib.error) as error:
                raise BadArchive(f"the archive of the code is damaged: {error}") from None
            if not piece:
                break
            size -= len(piece)
            self._count += len(piece)
            self._check()
            pieces.append(piece)
        return b"".join(pieces)

    def read_padded(self, size: int) -> bytes:
        data = self.read(size)
        if len(data) < size:
            raise BadArchive("the archive of the code ends too early")
        self.read(-size % _BLOCK)
        return data

    def content(self, size: int) -> Iterator[bytes]:
        """The bytes of a file, piece by piece."""
        left = size
        while left:
            piece = self.read(min(left, _PIECE))
            if not piece:
                raise BadArchive("the archive of the code ends too early")
            left -= len(piece)
            yield piece
        self.read(-size % _BLOCK)

    def _check(self) -> None:
        limits = self._limits
        if self._count > limits.total_bytes:
            raise BadArchive(f"the code is larger than {limits.total_bytes >> 20} MiB; leave data out with .detignore")
        if self._count > limits.ratio_free_bytes and self._count > limits.ratio * max(self._file.tell(), 1):
            raise BadArchive(
                f"the code unpacks to more than {limits.ratio} times its size; leave data out with .detignore"
            )


def _sum_is_right(header: bytes) -> bool:
    return sum(header[:148]) + 8 * 32 + sum(header[156:]) == _number(header[148:156])


def _number(field: bytes) -> int:
    if field[0] & 0x80:
        raise BadArchive("the archive of the code is damaged: a number in it is too large")
    text = field.strip(b" \0")
    try:
        if not text.isdigit():
            raise ValueError
        return int(text, 8)
    except ValueError:
        if not text:
            return 0
        raise BadArchive("the archive of the code is damaged: a number in it cannot be read") from None


def _short_name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _path_in(text: bytes) -> bytes | None:
    """The path that an extended header gives; sizes it gives are refused with everything else that is unusual."""
    path = None
    while text:
        length, space, _ = text.partition(b" ")
        if not space or not length.isdigit() or len(length) > 8:
            raise BadArchive("the archive of the code is damaged: a name in it cannot be read")
        record = text[len(length) + 1 : int(length)]
        key, separator, value = record.removesuffix(b"\n").partition(b"=")
        if not separator or int(length) > len(text) or int(length) <= len(length) + 1:
            raise BadArchive("the archive of the code is damaged: a name in it cannot be read")
        if key == b"path":
            path = value
        elif key in (b"size", b"linkpath") or key.startswith(b"GNU.sparse"):
            raise BadArchive(f"the archive of the code uses {_shown(key)}, which no archive of code needs")
        text = text[int(length) :]
    return path


def _parts(name: bytes, limits: Limits) -> tuple[str, ...]:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise BadArchive(f"{_shown(name)} is a name that is not UTF-8") from None
    if text.startswith("/") or "\0" in text or "\\" in text or len(name) > limits.name_bytes:
        raise BadArchive(f"{_shown(name)} is not the name of a file inside the code")
    parts = tuple(part for part in text.split("/") if part not in ("", "."))
    if ".." in parts or any(len(part.encode()) > 255 for part in parts):
        raise BadArchive(f"{_shown(name)} is not the name of a file inside the code")
    if len(parts) > limits.depth:
        raise BadArchive(f"{_shown(name)} is more than {limits.depth} folders deep")
    return parts


def _shown(name: bytes) -> str:
    return ascii(name[:80].decode(errors="replace"))
