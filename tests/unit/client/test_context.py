"""Packing code: what goes along, what does not, and that the same files give the same bytes."""

from __future__ import annotations

import io
import os
import pathlib
import tarfile

import pytest

from determined import errors
from determined.client.context import pack


def write(folder: pathlib.Path, **files: str) -> pathlib.Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(content: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        return archive.getnames()


def test_the_same_files_give_the_same_bytes(tmp_path: pathlib.Path) -> None:
    one = write(tmp_path / "one", train_py="print()", models__net_py="x = 1")
    other = write(tmp_path / "other", models__net_py="x = 1", train_py="print()")
    os.utime(other / "train.py", (1, 1))
    assert pack(one) == pack(other)
    assert pack(one).sha256 != pack(write(other, train_py="print(2)")).sha256


def test_folders_and_modes_are_kept_and_owners_and_times_are_not(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "code", a__b__run_py="x")
    (folder / "a/b/run.py").chmod(0o700)
    with tarfile.open(fileobj=io.BytesIO(pack(folder).content)) as archive:
        entries = {entry.name: entry for entry in archive}
    assert [*entries] == ["a", "a/b", "a/b/run.py"]
    assert entries["a/b/run.py"].mode == 0o755 and entries["a"].isdir()
    assert {(entry.mtime, entry.uid, entry.uname) for entry in entries.values()} == {(0, 0, "")}


def test_what_is_no_code_stays(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "code", train_py="x", data__big="y" * 1000, keep__log="z")
    for name in (
        ".git/HEAD",
        "__pycache__/a.pyc",
        ".venv/pyvenv.cfg",
        ".venv/lib.py",
        ".idea/x",
        "state.tfstate",
        "b.pyc",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / ".detignore").write_text("data/\n*.log\n!keep/log\n")
    assert {*pack(folder).files} == {".detignore", "train.py", "keep/log"}


def test_a_link_to_a_file_inside_is_that_file(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "code", train_py="print(1)")
    (folder / "again.py").symlink_to("train.py")
    packed = pack(folder)
    with tarfile.open(fileobj=io.BytesIO(packed.content)) as archive:
        member = archive.extractfile("again.py")
        assert member is not None and member.read() == b"print(1)"
        assert all(entry.isfile() for entry in archive)


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "/etc", "sub", "nothing"])
def test_a_link_that_leads_out_is_refused_unless_ignored(tmp_path: pathlib.Path, target: str) -> None:
    (tmp_path / "outside").write_text("secret")
    folder = write(tmp_path / "code", train_py="x", sub__a="y")
    (folder / "link").symlink_to(target)
    with pytest.raises(errors.BadRequest, match=r"link is a link to .*\.detignore"):
        pack(folder)
    (folder / ".detignore").write_text("link\n")
    assert "link" not in pack(folder).files


def test_too_much_is_refused_and_the_largest_are_named(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "code", train_py="x", weights="w" * 5000)
    with pytest.raises(errors.BadRequest, match=r"at most .* largest files are weights .*\.detignore"):
        pack(folder, max_bytes=4000)


def test_includes_come_to_the_top(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "code", train_py="x")
    extra = write(tmp_path / "extra", lib_py="y")
    (tmp_path / "one.txt").write_text("z")
    assert {*pack(folder, [extra, tmp_path / "one.txt"]).files} == {"train.py", "extra/lib.py", "one.txt"}
    assert {*pack(None, [extra]).files} == {"extra/lib.py"}
    with pytest.raises(errors.BadRequest, match=r"both be sent as train\.py"):
        pack(folder, [folder / "train.py"])
    with pytest.raises(errors.BadRequest, match="does not exist"):
        pack(folder, [tmp_path / "nothing"])


def test_a_folder_that_is_none_is_told(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.BadRequest, match="does not exist"):
        pack(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.BadRequest, match="is a file"):
        pack(tmp_path / "file")


def test_pipes_and_names_that_are_no_text(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "code", train_py="x")
    os.mkfifo(folder / "pipe")
    packed = pack(folder)
    assert {*packed.files} == {"train.py"} and "pipe" in packed.notices[0]
    (folder / os.fsdecode(b"\xff.py")).write_text("x")
    with pytest.raises(errors.BadRequest, match="not UTF-8"):
        pack(folder)


def test_what_masters_and_runs_leave_in_the_folder_stays_there(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "code", train_py="x")
    write(folder / "state", token="secret")
    (folder / "state" / "master.db").touch()
    write(folder / "runs", **{"one__run.json": "{}", "one__.lock": "", "one__metrics.jsonl": ""})
    assert [*pack(folder).files] == ["train.py"]
