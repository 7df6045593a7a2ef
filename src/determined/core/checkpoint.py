"""Checkpoints as a training process sees them: save, share the work of saving between ranks, find and read again."""

from __future__ import annotations

import contextlib
import enum
import errno
import json
import math
import operator
import os
import pathlib
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from determined import errors
from determined.core import checkpoint_journal, sharding
from determined.core.checkpoint_journal import Entry, Journal, Retention
from determined.core.console import Console
from determined.storage import base, folder, manifest
from determined.storage.digest import digest_bytes

if TYPE_CHECKING:
    from determined.core.ranks import DistributedContext

METADATA = "metadata.json"
_FOREIGN = ("metadata.json", "load_data.json", "state_dict.pth", "checkpoint.pt", "determined", "pedl")


class DownloadMode(enum.Enum):
    """How the ranks of one machine share a download: one for all of them, or everyone alone."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Saves and loads checkpoints in the storage of this run.

    A checkpoint appears whole or not at all, and is verified whenever it is read: a damaged one raises
    errors.InvalidCheckpointException. One that cannot be saved raises errors.CheckpointStateException and leaves the
    earlier ones alone.
    """

    def __init__(
        self,
        distributed: DistributedContext,
        storage: base.CheckpointStorage,
        journal: pathlib.Path,
        console: Console,
        *,
        settle_metrics: Callable[[], None] = lambda: None,
        history: Callable[[str], Mapping[int, float]] = lambda metric: {},
        elsewhere: Callable[[str], base.CheckpointStorage | None] = lambda storage_id: None,
        published: Callable[[Publication], None] | None = None,
        deleted: Callable[[str], None] = lambda storage_id: None,
        steps_so_far: Callable[[], int] = lambda: 0,
        deletes_by_policy: bool = True,
    ) -> None:
        self._distributed = distributed
        self._console = console
        self._settle_metrics = settle_metrics
        self._history = history
        self._elsewhere = elsewhere
        self._published, self._deleted = published, deleted
        self._steps_so_far = steps_so_far
        self._deletes_by_policy = deletes_by_policy
        self._lock = threading.Lock()
        self._retention: Retention | None = None
        self._values: dict[int, float] = {}
        self._storage, self._journal = storage, Journal(journal)

    def reopen(self, storage: base.CheckpointStorage, journal: pathlib.Path) -> None:
        """Turn to the storage and the history of another run."""
        self._storage = storage
        self._journal = Journal(journal)
        self._learn_history()

    # --- the public part

    @contextlib.contextmanager
    def store_path(
        self, metadata: dict[str, Any] | None = None, *, shard: bool = False
    ) -> Iterator[tuple[pathlib.Path, str]]:
        """A folder to save into, and the id under which it becomes a checkpoint when the block ends.

        With ``shard`` all ranks call this and save into the same folder; otherwise the chief alone does.
        """
        if not shard:
            self._require_chief("store_path")
            staged = self._begin(metadata)
            try:
                with _converting(staged.storage_id):
                    yield staged.path, staged.storage_id
            except BaseException:
                staged.discard()
                raise
            staged.publish()
            return

        draft: _Draft | None = None

        def begin() -> tuple[str, str]:
            nonlocal draft
            draft = self._begin({})
            return draft.storage_id, str(draft.path)

        storage_id, path = self._from_chief(begin)
        failure: BaseException | None = None
        try:
            # Whatever happens here, this rank must say so to the others, who wait for it.
            check_metadata(metadata)
            if not os.path.isdir(path):
                raise errors.CheckpointStateException(
                    f"rank {self._distributed.rank} cannot see {path}; machines that save together need a "
                    "checkpoint_storage they share"
                )
            with _converting(storage_id):
                yield pathlib.Path(path), storage_id
        except BaseException as error:
            failure = error
        said = self._distributed.allgather((metadata, _text(failure)))
        try:
            if failure is not None:
                raise failure
            self._raise_first(storage_id, [problem for _, problem in said])
            merged = sharding.merge_metadata([each for each, _ in said])
        except BaseException:
            if draft is not None:
                draft.discard()
            raise

        def publish() -> None:
            assert draft is not None
            draft.metadata = merged
            draft.publish()

        self._from_chief(publish)

    def upload(
        self,
        ckpt_dir: Union[str, os.PathLike[str], None],
        metadata: dict[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Callable[[str], bool] | None = None,
    ) -> str:
        """Save a folder, or what the selector takes of it, as a new checkpoint and return its id.

        With ``shard`` all ranks call this, each with a folder of its own, a shared one, or None; files and metadata are
        merged, and a contradiction raises on every rank.
        """
        if not shard:
            self._require_chief("upload")
            if ckpt_dir is None:
                raise RuntimeError("upload() needs a folder; only some ranks of a sharded upload may give None")
            source = pathlib.Path(ckpt_dir)
            staged = self._begin(metadata)
            try:
                files = sharding.list_folder(source, selector)
                for path, record in self._storage.upload(source, staged.storage_id, sorted(files)).items():
                    staged.record(path, *record)
                return staged.publish()
            except BaseException:
                staged.discard()
                raise
        return self._upload_together(ckpt_dir, metadata, selector)

    def download(
        self,
        storage_id: str,
        ckpt_dir: Union[str, os.PathLike[str]],
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Callable[[str], bool] | None = None,
    ) -> None:
        """Copy a checkpoint, or what the selector takes of it, into a folder, verified.

        The selector is given relative paths, those of folders ending in "/".
        """

        def fetch() -> None:
            self._storage_of(storage_id).download(
                storage_id, pathlib.Path(ckpt_dir), selector, unverified=self._is_foreign(storage_id)
            )

        if DownloadMode(download_mode) is DownloadMode.NoSharedDownload:
            fetch()
        else:
            self._from_local_chief(fetch)

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Callable[[str], bool] | None = None,
    ) -> Iterator[pathlib.Path]:
        """A folder with a checkpoint in it, verified, to read from until the block ends.

        Where the checkpoint lies in a folder already it is that folder, whole, whatever the selector takes.
        """
        with self.reading(storage_id, download_mode) as path:
            yield path

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """The metadata a checkpoint was saved with."""
        with self._storage_of(storage_id).reading(
            storage_id, trusting=_AllBut(METADATA), unverified=self._is_foreign(storage_id)
        ) as path:
            return read_metadata(path)

    def delete(self, storage_id: str) -> None:
        """Remove a checkpoint; refused with errors.CheckpointStateException while it is being read."""
        self._storage.delete(storage_id)
        self._deleted(storage_id)

    # --- for the trainer

    @property
    def storage(self) -> base.CheckpointStorage:
        """The storage itself."""
        return self._storage

    @property
    def retention(self) -> Retention:
        """What is kept; until ``retain`` was called, everything is."""
        return self._retention or Retention()

    def retain(self, best: int = 1, latest: int = 1, metric: str | None = None, smaller_is_better: bool = True) -> None:
        """From now on keep so many best and latest checkpoints of this run, and delete the others after each save."""
        self._retention = Retention(best, latest, metric, smaller_is_better)
        self._learn_history()

    def begin(self, metadata: dict[str, Any] | None = None) -> base.StagedCheckpoint:
        """Start a checkpoint to be filled and published, on the chief, from any thread."""
        self._require_chief("begin")
        return self._begin(metadata)

    def record_validation(self, steps_completed: int, value: float) -> None:
        """Note the searcher's metric after so many steps: it rates the checkpoint of the same step."""
        self._values[steps_completed] = value
        self._journal.learn({steps_completed: value})

    def best_validation(self) -> float | None:
        """The best validation value so far that is a number."""
        numbers = [value for value in list(self._values.values()) if not math.isnan(value)]
        if not numbers:
            return None
        return min(numbers) if self.retention.smaller_is_better else max(numbers)

    def list(self) -> Sequence[Entry]:
        """This run's checkpoints that are there, the latest last."""
        # Only the chief's copy grows as it saves; another rank looks at what the chief wrote.
        journal = self._journal if self._distributed.rank == 0 else Journal(self._journal.path)
        return journal.entries(set(self._storage.list()))

    def latest(self) -> Entry | None:
        """The checkpoint to resume from."""
        return next(iter(self.list()[::-1]), None)

    def best(self) -> Entry | None:
        """The checkpoint with the best validation value."""
        return next(iter(checkpoint_journal.best(self.list(), self.retention.smaller_is_better)), None)

    @contextlib.contextmanager
    def reading(
        self,
        checkpoint: Union[str, pathlib.Path],
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        trusting: Container[str] = (),
    ) -> Iterator[pathlib.Path]:
        """As ``restore_path``, also for a folder anywhere (a ``pathlib.Path``).

        Files in ``trusting`` are compared by size alone, for a caller who verifies them while reading.
        """
        is_shared = DownloadMode(download_mode) is DownloadMode.LocalWorkersShareDownload
        with contextlib.ExitStack() as stack:

            def open_checkpoint() -> str:
                return str(stack.enter_context(self._open(checkpoint, trusting)))

            path = self._from_local_chief(open_checkpoint) if is_shared else open_checkpoint()
            try:
                yield pathlib.Path(path)
            finally:
                if is_shared and self._distributed.local_size > 1:
                    self._distributed.gather_local(None)  # the chief of the machine lets go when all have read

    # --- below

    def _open(
        self, checkpoint: Union[str, pathlib.Path], trusting: Container[str]
    ) -> contextlib.AbstractContextManager[pathlib.Path]:
        if isinstance(checkpoint, pathlib.Path):
            unverified = not self._journal.knows(checkpoint.name) and self._looks_foreign(
                str(checkpoint), folder.list_files(checkpoint, unverified=True)
            )
            return folder.reading_folder(checkpoint, trusting=trusting, unverified=unverified)
        return self._storage_of(checkpoint).reading(
            checkpoint, trusting=trusting, unverified=self._is_foreign(checkpoint)
        )

    def _storage_of(self, storage_id: str) -> base.CheckpointStorage:
        """Where a checkpoint to be read is: in this run's storage, or in an earlier run's."""
        return self._elsewhere(storage_id) or self._storage

    def _is_foreign(self, storage_id: str) -> bool:
        # What this run published has a manifest, or is broken.
        if self._journal.knows(storage_id):
            return False
        return self._looks_foreign(storage_id, self._storage_of(storage_id).files(storage_id, unverified=True))

    def _looks_foreign(self, checkpoint: str, files: Mapping[str, manifest.FileRecord]) -> bool:
        if any(record.digest for record in files.values()):
            return False
        if not any(path.split("/")[0] in _FOREIGN for path in files):
            return False
        self._console.info(
            f"checkpoint {checkpoint} has no manifest, as those of Determined: it is read without being verified"
        )
        return True

    def _learn_history(self) -> None:
        """Take over the validation values seen so far, also by earlier starts of this run."""
        if self._retention is not None and self._retention.metric and self._distributed.rank == 0:
            self._settle_metrics()
            self._values = dict(self._history(self._retention.metric))
            self._journal.learn(self._values)

    def _begin(self, metadata: Mapping[str, Any] | None) -> _Draft:
        check_metadata(metadata)
        return _Draft(self, self._storage.begin(), dict(metadata) if metadata is not None else None)

    def note_publication(self, storage_id: str, metadata: Mapping[str, Any]) -> None:
        """Called just before a checkpoint appears: metrics first, so that none is missing at the cut."""
        self._settle_metrics()
        steps = metadata.get("steps_completed")
        value = self._values.get(steps) if isinstance(steps, int) else None
        self._journal.publish(storage_id, steps, time.time(), value)

    def announce(self, storage_id: str, metadata: Mapping[str, Any]) -> None:
        """Called when a checkpoint has appeared."""
        if self._published is None:
            return
        steps = metadata.get("steps_completed")
        files = {path: record.size for path, record in self._storage.files(storage_id).items()}
        self._published(
            Publication(storage_id, steps if isinstance(steps, int) else self._steps_so_far(), metadata, files)
        )

    def apply_retention(self) -> None:
        """Delete what the policy no longer keeps; what cannot be deleted now goes after the next save."""
        if self._retention is None or not self._deletes_by_policy:
            return
        with self._lock:
            for entry in checkpoint_journal.to_delete(self.list(), self._retention):
                # Being read, gone already, or a storage in trouble: no reason to fail a save that has worked.
                with contextlib.suppress(errors.DeterminedError, OSError):
                    self.delete(entry.storage_id)

    def _upload_together(
        self,
        ckpt_dir: Union[str, os.PathLike[str], None],
        metadata: dict[str, Any] | None,
        selector: Callable[[str], bool] | None,
    ) -> str:
        ranks = self._distributed
        offer, problem = sharding.Offer(), None
        try:
            check_metadata(metadata)
            offer = sharding.make_offer(ckpt_dir, selector, ranks.cross_rank)
        except Exception as error:
            problem = _sentence(error)
        said = ranks.allgather((offer, metadata, problem))
        self._raise_first("", [each[2] for each in said])
        offers = [each[0] for each in said]
        # Every rank works out the same from the same offers, so that all raise or none does.
        if all(each.folder is None for each in offers):
            raise RuntimeError("no rank gave a folder to upload; at least one must")
        merged = sharding.merge_metadata([each[1] for each in said])
        contested = sharding.contested(offers)
        if contested:
            source = pathlib.Path(ckpt_dir) if ckpt_dir is not None else None
            digests = ranks.allgather(sharding.digest_files(source, offer, contested))
            sharding.check_equal(digests)
        mine = sharding.assign(offers)[ranks.rank]

        draft: _Draft | None = None

        def begin() -> str:
            nonlocal draft
            draft = self._begin(merged)
            return draft.storage_id

        storage_id: str = self._from_chief(begin)
        records: Mapping[str, manifest.FileRecord] = {}
        try:
            if ckpt_dir is not None and mine:
                records = self._storage.upload(pathlib.Path(ckpt_dir), storage_id, mine)
        except Exception as error:
            problem = _sentence(error)
        written = ranks.allgather((records, problem))
        if draft is not None and any(each[1] for each in written):
            draft.discard()
        self._raise_first(storage_id, [each[1] for each in written])

        def publish() -> None:
            assert draft is not None
            for files, _ in written:
                for path, record in files.items():
                    draft.record(path, *record)
            draft.publish()

        self._from_chief(publish)
        return storage_id

    def _require_chief(self, method: str) -> None:
        if self._distributed.rank != 0:
            raise RuntimeError(
                f"{method}() without shard=True was called on a non-chief rank ({self._distributed.rank}); "
                "call it on rank 0 only, or on all ranks with shard=True"
            )

    def _from_chief(self, act: Callable[[], Any]) -> Any:
        """Let the chief act, and give its result, or raise its error, on every rank."""
        ranks = self._distributed
        return _share(act, ranks.rank == 0, ranks.broadcast if ranks.size > 1 else None)

    def _from_local_chief(self, act: Callable[[], Any]) -> Any:
        """The same within one machine."""
        ranks = self._distributed
        return _share(act, ranks.local_rank == 0, ranks.broadcast_local if ranks.local_size > 1 else None)

    def _raise_first(self, storage_id: str, problems: Sequence[str | None]) -> None:
        for rank, problem in enumerate(problems):
            if problem is not None:
                raise errors.CheckpointStateException(
                    f"checkpoint {storage_id} was not saved, because of rank {rank}: {problem}".replace("  ", " ")
                )


