"""Checkpoints are saved whole, by one rank or by many, found again, verified, and kept as the policy says."""

from __future__ import annotations

import errno
import json
import pathlib
from typing import Any

import pytest

from determined import errors
from determined.core.checkpoint import CheckpointContext, DownloadMode
from determined.core.console import Console
from determined.core.ranks import DistributedContext
from determined.storage import FolderStorage, base
from determined.testing.storage import contents, write
from tests.unit.core.gang import run_gang
from tests.unit.core.test_train import Quiet


def make(folder: pathlib.Path, distributed: DistributedContext | None = None, **more: Any) -> CheckpointContext:
    more.setdefault("stream", Quiet())
    console = Console(more.pop("stream"))
    (folder / "run").mkdir(exist_ok=True)
    return CheckpointContext(
        distributed or DistributedContext(),
        FolderStorage(folder / "store"),
        folder / "run" / "checkpoints.jsonl",
        console,
        **more,
    )


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path) -> CheckpointContext:
    return make(tmp_path)


def save(checkpoint: CheckpointContext, steps: int, **files: bytes) -> str:
    with checkpoint.store_path({"steps_completed": steps}) as (path, storage_id):
        write(path, files or {"weights": str(steps).encode()})
    return storage_id


def test_store_and_restore(checkpoint: CheckpointContext) -> None:
    with checkpoint.store_path({"steps_completed": 5, "note": "ü"}) as (path, storage_id):
        assert isinstance(path, pathlib.Path)
        write(path, {"a/b.txt": b"hello"})
    with checkpoint.restore_path(storage_id) as path:
        assert contents(path).keys() == {"a/b.txt", "metadata.json"}
        assert json.loads((path / "metadata.json").read_text()) == {"steps_completed": 5, "note": "ü"}
    assert checkpoint.get_metadata(storage_id) == {"steps_completed": 5, "note": "ü"}


def test_nothing_is_stored_when_the_block_raises(checkpoint: CheckpointContext) -> None:
    with pytest.raises(KeyError), checkpoint.store_path({}) as (path, _):
        write(path, {"half": b"x"})
        raise KeyError("x")
    assert list(checkpoint.list()) == [] and list(checkpoint.storage.list()) == []


def test_a_full_disk_is_the_error_a_trainer_survives(checkpoint: CheckpointContext) -> None:
    before = save(checkpoint, 1)
    with pytest.raises(errors.CheckpointStateException, match="No space left"), checkpoint.store_path():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert [entry.storage_id for entry in checkpoint.list()] == [before]


def test_upload_and_download(checkpoint: CheckpointContext, tmp_path: pathlib.Path) -> None:
    write(tmp_path / "mine", {"a": b"1", "sub/b": b"2", "sub/skip": b"3"})
    storage_id = checkpoint.upload(
        tmp_path / "mine", {"steps_completed": 1}, selector=lambda path: not path.endswith("skip")
    )
    checkpoint.download(storage_id, tmp_path / "copy")
    assert contents(tmp_path / "copy").keys() == {"a", "sub/b", "metadata.json"}
    checkpoint.download(storage_id, tmp_path / "part", selector=lambda path: path.startswith("sub"))
    assert contents(tmp_path / "part").keys() == {"sub/b"}
    again = checkpoint.upload(str(tmp_path / "copy"))  # with what it was saved with
    assert checkpoint.get_metadata(again) == {"steps_completed": 1}


