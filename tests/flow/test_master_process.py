"""A master as a process: it serves, it is the only one, it survives its own death, and it keeps to this machine."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import psutil
import pytest

from determined.master.api.gate import HEADERS
from tests.flow.processes import wait_until


class MasterProcess:
    """``python -m determined.master`` in a folder of its own, on a port that is free."""

    def __init__(self, folder: pathlib.Path, *flags: str, environ: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        folder.parent.mkdir(exist_ok=True)
        self.output = folder.parent / "output"
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "determined.master",
                    "--dir",
                    str(folder),
                    "--port",
                    "0",
                    "--slots",
                    "1",
                    *flags,
                ],
                stdout=output,
                stderr=output,
                env={**os.environ, "DET_MASTER_WARM_START": "false", **(environ or {})},
                start_new_session=True,
            )

    def wait_until_it_serves(self) -> None:
        found = wait_until(lambda: self.address is not None or self.process.poll() is not None)
        assert found and self.process.poll() is None, self.output.read_text()

    @property
    def address(self) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads((self.folder / "master.json").read_text())
            return found if found["pid"] == self.process.pid else None
        return None

    @property
    def url(self) -> str:
        assert self.address is not None
        return str(self.address["url"])

    @property
    def token(self) -> str:
        return (self.folder / "token").read_text().strip()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def ask(self, method: str, path: str, **content: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.request(method, f"{self.url}/api/v1{path}", headers=headers, timeout=30, **content)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(30)


@contextlib.contextmanager
def running(folder: pathlib.Path, *flags: str, environ: Mapping[str, str] | None = None) -> Iterator[MasterProcess]:
    started = MasterProcess(folder, *flags, environ=environ)
    try:
        started.wait_until_it_serves()
        yield started
    finally:
        started.end(signal.SIGKILL)


def raw(port: int, sent: bytes) -> bytes:
    """All that is answered to these bytes."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(sent)
        while piece := connection.recv(65536):
            found += piece
    return found


def refused(folder: pathlib.Path, *flags: str, environ: Mapping[str, str] | None = None) -> str:
    """What a master says that does not start."""
    started = MasterProcess(folder, *flags, environ=environ)
    try:
        assert started.process.wait(30) == 1
    finally:
        started.end(signal.SIGKILL)
    said = started.output.read_text()
    assert "Traceback" not in said, said
    return said


def test_it_serves_stops_when_told_and_leaves_nothing_open(tmp_path: pathlib.Path) -> None:
    with running(tmp_path / "master") as master:
        assert httpx.get(f"{master.url}/api/v1/health").json() == {"status": "ok"}
        answer = master.ask("GET", "/me")
        assert answer.status_code == 200 and answer.json()["admin"]
        assert {name.decode() for name, _ in HEADERS} <= {*answer.headers} and "server" not in answer.headers
        for path in (master.folder, *master.folder.rglob("*")):
            assert path.stat().st_mode & 0o077 == 0, path
        assert psutil.Process(master.process.pid).memory_info().rss < 150 * 2**20
        for garbage in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"G@T\r\n\r\n", b"GET /\r\n\r\n"):
            said = raw(master.port, garbage)
            assert said.startswith(b"HTTP/1.1 4") and all(name in said for name, _ in HEADERS), (garbage, said)
        # A stream that is open does not keep it from stopping.
        with httpx.stream("GET", f"{master.url}/api/v1/changes", headers={"Authorization": f"Bearer {master.token}"}):
            begin = time.monotonic()
            assert master.end() == 0
        assert time.monotonic() - begin < 10
        assert not (master.folder / "master.json").exists()
        log = (master.folder / "master.log").read_text()
        assert "serves at http://127.0.0.1" in log and "has stopped" in log and "Traceback" not in log
        assert master.token not in log


def test_there_is_one_master_for_a_folder(tmp_path: pathlib.Path) -> None:
    with running(tmp_path / "master") as master:
        other = MasterProcess(tmp_path / "master")
        other.output = tmp_path / "output"
        assert other.process.wait(30) == 1
        assert f"process {master.process.pid}" in other.output.read_text()
        assert master.ask("GET", "/me").status_code == 200
        assert master.address is not None


