"""No change to a checkpoint goes unseen: not one bit, in a file or in the manifest itself."""

from __future__ import annotations

import json
import pathlib
import random
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from determined import errors
from determined.storage import FolderStorage, manifest, verify_folder
from determined.storage.digest import digest_bytes
from determined.storage.manifest import FileRecord

NAMES = st.from_regex(r"[a-z0-9_]{1,6}(/[a-z0-9_]{1,6}){0,2}", fullmatch=True)
TREES = st.dictionaries(NAMES, st.binary(max_size=200), min_size=1, max_size=5).filter(
    lambda tree: not any(other.startswith(f"{path}/") for path in tree for other in tree)
)


def publish(root: pathlib.Path, tree: dict[str, bytes]) -> pathlib.Path:
    storage = FolderStorage(root)
    staged = storage.begin()
    for path, content in tree.items():
        (staged.path / path).parent.mkdir(parents=True, exist_ok=True)
        (staged.path / path).write_bytes(content)
    return root / staged.publish()


@given(TREES, st.data())
@settings(max_examples=30)
def test_a_flipped_bit_anywhere_is_refused(tree: dict[str, bytes], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = publish(pathlib.Path(root), tree)
        verify_folder(folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
        victim = data.draw(st.sampled_from(files))
        content = bytearray(victim.read_bytes())
        bit = data.draw(st.integers(0, len(content) * 8 - 1))
        content[bit // 8] ^= 1 << bit % 8
        victim.write_bytes(content)
        with pytest.raises(errors.InvalidCheckpointException, match=victim.name):
            verify_folder(folder)


@given(TREES, st.data())
@settings(max_examples=30)
def test_a_truncated_file_is_refused(tree: dict[str, bytes], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = publish(pathlib.Path(root), tree)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
        victim = data.draw(st.sampled_from(files))
        content = victim.read_bytes()
        victim.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        with pytest.raises(errors.InvalidCheckpointException):
            verify_folder(folder)


def test_every_bit_of_a_manifest_counts() -> None:
    text = manifest.encode({"a": FileRecord(3, digest_bytes(b"abc")), "empty/": FileRecord(0, "")})
    assert manifest.decode(text, "here")["a"].size == 3
    for bit in range(len(text) * 8):
        changed = bytearray(text)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(errors.InvalidCheckpointException):
            manifest.decode(bytes(changed), "here")
    for end in range(len(text)):
        with pytest.raises(errors.InvalidCheckpointException):
            manifest.decode(text[:end], "here")


def test_ten_thousand_flips_in_a_large_file_are_all_found(tmp_path: pathlib.Path) -> None:
    draw = random.Random(0)
    content = draw.randbytes(1 << 20)
    whole = digest_bytes(content)
    changed = bytearray(content)
    for _ in range(10_000):
        bit = draw.randrange(len(content) * 8)
        changed[bit // 8] ^= 1 << bit % 8
        assert digest_bytes(changed) != whole
        changed[bit // 8] ^= 1 << bit % 8


def test_it_is_json_that_others_can_read(tmp_path: pathlib.Path) -> None:
    folder = publish(tmp_path, {"a.txt": b"hello"})
    content = json.loads((folder / "manifest.json").read_text())
    assert content["version"] == 1
    assert content["files"] == {"a.txt": {"size": 5, "digest": digest_bytes(b"hello")}}


def test_a_missing_file_is_named(tmp_path: pathlib.Path) -> None:
    folder = publish(tmp_path, {"a.txt": b"hello", "b.txt": b"you"})
    (folder / "b.txt").unlink()
    with pytest.raises(errors.InvalidCheckpointException, match=r"lost b\.txt"):
        verify_folder(folder)


def test_a_file_that_is_not_listed_is_refused(tmp_path: pathlib.Path) -> None:
    folder = publish(tmp_path, {"code/a.py": b""})
    (folder / "code" / "evil.py").write_text("import os")
    with pytest.raises(errors.InvalidCheckpointException, match=r"code/evil\.py"):
        verify_folder(folder)


def test_a_link_in_the_place_of_a_file_is_refused(tmp_path: pathlib.Path) -> None:
    folder = publish(tmp_path, {"a.txt": b"hello"})
    (folder / "a.txt").rename(tmp_path / "same")
    (folder / "a.txt").symlink_to(tmp_path / "same")
    with pytest.raises(errors.InvalidCheckpointException, match="link"):
        verify_folder(folder)


def test_without_a_manifest_there_is_no_checkpoint(tmp_path: pathlib.Path) -> None:
    folder = publish(tmp_path, {"a.txt": b"hello"})
    (folder / "manifest.json").unlink()
    with pytest.raises(errors.InvalidCheckpointException, match=r"no manifest\.json"):
        verify_folder(folder)


def test_files_that_the_caller_verifies_are_compared_by_size(tmp_path: pathlib.Path) -> None:
    folder = publish(tmp_path, {"a.txt": b"hello"})
    (folder / "a.txt").write_bytes(b"jello")
    verify_folder(folder, skip={"a.txt"})
    (folder / "a.txt").write_bytes(b"jellos")
    with pytest.raises(errors.InvalidCheckpointException, match="6 bytes instead of 5"):
        verify_folder(folder, skip={"a.txt"})


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "a/./b", "a/../b", "", "manifest.json", "a\0b"])
def test_a_manifest_cannot_name_files_elsewhere(path: str) -> None:
    text = manifest.encode({path: FileRecord(0, digest_bytes(b""))})
    with pytest.raises(errors.InvalidCheckpointException, match="no file of a checkpoint"):
        manifest.decode(text, "here")


def test_a_newer_version_says_so() -> None:
    body = b'{"version":2,"files":{}}'
    text = body[:-1] + f',"digest":"{digest_bytes(body)}"}}\n'.encode()
    with pytest.raises(errors.InvalidCheckpointException, match="version 2"):
        manifest.decode(text, "here")
