"""The master that the first call starts: one of it, found again, and nobody else gets its token."""

from __future__ import annotations

import json
import os
import pathlib
import threading
from collections.abc import Iterator

import pytest

from determined import errors
from determined.client import autostart
from determined.client.autostart import LocalMaster, find, find_or_start
from determined.client.credentials import Surroundings
from determined.client.sdk import Determined
from tests import masters
from tests.unit.client.server import serving


@pytest.fixture
def environ(tmp_path: pathlib.Path) -> Iterator[dict[str, str]]:
    folder = tmp_path / "master"
    with masters.stopped_afterwards(folder):
        yield {
            **os.environ,
            "DET_MASTER_DIR": str(folder),
            "DET_MASTER_PORT": "0",
            "DET_MASTER_PASSWORD_COST": "10",
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
        }


def test_several_who_need_one_at_once_get_the_same(environ: dict[str, str]) -> None:
    around = Surroundings.of(environ)
    assert find(around.state_folder) is None
    said: list[str] = []
    found: list[LocalMaster] = []
    threads = [
        threading.Thread(target=lambda: found.append(find_or_start(around, environ, said.append))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(found) == 3 and len({(one.pid, one.url) for one in found}) == 1
    assert found[0].token and any("starting a master on this machine" in sentence for sentence in said)
    assert find(around.state_folder) == found[0]
    again: list[str] = []
    assert find_or_start(around, environ, again.append) == found[0] and again == []
    script = Determined(environ=environ, say=again.append)
    assert script.whoami().admin and again == []
    by_name = Determined(found[0].url.replace("127.0.0.1", "localhost"), environ=environ)
    assert by_name.whoami().admin, "the owner's token is used for the master of this machine by any of its names"
    script.master.stop_master()
    for one in (script, by_name):
        one.master.close()


def test_one_that_cannot_serve_says_why(environ: dict[str, str]) -> None:
    around = Surroundings.of({**environ})
    with pytest.raises(errors.MasterUnreachable, match=r"(?s)the end of .*master\.log.*port|The end of .*port"):
        find_or_start(around, {**environ, "DET_MASTER_PORT": "not a port"}, seconds=60)


def test_only_what_this_start_wrote_explains_it(environ: dict[str, str]) -> None:
    around = Surroundings.of(environ)
    around.state_folder.mkdir()
    (around.state_folder / "master.log").write_text("use this secret, once: res_abc\n")
    with pytest.raises(errors.MasterUnreachable) as caught:
        find_or_start(around, {**environ, "DET_MASTER_PORT": "not a port"}, seconds=60)
    assert "res_abc" not in str(caught.value) and "port must be" in str(caught.value)


def test_a_folder_that_cannot_be_made_is_told(environ: dict[str, str], tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    around = Surroundings.of({**environ, "DET_MASTER_DIR": str(tmp_path / "file" / "master")})
    with pytest.raises(errors.Refused, match=r"file/master cannot be made: Not a directory.*DET_MASTER_DIR"):
        find_or_start(around, environ)


def test_a_stranger_at_an_address_that_was_left_behind_gets_nothing(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Surroundings.of(environ).state_folder
    folder.mkdir()
    (folder / "token").write_text("secret")
    (folder / "lock").touch()
    with serving() as server:
        for pid in (os.getpid(), 2**22 + 5):
            (folder / "master.json").write_text(json.dumps({"url": server.url, "pid": pid}))
            assert find(folder) is None
        with pytest.raises(errors.Unauthenticated):
            Determined(server.url, environ={name: value for name, value in environ.items() if name != "DET_MASTER"})
        monkeypatch.setattr(autostart, "_is_locked", lambda path: True)
        assert find(folder) is None or server.asked[-1].path == "/api/v1/health"
    assert not any("secret" in str(asked) for asked in server.asked)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"url": 1}', '{"url": "http://127.0.0.1:1", "pid": "x"}'])
def test_a_note_that_is_broken_is_no_master(environ: dict[str, str], content: str) -> None:
    folder = Surroundings.of(environ).state_folder
    folder.mkdir()
    (folder / "master.json").write_text(content)
    assert find(folder) is None
