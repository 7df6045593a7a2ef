"""The master's settings: where they come from, and what is said of mistakes."""

from __future__ import annotations

import pathlib

import pytest

from determined import errors
from determined.master.settings import Settings, load, task_environ


def test_a_flag_goes_before_the_environment_and_that_before_the_file(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "master.yaml"
    file.write_text("port: 1\ncluster_name: file\nsession_days: 2\nhosts: [a]\n")
    environ = {"DET_MASTER_PORT": "2", "DET_MASTER_CLUSTER_NAME": "12", "DET_MASTER_HOSTS": "b, c"}
    settings = load({"port": 3, "host": None}, file, environ)
    assert (settings.port, settings.cluster_name, settings.session_days) == (3, "12", 2.0)
    assert settings.hosts == ("b", "c")
    assert load({}, None, {**environ, "DET_MASTER_CONFIG": str(file)}).session_days == 2.0


def test_without_anything_it_is_this_machine_only(tmp_path: pathlib.Path) -> None:
    settings = load({}, None, {"XDG_DATA_HOME": str(tmp_path)})
    assert settings.is_loopback and settings.port == 8080
    assert settings.state_dir == tmp_path / "resolute" / "master"
    assert settings.default_pool_name == "default" and settings.pool("default").kind == "local"


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.0.0.2", True), ("0.0.0.0", False), ("::", False)]
    + [("10.0.0.1", False), ("train.example", False), ("127.evil.example", False), ("127.0.0.1.evil.example", False)],
)
def test_which_addresses_are_this_machines_own(host: str, is_loopback: bool) -> None:
    assert Settings(host=host).is_loopback is is_loopback


def test_every_mistake_is_told_with_its_place(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "master.yaml"
    file.write_text("prot: 1\nhost: 5\n")
    with pytest.raises(errors.InvalidConfigurationException) as raised:
        load({"port": 70000}, file, {"DET_MASTER_LOG_LEVEL": "loud", "DET_MASTER_TLS_CERT": "/x"})
    said = str(raised.value)
    for part in ("did you mean port?", "line 1", "line 2", "--port", "DET_MASTER_LOG_LEVEL", "tls_key"):
        assert part in said, said


@pytest.mark.parametrize("content", ["[1]", "a: [", "port: !!python/name:os.system"])
def test_a_file_that_is_no_map_is_refused(tmp_path: pathlib.Path, content: str) -> None:
    file = tmp_path / "master.yaml"
    file.write_text(content)
    with pytest.raises(errors.InvalidConfigurationException):
        load({}, file, {})
    with pytest.raises(errors.InvalidConfigurationException):
        load({}, tmp_path / "nothing.yaml", {})


def test_pools_are_settings_too() -> None:
    settings = Settings(pools={"cpu": {"slots": 4}, "gpu": {"scheduler": "fifo"}}, default_pool="gpu", slots=2)
    assert (settings.pool("cpu").slots, settings.pool("gpu").slots) == (4, 2)
    with pytest.raises(ValueError, match="must have a pool"):
        Settings(pools={})
    with pytest.raises(ValueError, match="must be one of pools"):
        Settings(default_pool="other")


def test_tasks_see_nothing_of_the_masters_settings() -> None:
    environ = {"PATH": "/bin", "DET_MASTER_INITIAL_PASSWORD": "x", "DET_MASTER_DATABASE": "y"}
    assert task_environ(environ) == {"PATH": "/bin"}


def test_every_setting_says_what_it_is() -> None:
    assert all(field.description for field in Settings.model_fields.values())