class _Draft:
    """A checkpoint in the making that enters the run's journal when it is published."""

    def __init__(
        self, context: CheckpointContext, staged: base.StagedCheckpoint, metadata: dict[str, Any] | None
    ) -> None:
        self.storage_id = staged.storage_id
        self.path = staged.path
        self.metadata = metadata
        self._context = context
        self._staged = staged

    def record(self, path: str, size: int, digest: str) -> None:
        self._staged.record(path, size, digest)

    def publish(self) -> str:
        with _converting(self.storage_id):
            try:
                # A folder saved again brings the metadata it was saved with.
                metadata = read_metadata(self.path) if self.metadata is None else self.metadata
                content = json.dumps(metadata, indent=2).encode()
                (self.path / METADATA).write_bytes(content)
                self._staged.record(METADATA, len(content), digest_bytes(content))
                self._context.note_publication(self.storage_id, metadata)
            except BaseException:
                self._staged.discard()
                raise
            self._staged.publish()
        self._context.announce(self.storage_id, metadata)
        self._context.apply_retention()
        return self.storage_id

    def discard(self) -> None:
        self._staged.discard()


class Found(NamedTuple):
    """A checkpoint to start from: its id, the folder it lies in, and the step it was taken at."""

    storage_id: str
    path: pathlib.Path
    steps_completed: int


