"""How commands of `det` end: what is printed where, and the exit code."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

import determined
from determined.cli import app, main


@pytest.mark.parametrize("arguments", [["--version"], ["-v"], ["version"]])
def test_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(arguments) == main.DONE
    assert capsys.readouterr() == (f"det {determined.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"]])
def test_help_lists_the_nouns(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(arguments) == main.DONE
    shown = capsys.readouterr().out
    assert all(noun in shown for noun in ("run", "checkpoint", "version"))


@pytest.mark.parametrize("arguments", [["run", "help"], ["run", "list", "help"], ["c", "verify", "help"]])
def test_help_of_nouns_and_verbs(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(arguments) == main.DONE
    assert "Usage: det " + " ".join(arguments[:-1]) in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["nope"], ["run", "nope"], ["run", "list", "--nope"], ["run", "describe"], ["checkpoint", "verify"]]
)
def test_a_wrong_call_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(arguments) == main.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: det" in err


def test_an_error_is_one_sentence_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["checkpoint", "verify", "no\x1b[31m/where"]) == main.FAILED
    assert capsys.readouterr() == ("", "det: no/where is not a folder; name the folder of a checkpoint\n")


def test_debug_shows_where_an_error_came_from() -> None:
    with pytest.raises(determined.errors.CheckpointNotFound):
        main.main(["--debug", "checkpoint", "verify", "nowhere"])


def raising(error: BaseException) -> None:
    def command() -> None:
        raise error

    app.app.command("raise-for-a-test", hidden=True)(command)


@pytest.fixture(autouse=True)
def commands_as_they_were() -> object:
    before = list(app.app.registered_commands)
    yield
    app.app.registered_commands[:] = before


def test_an_interrupt_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    raising(KeyboardInterrupt())
    assert main.main(["raise-for-a-test"]) == main.INTERRUPTED
    assert capsys.readouterr().err.strip() == "det: interrupted"


def test_a_mistake_of_ours_is_owned_up_to(capsys: pytest.CaptureFixture[str]) -> None:
    raising(ZeroDivisionError("division by zero"))
    assert main.main(["raise-for-a-test"]) == main.FAILED
    assert "ZeroDivisionError: division by zero. This is a mistake in det itself" in capsys.readouterr().err


def test_a_reader_who_leaves_early_is_no_error(tmp_path: pathlib.Path) -> None:
    for number in range(3):
        (tmp_path / f"run-{number}").mkdir()
        (tmp_path / f"run-{number}" / "run.json").write_text('{"id": "1", "name": "run"}')
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "determined.cli.main", "run", "list", "--runs-dir", str(tmp_path)]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (main.DONE, "")
