"""The command line against a real master: what people type, what they see, and what exit codes say."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests import masters
from tests.flow.processes import wait_until

pytestmark = pytest.mark.slow

SCRIPT = """
import pathlib, sys, time
import determined as det
from determined import core

info = det.get_cluster_info()
hparams = info.trial.hparams
with core.init() as context:
    start = 0
    if info.latest_checkpoint:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            start = int((path / "steps").read_text())
    print("begins at", start, "\\x1b[31mred", flush=True)
    for step in range(start + 1, 4):
        context.train.report_validation_metrics(step, {"loss": hparams["x"] / step})
        with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
            (path / "steps").write_text(str(step))
        while hparams.get("gate") and not pathlib.Path(hparams["gate"]).exists():
            if context.preempt.should_preempt():
                sys.exit(0)
            time.sleep(0.02)
    if hparams.get("fails"):
        raise ValueError("this one fails")
"""


class Place:
    """A master's folder, a user's folder, and a project to submit."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.state = folder / "master"
        self.project = folder / "project"
        self.project.mkdir()
        (self.project / "script.py").write_text(SCRIPT)
        self.environ = {
            **os.environ,
            "DET_MASTER_DIR": str(self.state),
            "DET_MASTER_PORT": "0",
            "DET_MASTER_SLOTS": "2",
            "XDG_CONFIG_HOME": str(folder / "config"),
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "determined.cli.main", *arguments]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environ,
            cwd=self.folder,
        )

    def det(self, *arguments: str, code: int = 0) -> str:
        """What a command prints; its exit code must be as expected."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, (arguments, out, err)
        assert "\x1b" not in out + err
        self.said = err
        return out

    def config(self, hyperparameters: dict[str, Any], **others: Any) -> str:
        content = {
            "name": "tiny",
            "entrypoint": "python3 script.py",
            "hyperparameters": hyperparameters,
            "searcher": {"name": "grid", "metric": "loss"},
            "max_restarts": 0,
            **others,
        }
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(content))
        return str(path)

    def create(self, hyperparameters: dict[str, Any], *options: str, **others: Any) -> int:
        out = self.det("e", "create", self.config(hyperparameters, **others), str(self.project), *options)
        first = out.splitlines()[0]
        assert first.startswith("Created experiment ")
        return int(first.removeprefix("Created experiment "))

    def state_of(self, experiment: int) -> str:
        return str(json.loads(self.det("e", "describe", str(experiment), "--json"))["state"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("cli"))
    with masters.stopped_afterwards(made.state):
        yield made


@contextlib.contextmanager
def gate(place: Place, name: str) -> Iterator[pathlib.Path]:
    """A file that trials wait for; made in the end, so that none waits for ever."""
    path = place.folder / name
    try:
        yield path
    finally:
        path.touch()


def test_a_master_is_started_once_and_stopped_once(place: Place) -> None:
    first = place.det("master", "up")
    assert first.startswith("The master runs at http://127.0.0.1:")
    assert "'det master down' stops it" in place.said
    assert place.det("deploy", "local", "cluster-up").startswith("A master runs already at http://127.0.0.1:")
    assert json.loads(place.det("master", "info", "--json"))["url"] in first
    assert "has stopped" in place.det("master", "down")
    assert place.det("master", "down") == "No master runs on this machine\n"


def test_what_is_wrong_already_here_starts_no_master(place: Place) -> None:
    place.det("e", "create", "nowhere.yaml", str(place.project), code=1)
    assert place.said == "det: there is no file nowhere.yaml\n"
    place.det("e", "create", place.config({"x": 1.0}, searcher={"name": "grit"}), str(place.project), code=1)
    assert "starting a master" not in place.said and "grit" in place.said


def test_the_first_command_starts_a_master_and_says_so(place: Place) -> None:
    place.det("e", "list")
    assert "starting a master on this machine" in place.said
    assert "'det master down' stops it" in place.said
    assert place.det("e", "list") == ""
    assert place.said == "No experiments yet; 'det experiment create' makes one.\n"


def test_a_password_may_come_from_a_pipe(place: Place) -> None:
    def piped(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "determined.cli.main", *arguments]
        environ = {**place.environ, "XDG_CONFIG_HOME": str(place.folder / "hers")}
        return subprocess.run(command, input=text, capture_output=True, text=True, env=environ, timeout=120)

    assert piped("a long first password\n", "user", "create", "hopper").returncode == 0
    wrong = piped("not that\n", "user", "login", "hopper")
    assert (wrong.returncode, wrong.stderr) == (1, "det: the username or the password is wrong\n")
    signed_in = piped("a long first password\n", "user", "login", "hopper")
    assert signed_in.stdout.startswith("Signed in as hopper at ") and signed_in.stderr == ""


def test_an_experiment_from_its_creation_to_its_checkpoint(place: Place) -> None:
    values = {"type": "categorical", "vals": [4.0, 2.0, 8.0]}
    experiment = place.create({"x": values})
    assert f"sending 1 file of {place.project} (" in place.said
    assert place.det("e", "wait", str(experiment)) == f"Experiment {experiment} completed\n"
    (row,) = json.loads(place.det("e", "list", "--name", "tiny", "--json"))
    assert (row["id"], row["state"], row["trial_count"]) == (experiment, "COMPLETED", 3)
    assert row["best_metric"] == pytest.approx(2 / 3)
    trials = json.loads(place.det("e", "lt", str(experiment), "--json"))
    assert [trial["state"] for trial in trials] == ["COMPLETED"] * 3
    best = next(trial for trial in trials if trial["hparams"]["x"] == 2.0)
    assert row["best_trial_id"] == best["id"]
    described = place.det("e", "describe", str(experiment))
    assert "0.666667" in described and "COMPLETED" in described
    table = place.det("e", "lc", str(experiment), "--csv").splitlines()
    assert table[0] == "uuid,trial,batches,state,metric,size,reported"
    assert len(table) == 4
    place.det("e", "download", str(experiment), "-o", "here", "-q")
    (folder,) = (place.folder / "here").iterdir()
    assert (folder / "steps").read_text() == "3"
    assert place.det("c", "verify", str(folder)).startswith(f"{folder}: whole")
    config = yaml.safe_load(place.det("e", "config", str(experiment)))
    assert config["searcher"]["name"] == "grid"
    place.det("e", "download-model-def", str(experiment), "-o", "code")
    assert (place.folder / "code" / "script.py").read_text() == SCRIPT
    forked = place.det("e", "fork", str(experiment), "--config", "hyperparameters.x=1.0", "--paused")
    assert forked == f"Created experiment {experiment + 1}\n"
    assert json.loads(place.det("e", "describe", str(experiment + 1), "--json"))["parent_id"] == experiment
    metrics = json.loads(place.det("t", "metrics", str(best["id"]), "--group", "validation", "--json"))
    assert [metric["steps_completed"] for metric in metrics] == [1, 2, 3]
    assert "begins at 0 red" in place.det("t", "logs", str(best["id"]), "--grep", "begins")


def test_following_ends_with_the_experiment(place: Place) -> None:
    out = place.det(
        "e", "create", place.config({"x": 3.0}, searcher={"name": "single", "metric": "loss"}), str(place.project), "-f"
    )
    assert "begins at 0 red" in out
    assert out.splitlines()[-2].startswith("best: trial ")


def test_the_error_of_a_trial_is_its_own_traceback(place: Place) -> None:
    experiment = place.create({"x": 1.0, "fails": True})
    assert place.det("e", "wait", str(experiment), code=1) == f"Experiment {experiment} error\n"
    described = place.det("e", "describe", str(experiment))
    assert "ValueError: this one fails" in described
    assert 'raise ValueError("this one fails")' in described
    assert "ValueError: this one fails" in place.det("e", "logs", str(experiment))


def test_pause_activate_and_kill(place: Place) -> None:
    with gate(place, "pause") as path:
        experiment = place.create({"x": 1.0, "gate": str(path)}, "--paused")
        assert place.state_of(experiment) == "PAUSED"
        place.det("e", "activate", str(experiment))
        assert wait_until(lambda: place.state_of(experiment) == "RUNNING")
        place.det("e", "pause", str(experiment))
        assert wait_until(lambda: place.state_of(experiment) == "PAUSED")
        assert wait_until(lambda: "RUNNING" not in place.det("j", "list"))
        place.det("e", "unpause", str(experiment))
        path.touch()
        place.det("e", "wait", str(experiment))
    with gate(place, "kill") as path:
        experiment = place.create({"x": 1.0, "gate": str(path)})
        assert wait_until(lambda: place.state_of(experiment) == "RUNNING")
        place.det("e", "kill", str(experiment))
        place.det("e", "wait", str(experiment), code=1)
        assert place.state_of(experiment) == "CANCELED"
        place.det("e", "pause", str(experiment), code=1)
        assert f"experiment {experiment}" in place.said


def test_ctrl_c_only_stops_looking(place: Place) -> None:
    with gate(place, "look") as path:
        experiment = place.create({"x": 1.0, "gate": str(path)})
        following = place.start("e", "logs", "-f", str(experiment))
        assert following.stdout is not None
        for line in following.stdout:
            if "begins" in line:
                break
        following.send_signal(signal.SIGINT)
        _, said = following.communicate(timeout=30)
        assert following.returncode == 130
        assert f"Experiment {experiment} keeps running" in said
        assert f"det e logs -f {experiment}" in said and f"det e kill {experiment}" in said
        assert place.state_of(experiment) == "RUNNING"
    place.det("e", "wait", str(experiment))


def test_chosen_lines_of_all_trials_are_followed_to_the_end(place: Place) -> None:
    with gate(place, "chosen") as path:
        x = {"type": "categorical", "vals": [1.0, 2.0, 3.0]}
        experiment = place.create({"x": x, "gate": str(path)})
        following = place.start("e", "logs", "-f", str(experiment), "--grep", "begins")
        assert following.stdout is not None
        lines = [following.stdout.readline(), following.stdout.readline()]
        path.touch()
        rest, _ = following.communicate(timeout=120)
        assert following.returncode == 0
        lines += rest.splitlines()
    assert len(lines) == 3 and all("begins" in line for line in lines)
    assert len({line.partition("]")[0] for line in lines}) == 3 and lines[0].startswith("[trial ")


def test_a_master_that_comes_back_at_another_port_is_followed(place: Place) -> None:
    with gate(place, "moved") as path:
        experiment = place.create({"x": 1.0, "gate": str(path)})
        following = place.start("e", "logs", "-f", str(experiment))
        assert following.stdout is not None
        for line in following.stdout:
            if "begins" in line:
                break
        place.det("master", "down")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        assert f":{port} " in place.det("master", "up", "--port", port)
    _, said = following.communicate(timeout=60)
    assert following.returncode == 0, said
    place.det("e", "wait", str(experiment))


def test_a_terminal_shows_a_table_that_stays_calm(place: Place) -> None:
    import pexpect

    with gate(place, "terminal") as path:
        config = place.config({"x": {"type": "categorical", "vals": [1.0, 2.0]}, "gate": str(path)})
        terminal = pexpect.spawn(
            sys.executable,
            ["-m", "determined.cli.main", "e", "create", config, str(place.project), "-f"],
            dimensions=(30, 80),
            env={**place.environ, "TERM": "xterm"},
            cwd=str(place.folder),
            timeout=60,
            encoding="utf-8",
        )
        try:
            terminal.expect("Created experiment ([0-9]+)")
            experiment = terminal.match.group(1)
            # What both have in common is not repeated in every row.
            terminal.expect("running .* x [12]\r\n")
            assert "gate" not in terminal.before
            terminal.sendintr()
            terminal.expect("keeps running")
            terminal.expect(pexpect.EOF)
        finally:
            terminal.close()
        assert terminal.exitstatus == 130
    place.det("e", "wait", experiment)


def test_what_an_experiment_is_called(place: Place) -> None:
    experiment = str(place.create({"x": 1.0}, name="evil\x1b[31m\u202ename"))
    place.det("e", "wait", experiment)
    for form in ("table", "csv", "json", "jsonl", "yaml"):
        assert "\u202e" not in place.det("e", "list", "-o", form)
    place.det("e", "label", "add", experiment, "=1+1")
    place.det("e", "set", "name", experiment, "=2+2")
    place.det("e", "edit", experiment, "--description", "about it", "--notes", "# notes")
    assert "'=2+2" in place.det("e", "list", "--csv")
    found = json.loads(place.det("e", "describe", experiment, "--json"))
    assert (found["name"], found["labels"], found["description"], found["notes"]) == (
        "=2+2",
        ["=1+1"],
        "about it",
        "# notes",
    )
    place.det("e", "label", "remove", experiment, "=1+1")
    place.det("e", "archive", experiment)
    assert "=2+2" not in place.det("e", "list")
    assert "=2+2" in place.det("e", "list", "--all")
    place.det("e", "delete", experiment, "--yes")
    assert wait_until(lambda: "=2+2" not in place.det("e", "list", "--all"))


def test_mistakes_are_told_here_and_nothing_is_created(place: Place) -> None:
    before = place.det("e", "list", "--all", "--json")
    config = place.config({"x": 1.0}, max_restarts=-1, entrypont="x")
    place.det("e", "create", config, str(place.project), code=1)
    assert f"max_restarts must be at least 0, not -1 ({config}, line" in place.said
    assert "did you mean entrypoint?" in place.said
    place.det("e", "describe", "nope", code=1)
    assert "there is no experiment 'nope'" in place.said
    place.det("e", "kill", "3-", code=2)
    place.det("e", "kill", "nope", code=1)
    assert place.det("e", "list", "--all", "--json") == before


def test_jobs_and_commands(place: Place) -> None:
    assert "hello" in place.det("cmd", "run", "echo", "hello", "--json")
    assert "hello --json" in place.det("cmd", "run", "sh", "-c", "echo $0 $1; exit 7", "hello", "--json", code=7)
    (place.folder / "job.yaml").write_text("name: j\nentrypoint: [echo, done]\nresources: {slots: 1}\n")
    out = place.det("job", "run", "job.yaml", str(place.project), "-f")
    job = out.splitlines()[0].removeprefix("Created job ")
    assert "done" in out
    assert json.loads(place.det("task", "describe", job, "--json"))["state"] == "COMPLETED"
    assert job in place.det("task", "list", "--all")
    assert yaml.safe_load(place.det("task", "config", job))["name"] == "j"


def test_places_people_and_tokens(place: Place) -> None:
    place.det("w", "create", "vision")
    place.det("p", "create", "vision", "digits", "--description", "ten of them")
    assert "digits" in place.det("w", "list-projects", "vision")
    experiment = str(place.create({"x": 1.0}))
    place.det("e", "move", experiment, "vision", "digits")
    assert "tiny" in place.det("p", "list-experiments", "vision", "digits")
    place.det("tpl", "set", "short", place.config({"x": 1.0}))
    assert yaml.safe_load(place.det("tpl", "describe", "short"))["name"] == "tiny"
    token = place.det("token", "create", "ci", "--scope", "read").strip()
    place.environ["DET_TOKEN"] = token
    try:
        assert "tiny" in place.det("e", "list")
        place.det("e", "pause", experiment, code=1)
    finally:
        del place.environ["DET_TOKEN"]
    rows = json.loads(place.det("token", "list", "--json"))
    assert not any("token" in row for row in rows)
    (ours,) = [row["id"] for row in rows if row["name"] == "ci"]
    place.det("token", "revoke", str(ours))
    assert "administrator" in place.det("u", "whoami")
    assert place.det("a", "list", "--json") and place.det("s", "list") and place.det("rp", "list")
    place.det("e", "wait", experiment)


def test_a_model_is_registered_from_a_checkpoint(place: Place) -> None:
    experiment = str(place.create({"x": 1.0}))
    place.det("e", "wait", experiment)
    (best,) = json.loads(place.det("e", "lc", experiment, "--best", "1", "--json"))
    place.det("m", "create", "digits")
    assert "version 1" in place.det("m", "register-version", "digits", best["uuid"][:8])
    assert best["uuid"] in place.det("m", "list-versions", "digits", "--csv")
    place.det("c", "delete", best["uuid"][:8], "--yes", code=1)
    place.det("m", "delete", "digits", "--yes")
