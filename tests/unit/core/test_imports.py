"""Two folders' modules of one name live side by side, and nothing else is disturbed."""

from __future__ import annotations

import importlib
import os
import pathlib
import sys
from typing import Any

import pytest

from determined.core.imports import import_from_path
from determined.testing.storage import write


@pytest.fixture
def folders(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    for name in ("cwd", "one", "two"):
        write(tmp_path / name, {"model_def.py": f"import helper_of_it\nname = '{name}'\n".encode()})
        write(tmp_path / name, {"helper_of_it.py": b"", "pack_of_it/__init__.py": b"", "pack_of_it/sub.py": b""})
    write(tmp_path / "cwd", {"only_here_in_cwd.py": b""})
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.syspath_prepend("")
    monkeypatch.setattr(sys, "modules", sys.modules)
    return tmp_path


def load(name: str) -> Any:
    return importlib.import_module(name)


def test_two_checkpoints_of_one_name_coexist(folders: pathlib.Path) -> None:
    here = load("model_def")
    with import_from_path(folders / "one"):
        one, packed = load("model_def"), load("pack_of_it.sub")
    with import_from_path(str(folders / "two")):
        two = load("model_def")
    assert (here.name, one.name, two.name) == ("cwd", "one", "two")
    assert sys.modules["model_def"] is here and load("model_def") is here
    assert "pack_of_it" not in sys.modules and "pack_of_it.sub" not in sys.modules and packed.__name__
    for name in ("model_def", "helper_of_it"):
        sys.modules.pop(name, None)


def test_libraries_stay_the_same_and_no_bytecode_is_written(folders: pathlib.Path) -> None:
    before, path = sys.modules["pytest"], list(sys.path)
    with import_from_path(folders / "one"):
        load("model_def")
        assert load("pytest") is before
        assert sys.path[0] == os.path.realpath(folders / "one")
    assert sys.path == path
    assert not (folders / "one" / "__pycache__").exists()


def test_libraries_below_the_working_folder_are_not_taken_for_its_modules(
    folders: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folders / "cwd" / "venv", {"installed_lib.py": b""})
    monkeypatch.syspath_prepend(str(folders / "cwd" / "venv"))
    library = load("installed_lib")
    with import_from_path(folders / "one"):
        assert sys.modules["installed_lib"] is library
    sys.modules.pop("installed_lib")


def test_everything_is_put_back_after_an_error(folders: pathlib.Path) -> None:
    write(folders / "one", {"broken_mod.py": b"1/0"})
    with pytest.raises(ZeroDivisionError), import_from_path(folders / "one"):
        load("broken_mod")
    with import_from_path(folders / "two"):
        pass


def test_it_does_not_nest(folders: pathlib.Path) -> None:
    with import_from_path(folders / "one"), pytest.raises(RuntimeError, match="does not support nesting"):
        with import_from_path(folders / "two"):
            pass


def test_a_missing_folder_is_named(folders: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="three"), import_from_path(folders / "three"):
        pass
