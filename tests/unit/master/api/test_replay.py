"""A changing call sent twice under one idempotency key has one effect (figure A2)."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from determined.master.api.policy import declared_policy
from tests.unit.master.api.routes import calls
from tests.unit.master.api.serving import Master

Prepare = Callable[[Master], tuple[str, str, dict[str, Any] | None]]


def _workspace(master: Master) -> int:
    found: int = master.make("POST", "/workspaces", name="w")["id"]
    return found


def _project(master: Master) -> int:
    found: int = master.make("POST", "/projects", workspace_id=_workspace(master), name="p")["id"]
    return found


def _model(master: Master) -> str:
    master.make("POST", "/models", name="m")
    return "m"


def _template(master: Master) -> str:
    master.make("PUT", "/templates/t", config="name: x")
    return "t"


def _token(master: Master) -> int:
    found: int = master.make("POST", "/tokens", name="x")["id"]
    return found


# Every changing call of these parts that is answered from memory: what must be there before, and the call.
CASES: dict[str, Prepare] = {
    "POST /users": lambda master: ("POST", "/users", {"username": "ada"}),
    "PATCH /users/{id}": lambda master: ("PATCH", "/users/1", {"display_name": "Ada"}),
    "POST /tokens": lambda master: ("POST", "/tokens", {"name": "nightly"}),
    "DELETE /tokens/{id}": lambda master: ("DELETE", f"/tokens/{_token(master)}", None),
    "PUT /master/message": lambda master: ("PUT", "/master/message", {"message": "at nine"}),
    "POST /workspaces": lambda master: ("POST", "/workspaces", {"name": "w"}),
    "PATCH /workspaces/{id}": lambda master: ("PATCH", f"/workspaces/{_workspace(master)}", {"name": "v"}),
    "DELETE /workspaces/{id}": lambda master: ("DELETE", f"/workspaces/{_workspace(master)}", None),
    "POST /workspaces/{id}/archive": lambda master: ("POST", f"/workspaces/{_workspace(master)}/archive", None),
    "POST /workspaces/{id}/unarchive": lambda master: ("POST", f"/workspaces/{_workspace(master)}/unarchive", None),
    "POST /projects": lambda master: ("POST", "/projects", {"workspace_id": 1, "name": "p"}),
    "PATCH /projects/{id}": lambda master: ("PATCH", f"/projects/{_project(master)}", {"notes": "n"}),
    "DELETE /projects/{id}": lambda master: ("DELETE", f"/projects/{_project(master)}", None),
    "POST /projects/{id}/archive": lambda master: ("POST", f"/projects/{_project(master)}/archive", None),
    "POST /projects/{id}/unarchive": lambda master: ("POST", f"/projects/{_project(master)}/unarchive", None),
    "POST /models": lambda master: ("POST", "/models", {"name": "m"}),
    "PATCH /models/{model}": lambda master: ("PATCH", f"/models/{_model(master)}", {"notes": "n"}),
    "DELETE /models/{model}": lambda master: ("DELETE", f"/models/{_model(master)}", None),
    "POST /models/{model}/archive": lambda master: ("POST", f"/models/{_model(master)}/archive", None),
    "POST /models/{model}/unarchive": lambda master: ("POST", f"/models/{_model(master)}/unarchive", None),
    "PUT /templates/{name}": lambda master: ("PUT", "/templates/t", {"config": "name: x"}),
    "DELETE /templates/{name}": lambda master: ("DELETE", f"/templates/{_template(master)}", None),
}
# These have tests beside those of what they change: versions need a checkpoint.
ELSEWHERE = ("/experiments", "/trials", "/checkpoints", "/tasks", "/jobs", "/agents", "/runs", "/versions")


def send(master: Master, method: str, path: str, body: Any, key: str, token: str = "owner") -> httpx.Response:
    content: dict[str, Any] = {} if body is None else {"json": body}
    return master.ask(method, path, token, {"Idempotency-Key": key}, **content)


def contents(master: Master) -> str:
    connection = sqlite3.connect(master.settings.database_url)
    try:
        return hashlib.sha256("\n".join(connection.iterdump()).encode()).hexdigest()
    finally:
        connection.close()


def test_every_changing_call_is_tried(master: Master) -> None:
    replayed = {
        call.name
        for call, route in zip(calls(master.app), master.app.router.routes)
        if call.method not in ("GET", "HEAD") and (found := declared_policy(route)) is not None and found.replays
    }
    assert {name for name in replayed if not any(part in name for part in ELSEWHERE)} == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_twice_is_once(master: Master, name: str) -> None:
    call, key = CASES[name](master), str(uuid.uuid4())
    first = send(master, *call, key)
    assert first.status_code < 300, first.text
    after = contents(master)
    again = send(master, *call, key)
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers["idempotent-replay"] == "true"
    assert contents(master) == after


def test_the_effect_and_the_note_of_it_are_one(master: Master) -> None:
    """A master that dies after the effect and before the answer: the call sent again has no second effect."""
    key = str(uuid.uuid4())
    app_state = master.app.state
    held = app_state.db.write

    async def dies_after(change: Any, *args: Any, **kwargs: Any) -> Any:
        await held(change, *args, **kwargs)
        raise asyncio.CancelledError  # what is left of the request never runs

    app_state.db.write = dies_after
    with pytest.raises(BaseException):  # noqa: B017
        send(master, "POST", "/tokens", {"name": "nightly"}, key)
    app_state.db.write = held
    again = send(master, "POST", "/tokens", {"name": "nightly"}, key)
    assert again.status_code == 201 and again.headers["idempotent-replay"] == "true"
    assert [token["name"] for token in master.get("/tokens")].count("nightly") == 1
    assert master.ask("GET", "/me", again.json()["token"]).status_code == 200


def test_many_at_once_are_one(master: Master) -> None:
    key = str(uuid.uuid4())

    async def flood() -> list[httpx.Response]:
        headers = {"Idempotency-Key": key, "Authorization": f"Bearer {master.owner}"}
        sent = [master._client.post("/api/v1/tokens", json={"name": "n"}, headers=headers) for _ in range(30)]
        return list(await asyncio.gather(*sent))

    answers = master.run(flood())
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    assert [token["name"] for token in master.get("/tokens")].count("n") == 1


def test_a_call_that_failed_may_be_made_good(master: Master) -> None:
    key = str(uuid.uuid4())
    assert send(master, "POST", "/projects", {"workspace_id": 2, "name": "p"}, key).status_code == 404
    master.make("POST", "/workspaces", name="w")
    assert send(master, "POST", "/projects", {"workspace_id": 2, "name": "p"}, key).status_code == 201


def test_a_key_is_for_one_request_of_one_caller(master: Master) -> None:
    key, ada = str(uuid.uuid4()), master.user("ada")
    first = send(master, "POST", "/tokens", {"name": "n"}, key)
    other_body = send(master, "POST", "/tokens", {"name": "another"}, key)
    assert other_body.status_code == 409 and "another request" in other_body.text
    other_caller = send(master, "POST", "/tokens", {"name": "n"}, key, ada)
    assert other_caller.status_code == 201 and other_caller.json()["token"] != first.json()["token"]
    for wrong in ("", "short", "x" * 201):
        assert send(master, "POST", "/tokens", {"name": "n"}, wrong).status_code == 400


def test_a_kept_answer_gives_no_secret_away(master: Master) -> None:
    token = send(master, "POST", "/tokens", {"name": "n"}, str(uuid.uuid4())).json()["token"]
    for path in master.settings.state_dir.glob("master.db*"):
        assert token.encode() not in path.read_bytes()