class Publication(NamedTuple):
    """A checkpoint that has just appeared; ``files`` are sizes by path."""

    storage_id: str
    steps_completed: int
    metadata: Mapping[str, Any]
    files: Mapping[str, int]


def read_metadata(path: pathlib.Path) -> dict[str, Any]:
    """The metadata in a checkpoint folder; empty when it holds none."""
    try:
        metadata = json.loads((path / METADATA).read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise errors.InvalidCheckpointException(f"{path / METADATA} is no JSON: {error}") from None
    if not isinstance(metadata, dict):
        raise errors.InvalidCheckpointException(f"{path / METADATA} holds a {type(metadata).__name__}, not a map")
    return metadata


def check_metadata(metadata: Mapping[str, Any] | None) -> None:
    """Raise unless the metadata can be kept as JSON and its ``steps_completed``, if any, is a whole number."""
    if metadata is None:
        return
    if not isinstance(metadata, Mapping):
        raise TypeError(f"checkpoint metadata is a dict, not {type(metadata).__name__}")
    try:
        operator.index(metadata.get("steps_completed", 0))
        json.dumps(dict(metadata))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"checkpoint metadata must be plain JSON, with a whole number as steps_completed: {error}"
        ) from None


def _share(act: Callable[[], Any], is_mine: bool, broadcast: Callable[[Any], Any] | None) -> Any:
    if broadcast is None:
        return act()
    result: Any = None
    failure: BaseException | None = None
    if is_mine:
        try:
            result = act()
        except BaseException as error:
            failure = error
    result, problem = broadcast((result, failure if isinstance(failure, errors.DeterminedError) else _text(failure)))
    if failure is not None:
        raise failure
    if isinstance(problem, errors.DeterminedError):
        raise problem
    if problem is not None:
        raise errors.CheckpointStateException(f"the chief rank failed: {problem}")
    return result


def _text(error: BaseException | None) -> str | None:
    return None if error is None else _sentence(error)


def _sentence(error: BaseException) -> str:
    return str(error) if isinstance(error, errors.DeterminedError) else f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _converting(storage_id: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        converted = _as_state_error(error, storage_id)
        if converted is error:
            raise
        raise converted from error


def _as_state_error(error: BaseException, storage_id: str) -> BaseException:
    """A full disk becomes the one error that a trainer survives; everything else stays what it is."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
        return errors.CheckpointStateException(
            f"checkpoint {storage_id} could not be saved: {error.strerror}; earlier checkpoints are untouched"
        )
    return error


class _AllBut:
    def __init__(self, path: str) -> None:
        self._path = path

    def __contains__(self, path: object) -> bool:
        return path != self._path
