"""Checkpoints in a folder of a file system, local or shared: one folder each, named by its id."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Union

from determined import errors
from determined.storage import base, digest, manifest
from determined.storage.manifest import FileRecord

_PARTIAL = ".partial"
_DELETED = ".deleted"


class FolderStorage:
    """Keeps checkpoints below ``root``; see base.CheckpointStorage for the promises.

    A checkpoint is written in a hidden folder beside its final place and renamed into it. A folder in the making is
    held by a lock of the processes that write it, so that one whose makers died is recognised and swept.
    """

    def __init__(self, root: Union[str, os.PathLike[str]]) -> None:
        self.root = pathlib.Path(root).expanduser().absolute()

    def begin(self, storage_id: str | None = None) -> StagedFolder:
        storage_id = base.check_storage_id(storage_id) if storage_id is not None else base.new_storage_id()
        with _saving(storage_id, self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            self.sweep()
            if (self.root / storage_id).exists():
                raise errors.CheckpointStateException(
                    f"checkpoint {storage_id} exists in {self.root}; checkpoints never change, save under a new id"
                )
            partial = self._partial(storage_id)
            return StagedFolder(self.root, storage_id, partial, _hold_new_folder(partial))

    def upload(self, source: pathlib.Path, storage_id: str, paths: Iterable[str]) -> Mapping[str, FileRecord]:
        partial = self._partial(base.check_storage_id(storage_id))
        if not partial.is_dir():
            raise errors.CheckpointStateException(
                f"checkpoint {storage_id} is not being made in {self.root} as this machine sees it; "
                "machines that save together need a checkpoint_storage they share"
            )
        written: dict[str, FileRecord] = {}
        with _saving(storage_id, self.root):
            for path in paths:
                if not manifest.is_safe(path):
                    raise errors.CheckpointStateException(f"{path!r} cannot be a file of a checkpoint; rename it")
                target = partial / path
                if path.endswith("/"):
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                written[path] = FileRecord(*digest.copy_file(source / path, target))
        return written

    def download(
        self,
        storage_id: str,
        target: pathlib.Path,
        selector: base.Selector | None = None,
        *,
        unverified: bool = False,
    ) -> Mapping[str, FileRecord]:
        with self.reading(storage_id, trusting=_Everything(), unverified=unverified) as folder:
            files = list_files(folder, unverified)
            chosen = {path: record for path, record in files.items() if selector is None or selector(path)}
            target.mkdir(parents=True, exist_ok=True)
            for path in _folders(files) if selector else ():
                if selector(path):  # type: ignore[misc]
                    (target / path).mkdir(parents=True, exist_ok=True)
            for path, record in chosen.items():
                _fetch(folder, target, path, record)
            if selector is None and manifest.exists(folder):
                shutil.copyfile(folder / manifest.NAME, target / manifest.NAME)
            return chosen

    @contextlib.contextmanager
    def reading(
        self, storage_id: str, *, trusting: Container[str] = (), unverified: bool = False
    ) -> Iterator[pathlib.Path]:
        with reading_folder(self._folder(storage_id), trusting=trusting, unverified=unverified) as folder:
            yield folder

    def files(self, storage_id: str, *, unverified: bool = False) -> Mapping[str, FileRecord]:
        return list_files(self._folder(storage_id), unverified)

    def verify(self, storage_id: str) -> None:
        manifest.verify(self._folder(storage_id))

    def delete(self, storage_id: str) -> None:
        folder = self._folder(storage_id)
        doomed = self.root / f".{storage_id}.{os.urandom(4).hex()}{_DELETED}"
        with _alone(folder):
            # Gone for everybody at once; a crash from here on leaves only a hidden folder to sweep.
            folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def remove_files(self, storage_id: str, paths: Iterable[str]) -> Mapping[str, FileRecord]:
        folder = self._folder(storage_id)
        with _alone(folder), _saving(storage_id, self.root):
            files = manifest.read(folder)
            doomed = files.keys() & {*paths}
            for path in doomed:
                if not path.endswith("/"):
                    (folder / path).unlink(missing_ok=True)
            left = {path: record for path, record in files.items() if path not in doomed}
            # Folders that hold nothing any more would be part of the checkpoint.
            for path in reversed(_folders(doomed)):
                if path not in left:
                    with contextlib.suppress(OSError):
                        (folder / path).rmdir()
            unfinished = folder / f".{manifest.NAME}"
            with open(unfinished, "wb") as file:
                file.write(manifest.encode(left))
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(folder / manifest.NAME)
            _sync(folder)
        return left

    def list(self) -> Sequence[str]:
        found: list[tuple[int, str]] = []
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.root):
                with contextlib.suppress(OSError):
                    if base.is_storage_id(entry.name):
                        found.append((os.stat(f"{entry.path}/{manifest.NAME}").st_mtime_ns, entry.name))
        return [storage_id for _, storage_id in sorted(found)]

    def sweep(self) -> None:
        """Remove what dead processes left half made or half deleted."""
        for entry in os.scandir(self.root):
            if not entry.name.startswith(".") or not entry.name.endswith((_PARTIAL, _DELETED)):
                continue
            with _holding(pathlib.Path(entry.path), fcntl.LOCK_EX | fcntl.LOCK_NB) as is_abandoned:
                if is_abandoned:
                    shutil.rmtree(entry.path, ignore_errors=True)

    def _partial(self, storage_id: str) -> pathlib.Path:
        return self.root / f".{storage_id}{_PARTIAL}"

    def _folder(self, storage_id: str) -> pathlib.Path:
        folder = self.root / base.check_storage_id(storage_id)
        if not folder.is_dir():
            raise errors.CheckpointNotFound(
                f"there is no checkpoint {storage_id} in {self.root}; {_suggest(storage_id, self.list())}"
            )
        return folder


class StagedFolder:
    """A checkpoint folder in the making; see base.StagedCheckpoint."""

    def __init__(self, root: pathlib.Path, storage_id: str, path: pathlib.Path, lock: int) -> None:
        self.storage_id = storage_id
        self.path = path
        self._root = root
        self._lock: int | None = lock
        self._records: dict[str, FileRecord] = {}

    def record(self, path: str, size: int, digest: str) -> None:
        self._records[path] = FileRecord(size, digest)

    def publish(self) -> str:
        if self._lock is None:
            raise errors.CheckpointStateException(f"checkpoint {self.storage_id} is already published or discarded")
        place = self._root / self.storage_id
        try:
            with _saving(self.storage_id, self._root):
                (self.path / manifest.NAME).unlink(missing_ok=True)
                files = {path: self._final_record(path, size) for path, size in manifest.walk(self.path)}
                lost = self._records.keys() - files.keys()
                if lost:
                    raise errors.CheckpointStateException(
                        f"checkpoint {self.storage_id} lacks {sorted(lost)[0]}, which was written from a machine that "
                        f"does not share {self._root}; name a checkpoint_storage that all machines see"
                    )
                with open(self.path / manifest.NAME, "wb") as file:
                    file.write(manifest.encode(files))
                    file.flush()
                    os.fsync(file.fileno())
                for folder in _folders(files):
                    _sync(self.path / folder)
                _sync(self.path)
                self.path.rename(place)
                try:
                    _sync(self._root)
                except OSError:
                    # Nobody may take for safe what the disk did not confirm.
                    place.rename(self.path)
                    raise
        except BaseException:
            self.discard()
            raise
        self._release()
        return self.storage_id

    def discard(self) -> None:
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self._release()

    def _final_record(self, path: str, size: int) -> FileRecord:
        if path.endswith("/"):
            return FileRecord(0, "")
        _sync(self.path / path)
        record = self._records.get(path)
        if record is None:
            return FileRecord(*digest.digest_file(self.path / path))
        if record.size != size:
            raise errors.CheckpointStateException(
                f"{path} has {size} bytes on disk but {record.size} were written; is something else writing there?"
            )
        return record

    def _release(self) -> None:
        if self._lock is not None:
            # Unlocked by name: a forked child may still hold a copy of the descriptor.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None


def verify_folder(path: str | os.PathLike[str], *, skip: Container[str] = ()) -> Mapping[str, FileRecord]:
    """Verify a checkpoint folder wherever it lies; raises InvalidCheckpointException naming the file that is wrong.

    Files in ``skip`` are compared by size alone, for a caller who verifies them while reading.
    """
    return manifest.verify(pathlib.Path(path), trusting=skip)


@contextlib.contextmanager
def reading_folder(
    path: pathlib.Path, *, trusting: Container[str] = (), unverified: bool = False
) -> Iterator[pathlib.Path]:
    """A checkpoint folder anywhere, verified, and safe from deletion until the block ends."""
    with _holding(path, fcntl.LOCK_SH):
        if manifest.exists(path) or not unverified:
            manifest.verify(path, trusting=trusting)
        yield path


def list_files(folder: pathlib.Path, unverified: bool = False) -> Mapping[str, FileRecord]:
    """What a checkpoint folder holds: by its manifest, or by looking where there is none and that is allowed."""
    if manifest.exists(folder) or not unverified:
        return manifest.read(folder)
    return {path: FileRecord(size, "") for path, size in manifest.walk(folder)}


class _Everything:
    def __contains__(self, item: object) -> bool:
        return True


def _fetch(folder: pathlib.Path, target: pathlib.Path, path: str, record: FileRecord) -> None:
    if path.endswith("/"):
        (target / path).mkdir(parents=True, exist_ok=True)
        return
    (target / path).parent.mkdir(parents=True, exist_ok=True)
    size, found = digest.copy_file(folder / path, target / path)
    if record.digest and (size, found) != record:
        (target / path).unlink()
        raise errors.InvalidCheckpointException(
            f"{folder / path} is not what was saved (its digest differs); the checkpoint is damaged, use another one"
        )


def _folders(files: Iterable[str]) -> list[str]:
    """Every folder that has a file in it, as ``a/b/``, parents first."""
    folders: set[str] = set()
    for path in files:
        parts = path.removesuffix("/").split("/") if path.endswith("/") else path.split("/")[:-1]
        folders.update("/".join(parts[: depth + 1]) + "/" for depth in range(len(parts)))
    return sorted(folders)


def _suggest(storage_id: str, known: Sequence[str]) -> str:
    if not known:
        return "there are none there"
    import difflib

    nearest = difflib.get_close_matches(storage_id, known, n=1, cutoff=0.6)
    if nearest:
        return f"did you mean {nearest[0]}?"
    newest = ", ".join(reversed(known[-5:]))
    return f"the newest there are {newest}" if len(known) > 5 else f"those there are {newest}"


@contextlib.contextmanager
def _saving(storage_id: str, root: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.CheckpointStateException(
            f"checkpoint {storage_id} could not be saved in {root}: {error.strerror or error}; "
            "earlier checkpoints are untouched"
        ) from error


def _hold_new_folder(path: pathlib.Path) -> int:
    while True:
        path.mkdir()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # somebody who saves at the same time took it for abandoned: it was not held yet
        with contextlib.suppress(OSError):  # some network file systems have no locks; then nothing is swept either
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)  # swept between its making and its locking


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """Hold a checkpoint that nobody reads meanwhile."""
    with _holding(folder, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_free:
        if not is_free:
            raise errors.CheckpointStateException(
                f"checkpoint {folder.name} is being read; delete it when the reader is done"
            )
        yield


@contextlib.contextmanager
def _holding(folder: pathlib.Path, how: int) -> Iterator[bool]:
    """Hold a lock on a folder; gives False when it was asked for without waiting and cannot be had, or when by now
    another folder is in its place."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, how)
            is_held = True
        except OSError:
            is_held = False
        yield is_held and _is_at(descriptor, folder)
        if is_held:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: pathlib.Path) -> bool:
    """Whether an open folder is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
