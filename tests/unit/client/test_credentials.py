"""Tokens on this machine: by master and user, for their owner's eyes only; and what the environment says."""

from __future__ import annotations

import pathlib
import stat

import pytest

from determined import errors
from determined.client.credentials import Credentials, Surroundings


def test_a_token_is_remembered_by_master_and_user(tmp_path: pathlib.Path) -> None:
    kept = Credentials(tmp_path / "new")
    assert kept.token("http://one") is None and kept.user("http://one") is None
    kept.remember("http://one", "ann", "a1")
    kept.remember("http://one/", "bob", "b1")
    kept.remember("http://two", "ann", "a2")
    assert kept.token("http://one") == "b1" and kept.user("http://one") == "bob"
    assert kept.token("http://one", "ann") == "a1"
    assert kept.token("http://two/") == "a2"
    kept.forget("http://one")
    assert kept.token("http://one") is None and kept.token("http://one", "ann") == "a1"


def test_nobody_else_can_read_it(tmp_path: pathlib.Path) -> None:
    kept = Credentials(tmp_path / "new")
    kept.remember("http://one", "ann", "secret")
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.path.parent.stat().st_mode) == 0o700


def test_a_file_that_is_broken_is_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "auth.json").write_text("{")
    with pytest.raises(errors.Unauthenticated, match="remove it and sign in again"):
        Credentials(tmp_path).token("http://one")


def test_the_environment_says_where_things_are() -> None:
    plain = Surroundings.of({"HOME": "/home/ann"})
    assert plain.config_folder == pathlib.Path("/home/ann/.config/resolute")
    assert plain.state_folder == pathlib.Path("/home/ann/.local/share/resolute/master")
    assert plain.master is plain.user is plain.password is plain.token is None
    said = Surroundings.of(
        {
            "XDG_CONFIG_HOME": "/c",
            "XDG_DATA_HOME": "/d",
            "DET_MASTER_DIR": "/m",
            "DET_MASTER": "http://h:1",
            "DET_USER": "ann",
            "DET_PASS": "secret",
        }
    )
    assert (said.config_folder, said.state_folder) == (pathlib.Path("/c/resolute"), pathlib.Path("/m"))
    assert (said.master, said.user, said.password) == ("http://h:1", "ann", "secret")
