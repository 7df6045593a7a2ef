"""Figure X-h: fifty secrets in twelve places of a master that works, and nobody is shown one.

What may hold secrets, and why, is all there is in ``MAY_HOLD``: each such file is readable by its owner alone.
"""

from __future__ import annotations

import json
import pathlib
import re
import sqlite3
import threading
from typing import Any

import psutil
import pytest
import yaml

from determined.client.transport import Session
from tests import masters
from tests.flow.test_cli_master import Place

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys, time
import determined as det
from determined import core

info = det.get_cluster_info()
with core.init() as context:
    secrets = [value for value in os.environ.values() if "canary" in value]
    spec = json.load(open(os.environ["DET_NODE_SPEC"]))
    secrets += [spec["config"]["data"]["secrets"], spec["config"]["environment"]["registry_auth"], info.session_token]
    assert len(secrets) > 10
    for secret in secrets:
        print("out", secret, flush=True)
        print("err", secret, file=sys.stderr, flush=True)
    first = os.environ["VAR_0_TOKEN"]
    # In two writes, and in one line with others.
    print("half", first[:9], sep=" ", end="", flush=True)
    time.sleep(0.3)
    print(first[9:], first, first, flush=True)
    context.train.report_validation_metrics(1, {"loss": 1.0})
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, _):
        (path / "weights").write_text("1")
    time.sleep(0.5)
    raise ValueError("it failed with " + os.environ["VAR_1_TOKEN"])
