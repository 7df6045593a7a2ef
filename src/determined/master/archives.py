"""Archives of submitted code, as the master looks into them: what is in one, and the text of one file. Nothing is
unpacked here."""

from __future__ import annotations

import pathlib

from determined import errors
from determined.wire import archive
from determined.wire.archive import BadArchive

_LIMITS = archive.Limits()
# Names are kept in memory and in the database: many deep ones would be a way to fill both.
_NAME_BYTES = 16 << 20


def list_files(path: pathlib.Path) -> dict[str, int]:
    """The files in an archive, with their sizes. Reads all of it: what is listed can be unpacked. Raises BadArchive."""
    files: dict[str, int] = {}
    folders: set[str] = set()
    names_left = _NAME_BYTES
    with open(path, "rb") as file:
        for entry, content in archive.entries(file, _LIMITS):
            for _ in content:
                pass
            name = "/".join(entry.parts)
            above = {"/".join(entry.parts[:length]) for length in range(1, len(entry.parts))}
            if name in files or (not entry.is_folder and name in folders) or not above.isdisjoint(files):
                raise BadArchive(f"{name!a} is in the code twice")
            if entry.is_folder:
                above.add(name)
            else:
                files[name] = entry.size
            names_left -= len(name) + sum(map(len, above - folders))
            if names_left < 0:
                raise BadArchive("the code has too many files and folders; leave data out with .detignore")
            folders |= above
    return files


def read_file(path: pathlib.Path, name: str, limit: int) -> bytes:
    """The content of one file; raises NotFound, or TooLarge if it has more than ``limit`` bytes."""
    with open(path, "rb") as file:
        for entry, content in archive.entries(file, _LIMITS):
            if not entry.is_folder and "/".join(entry.parts) == name:
                if entry.size > limit:
                    raise errors.TooLarge(f"{name} has {entry.size} bytes; download the code to read it")
                return b"".join(content)
    raise errors.NotFound(f"there is no file {name} in this code")