def test_a_missing_folder_is_an_error_that_leaves_nothing(
    checkpoint: CheckpointContext, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(FileNotFoundError, match="no folder"):
        checkpoint.upload(tmp_path / "missing")
    with pytest.raises(RuntimeError, match="needs a folder"):
        checkpoint.upload(None)
    assert list(checkpoint.storage.list()) == []


@pytest.mark.parametrize("metadata", [{"steps_completed": 1.5}, {"x": object()}, {"x": {1}}])
def test_metadata_is_plain(checkpoint: CheckpointContext, metadata: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="plain JSON"), checkpoint.store_path(metadata):
        pass


def test_empty_checkpoints_are_fine(checkpoint: CheckpointContext) -> None:
    with checkpoint.store_path() as (_, storage_id):
        pass
    assert checkpoint.get_metadata(storage_id) == {}


def test_delete(checkpoint: CheckpointContext) -> None:
    storage_id = save(checkpoint, 1)
    with checkpoint.restore_path(storage_id), pytest.raises(errors.CheckpointStateException, match="being read"):
        checkpoint.delete(storage_id)
    checkpoint.delete(storage_id)
    with pytest.raises(errors.CheckpointNotFound):
        checkpoint.get_metadata(storage_id)
    with pytest.raises(errors.CheckpointNotFound, match="not a checkpoint id"):
        checkpoint.delete("../../home")


def test_damage_is_refused(checkpoint: CheckpointContext, tmp_path: pathlib.Path) -> None:
    storage_id = save(checkpoint, 1)
    (tmp_path / "store" / storage_id / "weights").write_bytes(b"2")
    with pytest.raises(errors.InvalidCheckpointException, match="weights"), checkpoint.restore_path(storage_id):
        pass


def test_a_checkpoint_of_determined_is_read_with_a_notice(tmp_path: pathlib.Path) -> None:
    stream = Quiet()
    checkpoint = make(tmp_path, stream=stream)
    write(tmp_path / "store" / "old", {"state_dict.pth": b"x", "metadata.json": b'{"steps_completed": 7}'})
    assert checkpoint.get_metadata("old") == {"steps_completed": 7}
    with checkpoint.restore_path("old") as path:
        assert (path / "state_dict.pth").read_bytes() == b"x"
    with checkpoint.reading(tmp_path / "store" / "old") as path:
        assert (path / "state_dict.pth").read_bytes() == b"x"
    checkpoint.download("old", tmp_path / "copy")
    assert "state_dict.pth" in contents(tmp_path / "copy")
    assert "without being verified" in stream.text


def test_a_checkpoint_of_ours_that_lost_its_manifest_is_no_stranger(
    checkpoint: CheckpointContext, tmp_path: pathlib.Path
) -> None:
    storage_id = save(checkpoint, 1)
    (tmp_path / "store" / storage_id / "manifest.json").unlink()
    with pytest.raises(errors.InvalidCheckpointException, match="manifest"), checkpoint.restore_path(storage_id):
        pass
    folder = tmp_path / "store" / storage_id
    with pytest.raises(errors.InvalidCheckpointException, match="manifest"), checkpoint.reading(folder):
        pass


def test_without_a_policy_everything_is_kept(checkpoint: CheckpointContext) -> None:
    ids = [save(checkpoint, steps) for steps in range(4)]
    assert [entry.storage_id for entry in checkpoint.list()] == ids
    latest = checkpoint.latest()
    assert latest is not None and latest.storage_id == ids[-1]


def test_the_best_and_the_latest_are_kept(checkpoint: CheckpointContext) -> None:
    checkpoint.retain(best=1, latest=2, metric="loss")
    ids = []
    for steps, value in enumerate([0.5, 0.1, 0.9, float("nan"), 0.7]):
        checkpoint.record_validation(steps, value)
        ids.append(save(checkpoint, steps))
    assert [entry.storage_id for entry in checkpoint.list()] == [ids[1], ids[3], ids[4]]
    best = checkpoint.best()
    assert best is not None and (best.storage_id, best.value) == (ids[1], 0.1)
    assert set(checkpoint.storage.list()) == {ids[1], ids[3], ids[4]}


def test_a_validation_after_the_save_counts_too(checkpoint: CheckpointContext) -> None:
    checkpoint.retain(metric="acc", smaller_is_better=False)
    first = save(checkpoint, 1)
    checkpoint.record_validation(1, 0.9)
    second = save(checkpoint, 2)
    checkpoint.record_validation(2, 0.1)
    third = save(checkpoint, 3)
    assert [entry.storage_id for entry in checkpoint.list()] == [first, third]
    assert second not in checkpoint.storage.list()
    assert checkpoint.best_validation() == 0.9


def test_what_is_being_read_outlives_the_policy_until_it_is_closed(checkpoint: CheckpointContext) -> None:
    checkpoint.retain()
    first = save(checkpoint, 1)
    with checkpoint.restore_path(first) as path:
        save(checkpoint, 2)
        save(checkpoint, 3)
        assert (path / "weights").read_bytes() == b"1"
    last = save(checkpoint, 4)
    assert list(checkpoint.storage.list()) == [last]


def test_checkpoints_of_others_in_the_same_storage_are_let_alone(
    checkpoint: CheckpointContext, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "other").mkdir()
    stranger = base.new_storage_id()
    checkpoint.storage.begin(stranger).publish()
    checkpoint.retain()
    for steps in range(3):
        save(checkpoint, steps)
    assert stranger in checkpoint.storage.list() and len(checkpoint.storage.list()) == 2


def test_metrics_are_durable_before_the_checkpoint_that_follows_them(tmp_path: pathlib.Path) -> None:
    seen: list[int] = []
    checkpoint = make(tmp_path, settle_metrics=lambda: seen.append(len(FolderStorage(tmp_path / "store").list())))
    save(checkpoint, 1)
    assert seen == [0]


# Ranks together


def test_one_rank_alone_must_be_the_chief(tmp_path: pathlib.Path) -> None:
    def work(distributed: DistributedContext) -> None:
        checkpoint = make(tmp_path, distributed)
        if distributed.rank:
            with pytest.raises(RuntimeError, match="non-chief"), checkpoint.store_path({}):
                pass
            with pytest.raises(RuntimeError, match="non-chief"):
                checkpoint.upload(tmp_path, {})

    assert run_gang(2, work) == [None, None]


def test_all_ranks_store_into_one_checkpoint(tmp_path: pathlib.Path) -> None:
    def work(distributed: DistributedContext) -> Any:
        checkpoint = make(tmp_path, distributed)
        metadata = {"steps_completed": 3, f"rank{distributed.rank}": True}
        with checkpoint.store_path(metadata, shard=True) as (path, storage_id):
            write(path, {f"shard-{distributed.rank}": bytes([distributed.rank])})
        with checkpoint.restore_path(storage_id) as path:
            found = contents(path)
        found.pop("metadata.json")
        return storage_id, found, checkpoint.get_metadata(storage_id), [e.storage_id for e in checkpoint.list()]

    first, *others = run_gang(3, work)
    assert all(other == first for other in others)
    storage_id, found, metadata, listed = first
    assert found == {"shard-0": b"\0", "shard-1": b"\1", "shard-2": b"\2"}
    assert metadata == {"steps_completed": 3, "rank0": True, "rank1": True, "rank2": True}
    assert listed == [storage_id]


def test_an_error_of_one_rank_while_storing_is_everybodys(tmp_path: pathlib.Path) -> None:
    def work(distributed: DistributedContext) -> None:
        checkpoint = make(tmp_path, distributed)
        with checkpoint.store_path({}, shard=True):
            if distributed.rank == 1:
                raise KeyError("mine")

    zero, one, two = run_gang(3, work)
    assert isinstance(one, KeyError)
    for other in (zero, two):
        assert isinstance(other, errors.CheckpointStateException) and "rank 1: KeyError: 'mine'" in str(other)
    assert list(FolderStorage(tmp_path / "store").list()) == []


def test_contradicting_metadata_is_refused_on_every_rank(tmp_path: pathlib.Path) -> None:
    def store(distributed: DistributedContext) -> None:
        with make(tmp_path, distributed).store_path({"x": distributed.rank}, shard=True):
            pass

    def upload(distributed: DistributedContext) -> None:
        make(tmp_path, distributed).upload(tmp_path / "run", {"x": distributed.rank}, shard=True)

    for work in (store, upload):
        for result in run_gang(2, work):
            assert isinstance(result, ValueError) and "metadata for x" in str(result)
    assert list(FolderStorage(tmp_path / "store").list()) == []


def test_ranks_upload_folders_of_their_own_shared_ones_or_none(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "shared", {"common": b"c", "one": b"1", "two": b"2"})
    write(tmp_path / "own", {"common": b"c", "own": b"o", "dir/x": b""})

    def work(distributed: DistributedContext) -> Any:
        checkpoint = make(tmp_path, distributed)
        folder = [tmp_path / "shared", tmp_path / "shared", None, tmp_path / "own"][distributed.rank]
        selector = (lambda path: path != "two") if distributed.rank == 0 else None
        storage_id = checkpoint.upload(folder, {"steps_completed": 1}, shard=True, selector=selector)
        checkpoint.download(storage_id, tmp_path / "copy")
        return storage_id, contents(tmp_path / "copy").keys()

    results = run_gang(4, work)
    assert all(result == results[0] for result in results), results
    assert results[0][1] == {"common", "one", "two", "own", "dir/x", "metadata.json"}


@pytest.mark.parametrize("other", [b"different", b"samesize!", None])
def test_different_files_of_one_name_are_refused_on_every_rank(tmp_path: pathlib.Path, other: bytes | None) -> None:
    write(tmp_path / "0", {"file": b"different"[::-1]})
    write(tmp_path / "1", {"file": other} if other is not None else {"file/x": b""})

    def work(distributed: DistributedContext) -> None:
        make(tmp_path, distributed).upload(tmp_path / str(distributed.rank), {}, shard=True)

    for result in run_gang(2, work):
        assert isinstance(result, RuntimeError) and "file" in str(result)
    assert list(FolderStorage(tmp_path / "store").list()) == []


def test_an_upload_needs_a_folder_from_somebody(tmp_path: pathlib.Path) -> None:
    for result in run_gang(2, lambda distributed: make(tmp_path, distributed).upload(None, {}, shard=True)):
        assert isinstance(result, RuntimeError) and "no rank gave a folder" in str(result)


def test_a_missing_folder_on_one_rank_is_everybodys_error(tmp_path: pathlib.Path) -> None:
    def work(distributed: DistributedContext) -> None:
        folder = tmp_path / ("missing" if distributed.rank else "run")
        make(tmp_path, distributed).upload(folder, {}, shard=True)

    for result in run_gang(2, work):
        assert isinstance(result, errors.CheckpointStateException) and "rank 1" in str(result)


def test_one_rank_of_a_machine_downloads_for_all_or_each_for_itself(tmp_path: pathlib.Path) -> None:
    storage_id = save(make(tmp_path), 1)

    def together(distributed: DistributedContext) -> Any:
        make(tmp_path, distributed).download(storage_id, tmp_path / f"together-{distributed.rank}")
        return (tmp_path / f"together-{distributed.rank}").exists()

    def alone(distributed: DistributedContext) -> Any:
        folder = tmp_path / f"alone-{distributed.rank}"
        make(tmp_path, distributed).download(storage_id, folder, DownloadMode.NoSharedDownload)
        return folder.exists()

    assert run_gang(2, together) == [True, False]
    assert run_gang(2, alone) == [True, True]


def test_an_unknown_id_is_unknown_to_every_rank(tmp_path: pathlib.Path) -> None:
    def work(distributed: DistributedContext) -> None:
        with make(tmp_path, distributed).restore_path("unknown"):
            pass

    for result in run_gang(2, work):
        assert isinstance(result, errors.CheckpointNotFound)