"""
CANARY = re.compile(rb"canary-\d+-[a-z0-9]+")

# Where secrets must be for the work to be done, and for how long.
MAY_HOLD = {
    r"master\.db(-wal|-shm)?": "configs as they were submitted: a trial that starts again needs its variables",
    r"allocations/[^/]+/spec\.json": "what a node process is told, while it runs",
    r"allocations/[^/]+/scratch/spec\.json": "the same for its ranks",
    r"token": "the local owner's own credential",
}
# Of these only a hash is kept anywhere: not even the database has them.
ONLY_HASHES = ("password", "token")


class Canaries:
    def __init__(self) -> None:
        self.places: dict[str, list[str]] = {}

    def __call__(self, place: str) -> str:
        number = sum(map(len, self.places.values()))
        # Different ones of the same form, so that each that is seen tells where it came from.
        made = f"canary-{number}-{hash((place, number)) & 0xFFFFFFFF:08x}"
        self.places.setdefault(place, []).append(made)
        return made


def test_fifty_secrets_are_seen_nowhere(tmp_path: pathlib.Path) -> None:
    make = Canaries()
    place = Place(tmp_path)
    (place.project / "script.py").write_text(SCRIPT)
    place.environ |= {
        "DET_MASTER_WARM_START": "false",
        "DET_MASTER_INITIAL_PASSWORD": make("password of the administrator"),
        # What the master is started with, its tasks find around them.
        **{f"INHERITED_{number}_SECRET": make("inherited variable") for number in range(5)},
        "AWS_SECRET_ACCESS_KEY": make("inherited variable"),
    }
    secrets = {"nested": {"deep": [make("data.secrets") for _ in range(12)]}, "plain": make("data.secrets")}
    variables = [f"VAR_{number}_TOKEN={make('environment variable')}" for number in range(14)]
    by_device = {
        "cpu": variables,
        "cuda": [f"GPU_PASSWORD={make('environment variable of another device')}"],
        "rocm": [],
    }
    environment = {
        "environment_variables": by_device,
        "registry_auth": {"username": "me", "password": make("registry"), "auth": make("registry")},
    }
    config = {"max_restarts": 1, "data": {"secrets": secrets}, "environment": environment}
    said: list[str] = []
    arguments: set[str] = set()
    over = threading.Event()

    def look_at_arguments() -> None:
        while not over.wait(0.05):
            for process in psutil.process_iter():
                try:
                    arguments.update(process.cmdline())
                except psutil.Error:
                    continue

    def det(*words: str, code: int = 0) -> str:
        out = place.det(*words, code=code)
        said.extend([out, place.said])
        return out

    watcher = threading.Thread(target=look_at_arguments)
    watcher.start()
    try:
        with masters.stopped_afterwards(place.state):
            det("master", "up")
            owner = (place.state / "token").read_text().strip()
            url = json.loads((place.state / "master.json").read_text())["url"]
            master = Session(url, owner)

            # People and programs.
            for name in ("ada", "bob"):
                master.post("/users", {"username": name, "password": make("password")})
            ada = make.places["password"][0]
            tokens = [Session(url).post("/auth/login", {"username": "ada", "password": ada})["token"]]
            for word in (make("password that is wrong"), make("password that is wrong")):
                with pytest.raises(Exception, match="wrong"):
                    Session(url).post("/auth/login", {"username": "ada", "password": word})
            tokens += [det("token", "create", f"ci-{number}").strip() for number in range(3)]
            del said[-6:]  # the one time they are shown
            place.environ["DET_TOKEN"] = tokens[-1]

            # Work of all kinds.
            template = yaml.safe_dump({"environment": {"environment_variables": [f"T_KEY={make('template')}"] * 2}})
            (tmp_path / "template.yaml").write_text(template)
            det("tpl", "set", "usual", str(tmp_path / "template.yaml"))
            path = place.config({"x": {"type": "categorical", "vals": [1.0, 2.0]}}, **config)
            det("e", "create", path, str(place.project), "-f", code=1)
            det("e", "create", path, str(place.project), "--paused", "--template", "usual")
            broken = f"entrypont: x\ndata: {{secrets: {{a: {make('config with a mistake')}}}}}\n"
            (tmp_path / "broken.yaml").write_text(broken)
            det("e", "create", str(tmp_path / "broken.yaml"), str(place.project), code=1)
            overrides = json.dumps([f"CMD_TOKEN={make('command')}", f"CMD_PASSWORD={make('command')}"])
            (tmp_path / "command.yaml").write_text(f"environment: {{environment_variables: {overrides}}}\n")
            det("cmd", "run", "--config-file", str(tmp_path / "command.yaml"), "sh", "-c", "env; echo $CMD_TOKEN >&2")
            job = {"entrypoint": ["sh", "-c", "env"], "resources": {"slots": 1}}
            job["environment"] = {"environment_variables": [f"JOB_SECRET={make('job')}" for _ in range(6)]}
            (tmp_path / "job.yaml").write_text(yaml.safe_dump({"name": "j", **job}))
            det("job", "run", str(tmp_path / "job.yaml"), str(place.project), "-f")
            command, task = (json.loads(det("task", "list", "--all", "--json"))[at]["id"] for at in (0, 1))

            # Everything that anybody can be shown: the owner sees the most.
            del place.environ["DET_TOKEN"]
            for words in (
                "e describe 1; e config 1; e config 2 --written; e logs 1; t describe 1 --json; tpl describe usual;"
                f"task config {command}; task logs {command}; task config {task}; master config; master logs;"
                "token list --json"
            ).split(";"):
                det(*words.split())
            said.append(json.dumps(everything(master), default=str))
            said.append(json.dumps([*read_changes(master)]))
            sha256 = master.get("/experiments/1/config")["context_sha256"]
            said.append(json.dumps(master.get(f"/contexts/{sha256}/files")))
            # While it runs nobody else can look into what must be told.
            for file in place.state.glob("allocations/*/spec.json"):
                assert file.stat().st_mode & 0o077 == 0
            master.close()
    finally:
        over.set()
        watcher.join()

    count = sum(map(len, make.places.values()))
    assert (count >= 50, len(make.places)) == (True, 12), {name: len(made) for name, made in make.places.items()}
    assert "half ********" in "".join(said), "the trial has not printed what it was to print"
    seen = "\n".join([*said, *arguments]).encode()
    assert_none(seen, make, "what was shown")
    for token in [*tokens, owner]:
        assert token.encode() not in seen
    look_at_files(place.state, make, [*tokens, owner])


def everything(master: Session) -> list[Any]:
    """The answer to every GET of the API that names no thing, or one that is there."""
    names = {
        "experiment_id": 1, "trial_id": 1, "task_id": "job-1", "user_id": 1, "workspace_id": 1, "project_id": 1,
        "name": "usual", "job_id": "experiment-1", "allocation_id": "trial-1.1",
    }  # fmt: skip
    found = []
    for path, methods in master.get("/openapi.json")["paths"].items():
        path = path.removeprefix("/api/v1").format_map(Blank(names))
        if "get" not in methods or path in ("/changes",):
            continue
        try:
            found.append(master.call("GET", path, attempts=1, timeout=20).body.decode(errors="replace"))
        except Exception as error:
            found.append(str(error))
    assert sum(len(text) > 100 for text in found) > 25
    return found


class Blank(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        return "nothing"


def read_changes(master: Session) -> Any:
    with master.stream("/changes", query={"after": 0}, timeout=2) as stream:
        try:
            for piece in stream.pieces():
                yield piece.decode(errors="replace")
        except Exception:
            return


def assert_none(content: bytes, make: Canaries, where: object, places: tuple[str, ...] = ()) -> None:
    made = {canary.encode(): name for name, canaries in make.places.items() for canary in canaries}
    found = sorted({made.get(canary, canary.decode()) for canary in CANARY.findall(content)})
    if places:
        found = [name for name in found if name.startswith(places)]
    assert not found, f"{where} has secrets of: {', '.join(found)}"


def look_at_files(state: pathlib.Path, make: Canaries, tokens: list[str]) -> None:
    looked_at, held = 0, b""
    for path in state.rglob("*"):
        if not path.is_file():
            continue
        name, content = str(path.relative_to(state)), path.read_bytes()
        looked_at += 1
        if name != "token":
            for token in tokens:
                assert token.encode() not in content, name
        if any(re.fullmatch(pattern, name) for pattern in MAY_HOLD):
            assert path.stat().st_mode & 0o077 == 0, name
            assert_none(content, make, name, ONLY_HASHES)
            held += content
        else:
            assert_none(content, make, name)
    # They were there to be found.
    assert looked_at > 15 and make.places["data.secrets"][0].encode() in held
    assert any((state / "checkpoints").iterdir()) and any((state / "runs").iterdir())
    with sqlite3.connect(state / "master.db") as database:
        rows = database.execute("select count(*) from trials").fetchone()
    database.close()
    assert rows[0] >= 2
