"""`det checkpoint verify` believes bytes, not names."""

from __future__ import annotations

import pathlib

import pytest

from determined.cli import main
from determined.storage import digest, manifest


def make_checkpoint(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir()
    (folder / "state_dict.pth").write_bytes(bytes(range(256)) * 100)
    size, text = digest.digest_file(folder / "state_dict.pth")
    (folder / manifest.NAME).write_bytes(manifest.encode({"state_dict.pth": manifest.FileRecord(size, text)}))
    return folder


def test_a_whole_checkpoint_is_said_to_be_whole(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_checkpoint(tmp_path / "c0ffee")
    assert main.main(["checkpoint", "verify", str(folder)]) == main.DONE
    assert capsys.readouterr().out == f"{folder}: whole, 1 files, 25.6 KB\n"


def test_one_flipped_bit_is_found_and_its_file_named(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_checkpoint(tmp_path / "c0ffee")
    content = bytearray((folder / "state_dict.pth").read_bytes())
    content[1234] ^= 1
    (folder / "state_dict.pth").write_bytes(content)
    assert main.main(["checkpoint", "verify", str(folder)]) == main.FAILED
    assert "state_dict.pth" in capsys.readouterr().err


def test_a_folder_without_a_manifest_is_no_checkpoint(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["checkpoint", "verify", str(tmp_path)]) == main.FAILED
    assert "manifest" in capsys.readouterr().err
