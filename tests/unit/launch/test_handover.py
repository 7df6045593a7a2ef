"""Scripts are handed over to Horovod's and DeepSpeed's own launchers, or it is said what to install."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from determined.launch import deepspeed, handover, horovod

# A stand-in for the other project's program: it says how it was called.
PROGRAM = """#!{python}
import json, os, sys
print(json.dumps([sys.argv[1:], {{name: os.environ[name] for name in os.environ if name.startswith("USE_")}}]))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launch(folder: pathlib.Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(folder), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", f"determined.launch.{name}", *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("name", "program"), [("horovod", "horovodrun"), ("deepspeed", "deepspeed")])
def test_the_installed_launcher_takes_over(folder: pathlib.Path, name: str, program: str) -> None:
    (folder / f"{name}.py").write_text("")
    (folder / program).write_text(PROGRAM.format(python=sys.executable))
    (folder / program).chmod(0o755)
    done = launch(folder, name, "--verbose", "--", "train.py", "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    words, uses = json.loads(done.stdout)
    assert "--verbose" in words
    assert words[words.index("determined.launch.wrap_rank") + 2 :] == [sys.executable, "train.py", "--lr", "0.1"]
    assert uses == {f"USE_{name.upper()}": "1"}


@pytest.mark.parametrize("name", ["horovod", "deepspeed"])
def test_without_it_one_sentence_says_what_to_install(folder: pathlib.Path, name: str) -> None:
    done = launch(folder, name, "train.py")
    assert done.returncode == 1
    assert (
        f"is not installed; install it with: pip install {'' if name == 'deepspeed' else chr(39)}{name}" in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_a_package_without_its_program_is_said(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "nowhere_else.py").write_text("")
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(Exception, match="installed without its program nothing-like-it"):
        handover.find(horovod.HOROVOD._replace(package="nowhere_else", program="nothing-like-it"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["-np", "3", "-H", "localhost:3", "script"]),
        (["-np", "8"], ["-np", "8", "script"]),
        (["-H", "a:2,b:1"], ["-np", "3", "-H", "a:2,b:1", "script"]),
    ],
)
def test_horovodrun_is_told_how_many_and_where(options: list[str], words: list[str]) -> None:
    assert horovod.words(handover.Job(options, 3, ["script"])) == words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["--num_gpus", "3", "--no_python", "--no_local_rank", "script"]),
        (["--num_gpus=1"], ["--num_gpus=1", "--no_python", "--no_local_rank", "script"]),
        (["-i", "a:0"], ["-i", "a:0", "--no_python", "--no_local_rank", "script"]),
    ],
)
def test_deepspeed_is_told_how_many(options: list[str], words: list[str]) -> None:
    assert deepspeed.words(handover.Job(options, 3, ["script"])) == words


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("", "say what to train"),
        ("--verbose train.py", "write -- between its options and the script"),
        ("--trial model_def:Mine", "start it with `python -m determined.launch.torch_distributed --trial"),
        ("-- gone.py", "there is no script gone.py"),
    ],
)
def test_a_command_line_that_makes_no_sense(words: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert horovod.main(words.split()) == 2
    assert problem in capsys.readouterr().err


def test_help_needs_nothing_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert deepspeed.main(["--help"]) == 0
    assert "python -m determined.launch.deepspeed" in capsys.readouterr().out


def test_the_scripts_own_dashes_are_left_to_it(folder: pathlib.Path) -> None:
    job = handover.understand(horovod.HOROVOD, ["train.py", "--", "-x"], {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert (job.options, job.slots, job.command[-3:]) == ([], 2, ["train.py", "--", "-x"])
