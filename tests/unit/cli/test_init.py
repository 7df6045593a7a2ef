"""`det init image`: a project that works as it is."""

from __future__ import annotations

import pathlib

import pytest

from determined import config
from determined.cli import main

CONFIGS = ("const.yaml", "grid.yaml", "adaptive.yaml", "distributed.yaml")


@pytest.fixture
def project(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "shapes"
    assert main.main(["init", "image", str(folder)]) == main.DONE
    return folder


@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration_is_right(project: pathlib.Path, name: str) -> None:
    loaded = config.load(project / name, to_run=True)
    assert loaded.notices == ()
    assert f"`{name}`" in (project / "README.md").read_text() or f" {name} " in (project / "README.md").read_text()


def test_nothing_is_overwritten(project: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "train.py").write_text("mine")
    assert main.main(["init", "image", str(project)]) == main.FAILED
    assert "is not empty, and nothing in it is overwritten" in capsys.readouterr().err
    assert (project / "train.py").read_text() == "mine"


def test_a_file_is_in_the_way(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shapes").write_text("mine")
    assert main.main(["init", "image", str(tmp_path / "shapes")]) == main.FAILED
    assert (tmp_path / "shapes").read_text() == "mine"


@pytest.mark.slow
def test_it_trains_as_a_plain_script(project: pathlib.Path, runs_dir: pathlib.Path) -> None:
    import subprocess
    import sys

    command = [sys.executable, "train.py", "--epochs", "1"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stderr
    assert [path.name.startswith("shapes-") for path in runs_dir.iterdir()] == [True]


@pytest.mark.slow
def test_one_batch_can_be_tried(project: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["e", "create", str(project / "const.yaml"), str(project), "--local", "--test"]
    assert main.main(arguments) == main.DONE
    assert "the test went well" in capfd.readouterr().err
