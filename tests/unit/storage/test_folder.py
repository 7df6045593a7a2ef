"""A folder storage leaves whole checkpoints or nothing, whoever dies, and whatever the disk does."""

from __future__ import annotations

import errno
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from determined import errors
from determined.storage import FolderStorage, digest, folder
from determined.testing.storage import TREE, contents, save, write


@pytest.fixture
def storage(tmp_path: pathlib.Path) -> FolderStorage:
    return FolderStorage(tmp_path / "storage")


def leftovers(storage: FolderStorage) -> list[str]:
    return [entry for entry in os.listdir(storage.root) if entry.startswith(".")]


def test_the_folder_of_a_dead_process_is_swept(storage: FolderStorage) -> None:
    half_way = (
        "import sys; from determined.storage import FolderStorage\n"
        "staged = FolderStorage(sys.argv[1]).begin()\n"
        "(staged.path / 'half').write_bytes(b'x' * 1000)\n"
        "print('ready', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", half_way, str(storage.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        storage.begin().discard()
        assert len(leftovers(storage)) == 1  # alive, so left alone
        process.send_signal(signal.SIGKILL)
    storage.begin().discard()
    assert leftovers(storage) == []
    assert storage.list() == []


def test_many_processes_that_save_at_once_do_not_sweep_each_others_folders(storage: FolderStorage) -> None:
    saving = (
        "import sys; from determined.storage import FolderStorage\n"
        "storage = FolderStorage(sys.argv[1])\n"
        "for number in range(100):\n"
        "    staged = storage.begin()\n"
        "    (staged.path / 'a').write_text('a')\n"
        "    staged.discard() if number % 10 else staged.publish()\n"
    )
    command = [sys.executable, "-c", saving, str(storage.root)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    assert [process.communicate(timeout=120)[1][-2000:] for process in processes] == [""] * 6
    assert len(storage.list()) == 60
    assert leftovers(storage) == []


def test_a_checkpoint_in_the_making_is_not_swept_by_another_thread_of_the_same_process(storage: FolderStorage) -> None:
    first = storage.begin()
    second = FolderStorage(storage.root).begin()
    write(first.path, TREE)
    first.publish()
    second.publish()
    assert len(storage.list()) == 2


@pytest.mark.parametrize("step", ["digest_file", "_sync", "_sync_root", "rename", "copy"])
def test_a_full_disk_leaves_nothing_behind_and_the_others_alone(
    storage: FolderStorage, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = save(storage, TREE)

    def full(*args: object) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_at_root(path: pathlib.Path) -> None:
        if path == storage.root:
            full()

    staged = storage.begin()
    write(staged.path, TREE)
    write(tmp_path / "more", {"more": b"x"})
    with monkeypatch.context() as patch:
        if step == "digest_file":
            patch.setattr(digest, "digest_file", full)
        elif step == "_sync":
            patch.setattr(folder, "_sync", full)
        elif step == "_sync_root":
            patch.setattr(folder, "_sync", full_at_root)
        elif step == "rename":
            patch.setattr(pathlib.Path, "rename", full)
        else:
            patch.setattr(digest, "copy_file", full)
        with pytest.raises(errors.CheckpointStateException, match="No space left on device; earlier checkpoints"):
            if step == "copy":
                storage.upload(tmp_path / "more", staged.storage_id, ["more"])
            staged.publish()
    staged.discard()
    assert leftovers(storage) == []
    assert storage.list() == [before]
    storage.verify(before)


def test_a_link_in_a_checkpoint_is_refused_when_it_is_saved(storage: FolderStorage) -> None:
    staged = storage.begin()
    (staged.path / "link").symlink_to("/etc/passwd")
    with pytest.raises(errors.InvalidCheckpointException, match="link"):
        staged.publish()
    assert leftovers(storage) == []


def test_what_another_machine_wrote_must_be_seen_here(storage: FolderStorage, tmp_path: pathlib.Path) -> None:
    staged = storage.begin()
    with pytest.raises(errors.CheckpointStateException, match="machines that save together"):
        FolderStorage(tmp_path / "not shared").upload(tmp_path, staged.storage_id, [])
    staged.record("elsewhere.bin", 5, digest.digest_bytes(b"hello"))
    with pytest.raises(errors.CheckpointStateException, match=r"lacks elsewhere\.bin"):
        staged.publish()


def test_damage_is_found_by_every_way_of_reading(storage: FolderStorage, tmp_path: pathlib.Path) -> None:
    storage_id = save(storage, TREE)
    with open(storage.root / storage_id / "weights.bin", "r+b") as file:
        file.seek(123_456)
        file.write(b"?!")
    with pytest.raises(errors.InvalidCheckpointException, match=r"weights\.bin"):
        storage.verify(storage_id)
    with pytest.raises(errors.InvalidCheckpointException, match=r"weights\.bin"), storage.reading(storage_id):
        pass
    with pytest.raises(errors.InvalidCheckpointException, match=r"weights\.bin"):
        storage.download(storage_id, tmp_path / "copy")
    assert not (tmp_path / "copy" / "weights.bin").exists()


def test_a_downloaded_checkpoint_can_be_verified_where_it_is(storage: FolderStorage, tmp_path: pathlib.Path) -> None:
    storage.download(save(storage, TREE), tmp_path / "copy")
    folder.verify_folder(tmp_path / "copy")


def test_a_folder_without_manifest_is_read_only_when_that_is_allowed(storage: FolderStorage) -> None:
    write(storage.root / "old", {"state_dict.pth": b"x", "code/a.py": b""})
    assert storage.list() == []
    with pytest.raises(errors.InvalidCheckpointException, match="no manifest"), storage.reading("old"):
        pass
    with storage.reading("old", unverified=True) as path:
        assert contents(path) == {"state_dict.pth": b"x", "code/a.py": b""}
    assert storage.files("old", unverified=True)["state_dict.pth"] == (1, "")


def test_what_was_half_deleted_is_swept(storage: FolderStorage) -> None:
    save(storage, TREE)
    write(storage.root / ".abc.1234.deleted", TREE)
    storage.begin().discard()
    assert leftovers(storage) == []