def test_what_was_answered_is_there_after_a_kill(tmp_path: pathlib.Path) -> None:
    names = []
    with running(tmp_path / "master") as master:
        token = master.token
        for number in range(20):
            assert master.ask("POST", "/workspaces", json={"name": f"w{number}"}).status_code == 201
            names.append(f"w{number}")
        assert master.end(signal.SIGKILL) == -signal.SIGKILL
    with running(tmp_path / "master") as master:
        assert master.token == token
        assert [found["name"] for found in master.ask("GET", "/workspaces").json()] == ["Uncategorized", *names]


def test_it_does_not_leave_this_machine_without_a_password(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "master"
    for host in ("0.0.0.0", "::", "*"):
        said = refused(folder, "--host", host)
        assert "no administrator has a password" in said
    environ = {"DET_MASTER_INITIAL_PASSWORD": "a quiet lantern"}
    with running(folder, "--host", "0.0.0.0", environ=environ) as master:
        # By the address it is bound to and by names that were allowed; never as 0.0.0.0, and by no other name.
        url = f"http://127.0.0.1:{master.port}/api/v1/me"
        headers = {"Authorization": f"Bearer {master.token}"}
        assert httpx.get(url, headers=headers).status_code == 200
        for host in ("0.0.0.0", "evil.example"):
            assert httpx.get(url, headers={**headers, "Host": host}).status_code == 403
        assert "unencrypted" in (folder / "master.log").read_text()
        assert "lantern" not in (folder / "master.log").read_text()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--host", "no.such.host.invalid"), "host"),
        (("--tls-cert", "/nowhere"), "tls_key"),
        (("--tls-cert", "/nowhere", "--tls-key", "/nowhere"), "tls_cert and tls_key cannot be used"),
        (("--log-level", "loud"), "--log-level"),
        (("--config", "/nowhere.yaml"), "/nowhere.yaml"),
    ],
)
def test_what_it_cannot_be_told_it_says_in_a_sentence(
    tmp_path: pathlib.Path, flags: tuple[str, ...], says: str
) -> None:
    assert says in refused(tmp_path / "master", *flags)


def test_a_port_that_is_taken_is_said_to_be(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "choose another port" in refused(tmp_path / "master", "--port", str(taken.getsockname()[1]))


def test_any_free_port_is_the_last_one_if_that_is_free(tmp_path: pathlib.Path) -> None:
    with running(tmp_path / "master") as master:
        first = master.port
        master.end(signal.SIGKILL)
    with running(tmp_path / "master") as master:
        assert master.port == first
    with socket.create_server(("127.0.0.1", first)), running(tmp_path / "master") as master:
        assert master.port not in (0, first)


def test_an_administrator_can_stop_it(tmp_path: pathlib.Path) -> None:
    with running(tmp_path / "master") as master:
        assert master.ask("POST", "/master/stop").status_code == 202
        assert master.process.wait(30) == 0


def test_clients_that_say_nothing_are_not_waited_for(tmp_path: pathlib.Path) -> None:
    """Threat X30: many connections that send slowly, or nothing, do not keep others waiting."""
    environ = {"DET_MASTER_CLIENT_TIMEOUT_SECONDS": "1.5"}
    with running(tmp_path / "master", environ=environ) as master, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", master.port))) for _ in range(300)]
        for number, one in enumerate(slow):
            one.settimeout(30)
            # Nothing at all, half a head, a head whose body does not come.
            one.sendall(
                [
                    b"",
                    b"GET /api/v1/health HTTP/1.1\r\nHost: loc",
                    b"POST /api/v1/auth/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b"Content-Length: 100\r\n\r\n{",
                ][number % 3]
            )
        times = []
        for _ in range(50):
            begin = time.monotonic()
            assert master.ask("GET", "/me").status_code == 200
            times.append(time.monotonic() - begin)
        assert sorted(times)[len(times) // 2] < 0.5
        for one in slow:
            while one.recv(65536):  # an answer, maybe, and then the end
                pass


def test_the_setup_secret_is_told_once_in_the_log(tmp_path: pathlib.Path) -> None:
    with running(tmp_path / "master") as master:
        log = master.folder / "master.log"
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        (secret,) = [word for word in log.read_text().split() if word.startswith("res_")]
        body = {"secret": secret, "password": "a quiet lantern"}
        assert httpx.post(f"{master.url}/api/v1/auth/setup", json=body).status_code == 200
        assert httpx.post(f"{master.url}/api/v1/auth/setup", json=body).status_code == 401
