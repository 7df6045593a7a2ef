"""The manifest: the list of a checkpoint's files with their sizes and digests, written last of all.

A checkpoint exists when its manifest does. The manifest ends in a digest of its own text, so that no flipped bit
anywhere, here or in a listed file, goes unseen.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import stat
from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

from determined import errors
from determined.storage import digest

NAME = "manifest.json"
VERSION = 1

_TAIL = re.compile(rb',"digest":"(xxh3:[0-9a-f]{32})"\}\n\Z')
_DIGEST = re.compile(r"xxh3:[0-9a-f]{32}")


class FileRecord(NamedTuple):
    """What one file must be. A folder that holds nothing is listed as ``name/`` with size 0 and no digest."""

    size: int
    digest: str


Manifest = Mapping[str, FileRecord]


def encode(files: Manifest) -> bytes:
    """The text of a manifest, sealed by its own digest."""
    listed = {path: {"size": record.size, "digest": record.digest} for path, record in sorted(files.items())}
    body = json.dumps({"version": VERSION, "files": listed}, separators=(",", ":")).encode()
    return body[:-1] + f',"digest":"{digest.digest_bytes(body)}"}}\n'.encode()


def decode(text: bytes, where: object) -> dict[str, FileRecord]:
    """Read a manifest. Raises InvalidCheckpointException unless every byte is as it was written."""
    tail = _TAIL.search(text)
    if tail is None:
        raise _damaged(where, "its end is missing")
    body = text[: tail.start()] + b"}"
    if digest.digest_bytes(body) != tail.group(1).decode():
        raise _damaged(where, "its text is not what was written")
    content = json.loads(body)
    if content["version"] != VERSION:
        raise errors.InvalidCheckpointException(
            f"{where} has manifest version {content['version']}, this Resolute reads version {VERSION}; "
            "use the version that wrote it"
        )
    files = {path: FileRecord(entry["size"], entry["digest"]) for path, entry in content["files"].items()}
    for path, record in files.items():
        if not is_safe(path) or not (_DIGEST.fullmatch(record.digest) or path.endswith("/")):
            raise errors.InvalidCheckpointException(f"{where} lists {path!r}, which is no file of a checkpoint")
    return files


def is_safe(path: str) -> bool:
    """Whether a relative path stays below the folder it is relative to."""
    parts = path.removesuffix("/").split("/")
    return "\0" not in path and not any(part in ("", ".", "..") for part in parts) and path != NAME


def exists(folder: pathlib.Path) -> bool:
    return (folder / NAME).is_file()


def read(folder: pathlib.Path) -> dict[str, FileRecord]:
    """The manifest of a checkpoint folder, its seal checked. The listed files are not looked at."""
    try:
        text = (folder / NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise errors.InvalidCheckpointException(
            f"checkpoint {folder} has no {NAME}, so it was never finished or has lost it; use another checkpoint"
        ) from None
    return decode(text, folder / NAME)


def verify(folder: pathlib.Path, *, trusting: Container[str] = ()) -> dict[str, FileRecord]:
    """Compare every file with the manifest, and return it.

    Files in ``trusting`` are compared by size alone: for a caller who hashes them while reading. A file that differs,
    is missing, or is not listed raises InvalidCheckpointException naming it.
    """
    files = read(folder)
    found = {path: size for path, size in walk(folder) if path != NAME}
    for path in sorted(files.keys() - found.keys()):
        raise errors.InvalidCheckpointException(f"checkpoint {folder} has lost {path}; use another checkpoint")
    for path in sorted(found.keys() - files.keys()):
        raise errors.InvalidCheckpointException(
            f"checkpoint {folder} holds {path}, which its manifest does not list; remove it or use another checkpoint"
        )
    for path, record in files.items():
        check_file(folder, path, record, with_digest=path not in trusting)
    return files


def check_file(folder: pathlib.Path, path: str, record: FileRecord, *, with_digest: bool = True) -> None:
    """Raise InvalidCheckpointException unless one file is what the manifest says."""
    if path.endswith("/"):
        return
    size = (folder / path).lstat().st_size
    if size != record.size:
        raise errors.InvalidCheckpointException(
            f"{folder / path} has {size} bytes instead of {record.size}; the checkpoint is damaged, use another one"
        )
    if with_digest and digest.digest_file(folder / path)[1] != record.digest:
        raise errors.InvalidCheckpointException(
            f"{folder / path} is not what was saved (its digest differs); the checkpoint is damaged, use another one"
        )


def walk(folder: pathlib.Path) -> Iterator[tuple[str, int]]:
    """Every file below a folder as (relative path, size), and every folder that holds nothing as (``name/``, 0).

    Anything else, a link above all, raises InvalidCheckpointException: a checkpoint holds its own bytes.
    """
    pending = [""]
    while pending:
        relative = pending.pop()
        with os.scandir(folder / relative) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        if relative and not found:
            yield relative, 0
        for entry in found:
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                pending.append(f"{relative}{entry.name}/")
            elif stat.S_ISREG(mode):
                yield relative + entry.name, entry.stat(follow_symlinks=False).st_size
            else:
                raise errors.InvalidCheckpointException(
                    f"{folder / relative / entry.name} is a link or a special file; checkpoints hold plain files only"
                )


def _damaged(where: object, why: str) -> errors.InvalidCheckpointException:
    return errors.InvalidCheckpointException(f"{where} is damaged ({why}); use another checkpoint")
