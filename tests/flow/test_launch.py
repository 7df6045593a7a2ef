"""The launch command and wrap_rank, from the outside: output, exit codes, restarts."""

from __future__ import annotations

import pathlib
import re
import signal
import subprocess
import sys

import pytest

from tests.flow.processes import is_alive, wait_until


def launch(folder: pathlib.Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    words = [sys.executable, "-m", "determined.launch.torch_distributed", *options, "train.py"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)


def test_a_script_runs_on_all_ranks_and_leaves_logs_in_its_run(tmp_path: pathlib.Path, runs_dir: pathlib.Path) -> None:
    done = launch(tmp_path, "import os; print('I am', os.environ['RANK'])", "--nproc", "2")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[rank=0] I am 0", "[rank=1] I am 1"]
    (run,) = runs_dir.iterdir()
    assert re.fullmatch(r"train-[0-9a-f]{6}", run.name)
    assert (run / "logs" / "rank-1.log").read_text() == "I am 1\n"


def test_the_exit_code_is_the_scripts(tmp_path: pathlib.Path) -> None:
    assert launch(tmp_path, "raise SystemExit(9)").returncode == 9


def test_a_failed_gang_starts_again_as_often_as_allowed(tmp_path: pathlib.Path) -> None:
    script = (
        "import os, sys\n"
        "attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print('attempt', attempt, flush=True)\n"
        "sys.exit(int(attempt) < 2)\n"
    )
    done = launch(tmp_path, script, "--max-restarts", "3")
    assert (done.returncode, done.stdout) == (0, "attempt 0\nattempt 1\nattempt 2\n")
    assert "starting again, restart 2 of 3" in done.stderr
    assert launch(tmp_path, script, "--max-restarts", "1").returncode == 1


def test_a_restart_goes_on_from_the_runs_own_latest_checkpoint(tmp_path: pathlib.Path) -> None:
    script = (
        "import os, sys\n"
        "from determined import core\n"
        "with core.init() as context:\n"
        "    begun = context.spec.trial.steps_completed\n"
        "    with context.checkpoint.store_path({'steps_completed': begun + 1}) as (path, storage_id):\n"
        "        (path / 'weights').write_text(str(begun))\n"
        "    print('from', begun, flush=True)\n"
        "    if begun < 2: os._exit(3)\n"
    )
    done = launch(tmp_path, script, "--max-restarts", "5")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("from")] == ["from 0", "from 1", "from 2"]


def wrap(*words: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "determined.launch.wrap_rank", *words]
    return subprocess.run(command, capture_output=True, timeout=30, env={"PATH": "/usr/bin:/bin", **environ})


def test_wrap_rank_marks_lines_and_returns_the_exit_code() -> None:
    done = wrap("NOT_SET,RANK", "sh", "-c", r"printf 'a\rb\n\nc'; echo e >&2; exit 5", RANK="3")
    assert (done.returncode, done.stdout, done.stderr) == (
        5,
        b"[rank=3] a\n[rank=3] b\n[rank=3] \n[rank=3] c\n",
        b"[rank=3] e\n",
    )
    assert wrap("0", "sh", "-c", "kill -9 $$").returncode == 137
    assert wrap("--no-redirect-stdio", "0", "echo", "plain").stdout == b"plain\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["0"], 2, b"needs a rank and a command"),
        (["NOT_SET", "echo"], 2, b"NOT_SET is neither a rank nor"),
        (["0", "/no/such"], 127, b"cannot start /no/such: No such file or directory"),
    ],
)
def test_wrap_rank_says_what_is_wrong(words: list[str], code: int, message: bytes) -> None:
    done = wrap(*words)
    assert done.returncode == code and message in done.stderr and b"Traceback" not in done.stderr


def test_wrap_rank_passes_signals_on_and_does_not_wait_for_grandchildren() -> None:
    script = "trap 'echo asked; exit 4' TERM; (setsid sleep 60 & echo $!); while :; do sleep 0.05; done"
    command = [sys.executable, "-m", "determined.launch.wrap_rank", "1", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline().split()[-1])
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 4
        assert process.stdout.read() == "[rank=1] asked\n"
    assert wait_until(lambda: is_alive(grandchild), 1)
    subprocess.run(["kill", "-9", str(grandchild)], check=True)
