"""Secrets planted everywhere are seen nowhere (threats X20, X22, X24)."""

from __future__ import annotations

import logging
import pathlib

import pytest

from determined.master.settings import Settings, masked
from tests.unit.master.api.routes import STREAMS, calls
from tests.unit.master.api.serving import serving

LEFT_OUT = {*STREAMS, "POST /auth/logout", "POST /master/stop"}
CANARY = "canary-7f3a"


def test_planted_secrets_are_seen_nowhere(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    storage = {"type": "s3", "bucket": "b", "access_key": f"{CANARY}-access", "secret_key": f"{CANARY}-secret"}
    with serving(
        tmp_path,
        initial_password=f"{CANARY}-first-password",
        checkpoint_storage=storage,
        experiment_defaults={
            "environment": {"registry_auth": {"password": f"{CANARY}-registry"}, "environment_variables": {"cpu": []}},
            "data": {"secrets": {"key": f"{CANARY}-data"}},
        },
        pools={"default": {"options": {"api_token": f"{CANARY}-pool"}}},
    ) as master:
        master.make("POST", "/users", username="ada", password=f"{CANARY}-password")
        body = {"username": "ada", "password": f"{CANARY}-password"}
        session = master.ask("POST", "/auth/login", None, json=body).json()["token"]
        master.ask("POST", "/auth/login", None, json={**body, "password": f"{CANARY}-wrong"})
        master.ask("POST", "/auth/setup", None, json={"secret": f"{CANARY}-setup", "password": "x"})
        program = master.make("POST", "/tokens", session, name="nightly")["token"]
        template = f"environment:\n  registry_auth: {{password: {CANARY}-template}}\n"
        master.make("PUT", "/templates/t", config=template)
        master.ask("GET", f"/me?token={CANARY}-query", f"{CANARY}-bearer")
        master.ask("POST", "/users", json={"username": "bob", "password": {CANARY: f"{CANARY}-wrong-type"}})
        shown = [master.ask(call.method, call.path).text for call in calls(master.app) if call.name not in LEFT_OUT]
        shown += [master.ask("GET", path).text for path in ("/templates/t", "/templates", "/tokens?everyone=true")]
        owner, app_state = master.owner, master.app.state
        assert app_state.setup_secret is None
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith("httpx")]
    said = "\n".join([*shown, *logged])
    for secret in (CANARY, session, program, owner):
        assert secret not in said
    # What is on disk: hashes, but for what configs need as it is, in a folder that is its owner's alone.
    needed = {f"{CANARY}-template".encode()}
    for path in (tmp_path / "master").rglob("*"):
        if path.is_file() and path.name != "token":
            found = path.read_bytes()
            for secret in needed:
                found = found.replace(secret, b"")
            for text in (CANARY, session, program, owner):
                assert text.encode() not in found, path
            assert path.stat().st_mode & 0o077 == 0 or path.name.startswith("master.db"), path


def test_settings_are_shown_without_their_secrets() -> None:
    settings = Settings(database=f"postgresql://det:{CANARY}@db.example/det", initial_password=CANARY)
    assert CANARY not in str(masked(settings)) + repr(settings)
    assert masked(settings)["database"].endswith("@db.example/det")
