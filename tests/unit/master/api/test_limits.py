"""How much may be sent, how deep and how slowly."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from determined.master.api.gate import MIB, body_limit
from determined.master.api.policy import API
from tests.unit.master.api.serving import Master, serving

JSON = {"Content-Type": "application/json"}


def nested(depth: int, kind: str = "[") -> bytes:
    if kind == "[":
        return b"[" * depth + b"]" * depth
    return b'{"a":' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize("depth", [65, 300, 1_000, 100_000])
@pytest.mark.parametrize("kind", ["[", "{"])
def test_json_is_not_nested_without_end(master: Master, depth: int, kind: str) -> None:
    answer = master.ask("POST", "/workspaces", headers=JSON, content=nested(depth, kind))
    assert answer.status_code == 400 and answer.json()["code"] == "bad_request"
    body = b'{"name": "m", "metadata": {"x": ' + nested(depth, kind) + b"}}"
    assert master.ask("POST", "/models", headers=JSON, content=body).status_code == 400


def test_what_is_deep_enough_for_people_is_taken(master: Master) -> None:
    body = b'{"name": "m", "metadata": {"x": ' + nested(60) + b"}}"
    assert master.ask("POST", "/models", headers=JSON, content=body).status_code == 201


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nope",
        b'{"name": }',
        b'{"name": "\\ud800"}',
        b"\xff\xfe",
        b'{"name": 1' + b"0" * 5000 + b"}",
        b"[]",
        b"1",
    ],
)
def test_what_is_not_understood_is_said_to_be(master: Master, body: bytes) -> None:
    answer = master.ask("POST", "/workspaces", headers=JSON, content=body)
    assert answer.status_code in (400, 422)
    assert answer.json()["code"] == "bad_request" and answer.json()["message"]


def test_numbers_that_are_none_survive(master: Master) -> None:
    body = b'{"name": "m", "metadata": {"a": NaN, "b": [Infinity, -Infinity], "c": -0.0, "d": 1e-310, "e": null}}'
    answer = master.ask("POST", "/models", headers=JSON, content=body)
    assert answer.status_code == 201, answer.text
    constants = {"Accept": "application/json; nan=constants"}
    found = master.ask("GET", "/models/m", headers=constants).json()["metadata"]
    assert math.isnan(found["a"]) and found["b"] == [math.inf, -math.inf]
    assert math.copysign(1, found["c"]) == -1 and found["d"] == 1e-310 and found["e"] is None
    # Browsers, which know no such numbers, get texts.
    plain = master.get("/models/m")["metadata"]
    assert (plain["a"], plain["b"], plain["e"]) == ("NaN", ["Infinity", "-Infinity"], None)


def test_a_message_repeats_nothing_of_what_was_sent(master: Master) -> None:
    body = {"username": ["canary-secret"], "password": {"canary-secret": 1}}
    answer = master.ask("POST", "/auth/login", None, json=body)
    assert answer.status_code == 422 and "canary-secret" not in answer.text


@pytest.mark.parametrize(
    ("path", "limit"),
    [("/workspaces", 4), ("/contexts/x", 100), ("/allocations/job-1.1/reports", 8), ("/nothing", 4)],
)
def test_bodies_have_a_limit(master: Master, path: str, limit: int) -> None:
    assert body_limit(f"{API}{path}") == limit * MIB
    said = master.ask("POST", path, headers={"Content-Length": str(limit * MIB + 1)}, content=b"x")
    assert said.status_code == 413 and said.headers["connection"] == "close"
    for wrong in ("-1", "x", "1" * 30):
        assert master.ask("POST", path, headers={"Content-Length": wrong}, content=b"x").status_code == 413


def test_a_body_that_does_not_say_its_size_has_the_same_limit(master: Master) -> None:
    async def pieces() -> Any:
        for _ in range(5):
            yield bytes(MIB)

    answer = master.ask("POST", "/workspaces", headers=JSON, content=pieces())
    assert answer.status_code == 413


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Any) -> None:
    with serving(tmp_path, client_timeout_seconds=0.2) as master:

        async def pieces() -> Any:
            yield b'{"name"'
            await asyncio.sleep(30)

        answer = master.ask("POST", "/workspaces", headers=JSON, content=pieces())
        assert answer.status_code == 408


def test_a_fault_of_the_master_tells_nothing_of_its_inside(master: Master) -> None:
    master.app.state.feed = None
    answer = master.ask("GET", "/changes")
    assert answer.status_code == 500
    assert answer.json()["code"] == "internal" and "incident" in answer.json()["message"]
    assert "NoneType" not in answer.text
