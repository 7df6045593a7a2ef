"""A checkpoint's id is good on the whole machine, whichever run the checkpoint is of."""

from __future__ import annotations

import pathlib

import pytest

from determined import core, errors


def save(name: str, text: str) -> str:
    """A run that saves one checkpoint, and its id."""
    with core.init(name=name) as context:
        with context.checkpoint.store_path({"steps_completed": 2}) as (path, storage_id):
            (path / "state.txt").write_text(text)
    return storage_id


def test_a_later_run_reads_the_checkpoint_of_an_earlier_one(tmp_path: pathlib.Path) -> None:
    storage_id = save("first", "two steps")
    with core.init(name="second") as context:
        with context.checkpoint.restore_path(storage_id) as path:
            assert (path / "state.txt").read_text() == "two steps"
        assert context.checkpoint.get_metadata(storage_id)["steps_completed"] == 2
        context.checkpoint.download(storage_id, tmp_path / "copy")
        assert (tmp_path / "copy" / "state.txt").read_text() == "two steps"
        assert list(context.checkpoint.list()) == []


def test_it_is_verified_all_the_same(runs_dir: pathlib.Path) -> None:
    storage_id = save("first", "two steps")
    (file,) = runs_dir.glob(f"first-*/checkpoints/{storage_id}/state.txt")
    file.write_text("too steps")
    with core.init(name="second") as context:
        with pytest.raises(errors.InvalidCheckpointException, match=r"state\.txt"):
            with context.checkpoint.restore_path(storage_id):
                pass


def test_only_the_run_itself_deletes_its_checkpoints() -> None:
    storage_id = save("first", "two steps")
    with core.init(name="second") as context:
        with pytest.raises(errors.CheckpointNotFound):
            context.checkpoint.delete(storage_id)
        with context.checkpoint.restore_path(storage_id):
            pass


def test_a_storage_given_by_hand_is_the_only_one(tmp_path: pathlib.Path) -> None:
    storage_id = save("first", "two steps")
    with core.init(name="second", checkpoint_storage=tmp_path / "mine") as context:
        with pytest.raises(errors.CheckpointNotFound):
            with context.checkpoint.restore_path(storage_id):
                pass


def test_an_id_that_nobody_has_is_reported_with_those_of_this_run() -> None:
    save("first", "two steps")
    with core.init(name="second") as context:
        with pytest.raises(errors.CheckpointNotFound, match="second-"):
            context.checkpoint.get_metadata("00000000-0000-4000-8000-000000000000")
