"""Figure A1: whatever is sent to any route, the master does not fail, and answers what it says it answers."""

from __future__ import annotations

import collections
import json
import pathlib
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis

from tests.unit.master.api.scenes import CONFIG, Run
from tests.unit.master.api.serving import Master, serving

# A release asks for a million; this is what fits into a run of the tests.
CASES = 11_000
SECONDS = 60.0
ENDLESS = {("GET", "/api/v1/changes"), ("POST", "/api/v1/master/stop"), ("POST", "/api/v1/auth/logout")}
# Guessing at passwords makes the master slow on purpose, for everybody at that address.
GUESSING = {("POST", "/api/v1/auth/login"), ("POST", "/api/v1/auth/setup")}


@schemathesis.serializer("application/gzip")
def _bytes(context: Any, value: Any) -> bytes:
    """Archives are sent as they are."""
    return value if isinstance(value, bytes) else str(value).encode()


@pytest.fixture
def master(tmp_path: pathlib.Path) -> Iterator[Master]:
    with serving(tmp_path) as started:
        yield started


def furnish(master: Master) -> tuple[dict[str, Any], str]:
    """One of everything, so that ids lead somewhere, and the token of an allocation."""
    master.make("POST", "/experiments", config=CONFIG, paused=True)
    master.make("POST", "/tasks", kind="command", arguments=["true"], paused=True)
    run = Run(master, config={"searcher": {"name": "single", "metric": "loss"}})
    run.metrics(1, loss=0.5)
    uuid = run.checkpoint(1, {"w": b"x"})
    master.make("POST", "/models", name="m")
    master.make("POST", "/models/m/versions", checkpoint_uuid=uuid)
    master.make("PUT", "/templates/t", config="max_restarts: 1")
    ids: dict[str, Any] = {
        "id": [1, 2, "1", "command-1", "local"],
        "uuid": [uuid, uuid[:6]],
        "path": ["w", "manifest.json"],
        "model": ["m", "1"],
        "version": ["1"],
        "name": ["t"],
        "job_id": ["experiment-1", "command-1"],
        "allocation_id": [run.run.allocation.id],
    }
    return ids, run.token


class Fuzzer:
    """Sends cases, and notes what came back."""

    def __init__(self, master: Master, there: dict[str, Any], token: str) -> None:
        self.master = master
        self.there = there
        self.token = token
        self.faults: list[str] = []
        self.statuses: collections.Counter[int] = collections.Counter()
        self.seconds: list[float] = []

    def fuzz(self, operation: Any, cases: int, until: float) -> None:
        """So many cases of a route, or as many as there is time for."""

        def send(case: Any) -> None:
            if time.monotonic() < until and len(self.faults) < 20:
                self.send(case)

        hypothesis.settings(
            max_examples=cases,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=[*hypothesis.HealthCheck],
        )(hypothesis.given(case=operation.as_strategy())(send))()

    def send(self, case: Any) -> None:
        method, path = case.method.upper(), self.path(case)
        mine = "/allocations/" in path and method != "GET"
        begun = time.perf_counter()
        answer = self.master.ask(
            method,
            path.removeprefix("/api/v1"),
            self.token if mine else "owner",
            headers=_sendable(case.headers),
            params=_parameters(case.query),
            **_body(case),
        )
        self.seconds.append(time.perf_counter() - begun)
        self.statuses[answer.status_code] += 1
        said = f"{method} {path} {case.query} {str(case.body)[:300]}: {answer.status_code} {answer.text[:300]}"
        if answer.status_code >= 500:
            self.faults.append(said)
        elif answer.status_code >= 400:
            # There is none where there can be none.
            said_why = method == "HEAD" or answer.status_code == 416 or answer.json().get("message")
            if not said_why:
                self.faults.append(f"{said} is no explanation")
        elif str(answer.status_code) not in case.operation.definition.raw["responses"]:
            self.faults.append(f"{said} is not among the answers that are described")

    def path(self, case: Any) -> str:
        """Where a case goes; every other one to something that is there."""
        where = dict(case.path_parameters or {})
        count = sum(self.statuses.values())
        # Not the token that all of this is done with.
        if count % 2 and not case.operation.path.endswith("/tokens/{id}"):
            where.update(
                {name: self.there[name][count // 2 % len(self.there[name])] for name in where if name in self.there}
            )
        path: str = case.operation.path
        for name, value in where.items():
            path = path.replace("{" + name + "}", urllib.parse.quote(str(value), safe="", errors="replace"))
        return path


@pytest.mark.slow
def test_nothing_that_is_sent_makes_the_master_fail(master: Master) -> None:
    fuzzer = Fuzzer(master, *furnish(master))
    schema = schemathesis.openapi.from_dict(master.app.openapi())
    operations: list[Any] = [result.ok() for result in schema.get_all_operations()]  # type: ignore[union-attr]
    chosen = [one for one in operations if (one.method.upper(), one.path) not in ENDLESS | GUESSING]
    # What ends things comes last.
    chosen.sort(key=lambda one: (one.method.upper() == "DELETE", one.path.endswith(("/exit", "/{operation}"))))
    end = time.monotonic() + SECONDS
    for number, operation in enumerate(chosen):
        now = time.monotonic()
        fuzzer.fuzz(operation, CASES // len(chosen) + 1, now + (end - now) / (len(chosen) - number))
    total = sum(fuzzer.statuses.values())
    p99 = sorted(fuzzer.seconds)[int(len(fuzzer.seconds) * 0.99)]
    print(f"{total} cases on {len(chosen)} routes: {dict(fuzzer.statuses)}; p99 {p99 * 1000:.0f} ms")
    assert not fuzzer.faults, "\n".join(fuzzer.faults)
    assert total >= 1000 and fuzzer.statuses[401] < total / 20 and fuzzer.statuses[200] > total / 20


def _sendable(headers: Any) -> dict[str, str]:
    found = {}
    for name, value in dict(headers or {}).items():
        text = str(value)
        if (
            text.isascii()
            and text.isprintable()
            and str(name).isascii()
            and name.lower() not in ("host", "content-length")
        ):
            found[str(name)] = text
    return found


def _parameters(query: Any) -> list[tuple[str, str]]:
    pairs = []
    for name, value in dict(query or {}).items():
        if name == "follow":
            continue  # ends when the trial does
        for one in value if isinstance(value, list) else [value]:
            pairs.append((_text(name), _text(one)))
    return pairs


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()


def _body(case: Any) -> dict[str, Any]:
    if isinstance(case.body, bytes):
        return {"content": case.body}
    if isinstance(case.body, schemathesis.core.NotSet):
        return {}
    return {"content": json.dumps(case.body).encode()}
