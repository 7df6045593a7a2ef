"""The suite that every checkpoint storage must pass.

>>> from determined import storage, testing
>>> class TestMine(testing.StorageConformance):
...     def make_storage(self, folder):
...         return storage.FolderStorage(folder)
"""

from __future__ import annotations

import abc
import pathlib

import pytest

from determined import errors
from determined.storage.base import CheckpointStorage, is_storage_id
from determined.storage.digest import digest_bytes

TREE = {"weights.bin": bytes(range(256)) * 5000, "code/model.py": b"x = 1\n", "code/deep/er/empty.txt": b""}
NOT_IDS = ("", ".", "..", "../x", "a/b", "/etc", "a\\b", "a\0b", "%2e%2e", "x" * 200, "-x", ".hidden", "a b", "ü")


class StorageConformance(abc.ABC):
    """Subclass it as ``TestXxx`` and say how to make a storage; pytest does the rest."""

    @abc.abstractmethod
    def make_storage(self, folder: pathlib.Path) -> CheckpointStorage:
        """A storage that is empty when ``folder`` is, and holds the same when made twice for one folder."""

    @pytest.fixture
    def storage(self, tmp_path: pathlib.Path) -> CheckpointStorage:
        return self.make_storage(tmp_path / "storage")

    def test_what_was_saved_is_what_is_read(self, storage: CheckpointStorage, tmp_path: pathlib.Path) -> None:
        storage_id = save(storage, TREE)
        storage.download(storage_id, tmp_path / "copy")
        assert contents(tmp_path / "copy") == TREE
        with storage.reading(storage_id) as folder:
            assert contents(folder) == TREE

    def test_it_is_there_for_others_too(self, storage: CheckpointStorage, tmp_path: pathlib.Path) -> None:
        storage_id = save(storage, TREE)
        other = self.make_storage(tmp_path / "storage")
        assert list(other.list()) == [storage_id]
        other.verify(storage_id)

    def test_it_is_not_there_before_it_is_published(self, storage: CheckpointStorage) -> None:
        staged = storage.begin()
        write(staged.path, TREE)
        assert list(storage.list()) == []
        with pytest.raises(errors.CheckpointNotFound):
            storage.files(staged.storage_id)
        staged.publish()
        assert list(storage.list()) == [staged.storage_id]

    def test_nothing_is_left_of_what_was_discarded(self, storage: CheckpointStorage) -> None:
        staged = storage.begin()
        write(staged.path, TREE)
        staged.discard()
        assert list(storage.list()) == []
        assert not staged.path.exists()

    def test_discarding_what_is_published_does_nothing(self, storage: CheckpointStorage) -> None:
        staged = storage.begin()
        staged.publish()
        staged.discard()
        storage.verify(staged.storage_id)

    def test_publishing_twice_is_refused(self, storage: CheckpointStorage) -> None:
        staged = storage.begin()
        staged.publish()
        with pytest.raises(errors.CheckpointStateException):
            staged.publish()

    def test_an_id_is_used_once(self, storage: CheckpointStorage) -> None:
        storage_id = save(storage, TREE)
        with pytest.raises(errors.CheckpointStateException):
            storage.begin(storage_id)
        storage.verify(storage_id)

    def test_new_ids_are_ids(self, storage: CheckpointStorage) -> None:
        staged = storage.begin()
        assert is_storage_id(staged.storage_id)
        staged.discard()

    def test_an_empty_checkpoint_is_one(self, storage: CheckpointStorage, tmp_path: pathlib.Path) -> None:
        storage_id = save(storage, {})
        storage.download(storage_id, tmp_path / "copy")
        assert contents(tmp_path / "copy") == {}

    def test_empty_folders_are_kept(self, storage: CheckpointStorage, tmp_path: pathlib.Path) -> None:
        staged = storage.begin()
        (staged.path / "a" / "empty").mkdir(parents=True)
        storage.download(staged.publish(), tmp_path / "copy")
        assert (tmp_path / "copy" / "a" / "empty").is_dir()

    def test_files_are_listed_with_size_and_digest(self, storage: CheckpointStorage) -> None:
        files = storage.files(save(storage, TREE))
        assert {path: tuple(record) for path, record in files.items()} == {
            path: (len(content), digest_bytes(content)) for path, content in TREE.items()
        }

    def test_a_file_hashed_by_the_writer_is_not_hashed_again(self, storage: CheckpointStorage) -> None:
        staged = storage.begin()
        write(staged.path, {"a": b"first"})
        staged.record("a", 5, digest_bytes(b"other"))  # wrong, and found out when it is read
        storage_id = staged.publish()
        with pytest.raises(errors.InvalidCheckpointException, match="a"):
            storage.verify(storage_id)

    def test_a_recorded_file_of_another_size_is_refused(self, storage: CheckpointStorage) -> None:
        staged = storage.begin()
        write(staged.path, {"a": b"first"})
        staged.record("a", 4, digest_bytes(b"firs"))
        with pytest.raises(errors.CheckpointStateException, match="a has 5 bytes"):
            staged.publish()
        assert list(storage.list()) == []

    def test_several_processes_add_to_one_checkpoint(self, storage: CheckpointStorage, tmp_path: pathlib.Path) -> None:
        write(tmp_path / "mine", {"rank1.bin": b"1" * 3_000_000, "unwanted": b""})
        staged = storage.begin()
        write(staged.path, {"rank0.bin": b"0"})
        other = self.make_storage(tmp_path / "storage")
        for path, record in other.upload(tmp_path / "mine", staged.storage_id, ["rank1.bin"]).items():
            staged.record(path, record.size, record.digest)
        assert list(other.list()) == []
        storage_id = staged.publish()
        other.download(storage_id, tmp_path / "copy")
        assert contents(tmp_path / "copy") == {"rank0.bin": b"0", "rank1.bin": b"1" * 3_000_000}

    def test_the_selector_chooses_what_is_downloaded(self, storage: CheckpointStorage, tmp_path: pathlib.Path) -> None:
        asked: list[str] = []

        def only_code(path: str) -> bool:
            asked.append(path)
            return path.startswith("code/") and "empty" not in path

        storage.download(save(storage, TREE), tmp_path / "copy", only_code)
        assert contents(tmp_path / "copy") == {"code/model.py": TREE["code/model.py"]}
        assert (tmp_path / "copy" / "code" / "deep" / "er").is_dir()
        assert {"code/", "code/deep/", "code/deep/er/"} <= set(asked)

    def test_deleted_is_gone(self, storage: CheckpointStorage) -> None:
        storage_id = save(storage, TREE)
        storage.delete(storage_id)
        assert list(storage.list()) == []
        with pytest.raises(errors.CheckpointNotFound):
            storage.delete(storage_id)

    def test_what_is_being_read_is_not_deleted(self, storage: CheckpointStorage, tmp_path: pathlib.Path) -> None:
        storage_id = save(storage, TREE)
        with storage.reading(storage_id) as folder:
            with pytest.raises(errors.CheckpointStateException, match="being read"):
                self.make_storage(tmp_path / "storage").delete(storage_id)
            assert contents(folder) == TREE
        storage.delete(storage_id)

    def test_what_some_files_were_removed_from_is_whole(self, storage: CheckpointStorage) -> None:
        storage_id = save(storage, TREE)
        left = storage.remove_files(storage_id, ["code/deep/er/empty.txt", "weights.bin", "../x", "not there"])
        assert [*left] == ["code/model.py"] == [*storage.files(storage_id)]
        storage.verify(storage_id)
        with storage.reading(storage_id) as folder:
            assert contents(folder) == {"code/model.py": TREE["code/model.py"]}
        assert storage.remove_files(storage_id, ["weights.bin"]) == left
        assert storage.remove_files(storage_id, ["code/model.py"]) == {}
        storage.verify(storage_id)
        assert [*storage.list()] == [storage_id]
        with pytest.raises(errors.CheckpointNotFound, match=storage_id):
            storage.remove_files(storage_id[:-1], [])

    def test_no_file_of_what_is_being_read_is_removed(self, storage: CheckpointStorage) -> None:
        storage_id = save(storage, TREE)
        with storage.reading(storage_id) as folder:
            with pytest.raises(errors.CheckpointStateException, match="being read"):
                storage.remove_files(storage_id, ["weights.bin"])
            assert contents(folder) == TREE
        assert "weights.bin" not in storage.remove_files(storage_id, ["weights.bin"])

    def test_the_oldest_is_listed_first(self, storage: CheckpointStorage) -> None:
        ids = [save(storage, {"a": str(number).encode()}) for number in range(5)]
        assert list(storage.list()) == ids

    def test_an_unknown_id_is_not_found_and_the_known_are_named(self, storage: CheckpointStorage) -> None:
        storage_id = save(storage, TREE)
        with pytest.raises(errors.CheckpointNotFound, match=storage_id):
            storage.verify(storage_id[:-1])
        with pytest.raises(errors.CheckpointNotFound, match=storage_id):
            storage.files("nothing-like-it")

    @pytest.mark.parametrize("name", NOT_IDS)
    def test_what_is_no_id_is_refused(self, storage: CheckpointStorage, tmp_path: pathlib.Path, name: str) -> None:
        def remove_nothing(name: str) -> object:
            return storage.remove_files(name, [])

        (tmp_path / "x").mkdir()
        for use in (storage.files, storage.verify, storage.delete, storage.begin, remove_nothing):
            with pytest.raises(errors.CheckpointNotFound, match="not a checkpoint id"):
                use(name)
        with pytest.raises(errors.CheckpointNotFound):
            storage.download(name, tmp_path / "copy")
        with pytest.raises(errors.CheckpointNotFound):
            storage.upload(tmp_path, name, [])
        assert (tmp_path / "x").is_dir()


def save(storage: CheckpointStorage, tree: dict[str, bytes]) -> str:
    """Publish a checkpoint of some files."""
    staged = storage.begin()
    write(staged.path, tree)
    return staged.publish()


def write(folder: pathlib.Path, tree: dict[str, bytes]) -> None:
    """Write files into a folder, which is made when it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """The files below a folder, except what the storage itself put there."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
