"""Packs a folder of code into the archive that a submission sends: the same files give the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pathlib
import stat
import tarfile
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Union

from determined import errors
from determined.client.ignore import IgnoreRules

MAX_BYTES = 95 * 1024 * 1024
NEVER_FOLDERS = frozenset(
    (
        "__pycache__",
        ".git",
        ".hg",
        ".svn",
        ".idea",
        ".vscode",
        ".terraform",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".tox",
        "node_modules",
    )
)
NEVER_FILES = (".pyc", ".pyo", ".tfstate", ".tfstate.backup", ".DS_Store")

Folder = Union[str, "os.PathLike[str]"]


class Packed(NamedTuple):
    """An archive of code. ``files`` has the size of each by its path in the archive."""

    sha256: str
    content: bytes
    files: dict[str, int]
    notices: list[str]

    @property
    def size(self) -> int:
        """Bytes of all files together, before they were compressed."""
        return sum(self.files.values())


def pack(folder: Folder | None, includes: Sequence[Folder] = (), *, max_bytes: int = MAX_BYTES) -> Packed:
    """Pack the files of a folder, and ``includes`` beside them at the top.

    ``.detignore`` is honoured; byte code, repositories, editors' folders, virtual environments, run folders and
    masters' state never go along. A link to a file inside the folder is packed as that file. Raises BadRequest for a
    link that leaves the folder, for two files of one name, and when it is all too large: say in ``.detignore`` what is
    not needed.
    """
    sources: dict[str, str] = {}
    notices: list[str] = []
    if folder is not None:
        _collect_folder(os.fspath(folder), "", sources, notices)
    for include in includes:
        _collect_include(os.fspath(include), sources, notices)
    sizes = {path: os.stat(source).st_size for path, source in sources.items()}
    _require_small(sizes, max_bytes, folder)
    content = _archive(sources, sizes)
    return Packed(hashlib.sha256(content).hexdigest(), content, sizes, notices)


def _collect_folder(root: str, below: str, sources: dict[str, str], notices: list[str]) -> None:
    if not os.path.isdir(root):
        what = "is a file, not a folder" if os.path.exists(root) else "does not exist"
        raise errors.BadRequest(f"the code folder {root} {what}")
    real_root = os.path.realpath(root)
    rules = IgnoreRules.read(pathlib.Path(root))
    pending = [""]
    while pending:
        relative = pending.pop()
        try:
            entries = sorted(os.scandir(os.path.join(root, relative)), key=lambda entry: entry.name)
        except OSError as error:
            raise _unreadable(os.path.join(root, relative), error) from None
        if relative and _is_no_code({entry.name for entry in entries}):
            continue
        for entry in entries:
            path = relative + entry.name
            if entry.name in NEVER_FOLDERS or entry.name.endswith(NEVER_FILES):
                continue
            is_folder = entry.is_dir()
            if rules.ignores(path, is_folder):
                continue
            if entry.is_symlink():
                _require_inside(entry.path, real_root, is_folder)
            mode = entry.stat().st_mode
            if is_folder:
                pending.append(f"{path}/")
            elif stat.S_ISREG(mode):
                _add(below + path, entry.path, sources)
            else:
                notices.append(f"{entry.path} is no file that could be sent, and is left out")


def _is_no_code(names: set[str]) -> bool:
    """Whether a folder is a virtual environment, a master's state (which holds credentials), or what a run left."""
    return "pyvenv.cfg" in names or "master.db" in names or {"run.json", ".lock"} <= names


def _collect_include(include: str, sources: dict[str, str], notices: list[str]) -> None:
    name = os.path.basename(os.path.abspath(include))
    if os.path.isdir(include):
        _collect_folder(include, f"{name}/", sources, notices)
    elif os.path.isfile(include):
        _add(name, include, sources)
    else:
        raise errors.BadRequest(f"{include}, which is to be included, does not exist")


def _add(path: str, source: str, sources: dict[str, str]) -> None:
    if path in sources:
        raise errors.BadRequest(f"{source} and {sources[path]} would both be sent as {path}; rename one of them")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise errors.BadRequest(
            f"{source!r} has a name that is not UTF-8; rename it or list it in .detignore"
        ) from None
    sources[path] = source


def _require_inside(path: str, real_root: str, is_folder: bool) -> None:
    place = os.path.realpath(path)
    if not os.path.exists(place):
        raise errors.BadRequest(f"{path} is a link to nothing; remove it or list it in .detignore")
    if is_folder or not place.startswith(real_root + os.sep):
        where = "a folder" if is_folder else "a file outside the code folder"
        raise errors.BadRequest(
            f"{path} is a link to {where} ({place}), which is not sent with the code; list it in .detignore, and let "
            "the code find the data by an absolute path, for example from data in the config"
        )


def _require_small(sizes: dict[str, int], max_bytes: int, folder: Folder | None) -> None:
    total = sum(sizes.values())
    if total <= max_bytes:
        return
    largest = sorted(sizes, key=lambda path: sizes[path], reverse=True)[:5]
    listed = ", ".join(f"{path} ({_megabytes(sizes[path])})" for path in largest)
    raise errors.BadRequest(
        f"the code in {folder} is {_megabytes(total)}, and at most {_megabytes(max_bytes)} are sent. The largest files "
        f"are {listed}; list what is not code in {os.fspath(folder or '.')}/.detignore"
    )


def _megabytes(size: int) -> str:
    return f"{size / 1024**2:.1f} MB"


def _archive(sources: dict[str, str], sizes: dict[str, int]) -> bytes:
    buffer = io.BytesIO()
    # No times, owners or names of the machine: the hash of the bytes says whether the master has them already.
    with gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0, compresslevel=6) as zipped:
        with tarfile.open(fileobj=zipped, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for path in _with_folders(sources):
                entry = tarfile.TarInfo(path)
                if path not in sources:
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(entry)
                    continue
                try:
                    with open(sources[path], "rb") as file:
                        content = file.read()
                        executable = os.fstat(file.fileno()).st_mode & 0o100
                except OSError as error:
                    raise _unreadable(sources[path], error) from None
                entry.size = sizes[path] = len(content)
                entry.mode = 0o755 if executable else 0o644
                archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _with_folders(paths: Iterable[str]) -> list[str]:
    folders = {parent for path in paths for parent in _parents(path)}
    return sorted({*paths, *folders})


def _parents(path: str) -> Iterable[str]:
    parts = path.split("/")
    return ("/".join(parts[:length]) for length in range(1, len(parts)))


def _unreadable(path: str, error: OSError) -> errors.BadRequest:
    return errors.BadRequest(f"{path} cannot be read: {error.strerror}; list it in .detignore if it is not needed")
