"""What ranks offer is divided, merged, or refused in the same way on every rank."""

from __future__ import annotations

import pathlib

import pytest

from determined.core import sharding
from determined.core.sharding import Offer
from determined.testing.storage import write

HERE, THERE = (0, 1, 1), (1, 1, 1)


def test_metadata_is_merged_at_every_level() -> None:
    assert sharding.merge_metadata([{"a": 1, "n": {"x": 1}}, None, {"a": 1, "n": {"y": [2]}}]) == {
        "a": 1,
        "n": {"x": 1, "y": [2]},
    }
    assert sharding.merge_metadata([None, None]) is None


def test_contradicting_metadata_names_its_place() -> None:
    with pytest.raises(ValueError, match=r"n\.x: 1 and 2"):
        sharding.merge_metadata([{"n": {"x": 1}}, {"n": {"x": 2}}])


def test_each_file_is_uploaded_once() -> None:
    offers = [Offer(HERE, {"a": 1, "b": 2}), Offer(HERE, {"a": 1, "c": 3}), Offer(), Offer(THERE, {"b": 2, "d": 4})]
    assert sharding.assign(offers) == [["a", "b"], ["c"], [], ["d"]]


def test_only_files_of_several_folders_are_compared() -> None:
    same_folder = [Offer(HERE, {"a": 1}), Offer(HERE, {"a": 1})]
    assert sharding.contested(same_folder) == []
    assert sharding.contested([*same_folder, Offer(THERE, {"a": 1, "b": 1})]) == ["a"]


def test_files_that_cannot_be_equal_are_refused() -> None:
    with pytest.raises(RuntimeError, match="ranks 0 and 1 upload different files named a"):
        sharding.contested([Offer(HERE, {"a": 1}), Offer(THERE, {"a": 2})])
    with pytest.raises(RuntimeError, match="a is a file on rank 0 but a folder on rank 1"):
        sharding.contested([Offer(HERE, {"a": 1}), Offer(THERE, {"a/b": 1})])
    with pytest.raises(RuntimeError, match="ranks 0 and 2"):
        sharding.check_equal([{"a": "x"}, {}, {"a": "y"}])


def test_a_folder_is_listed_without_its_old_manifest(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "dir", {"a": b"1", "sub/b": b"22", "manifest.json": b"{}"})
    (tmp_path / "dir" / "empty").mkdir()
    (tmp_path / "dir" / "link").symlink_to("a")
    assert sharding.list_folder(tmp_path / "dir", None) == {"a": 1, "sub/b": 2, "empty/": 0, "link": 1}
    assert sharding.list_folder(tmp_path / "dir", lambda path: path.startswith("sub/")) == {"sub/b": 2}


def test_a_missing_folder_and_a_linked_one_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder"):
        sharding.list_folder(tmp_path / "missing", None)
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="link to a folder"):
        sharding.list_folder(tmp_path / "dir", None)
