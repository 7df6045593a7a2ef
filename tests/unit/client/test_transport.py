"""The session: what it sends, what it makes of answers, and what it asks again."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterator

import pytest

from determined import errors
from determined.client import transport
from determined.client.transport import Session
from tests.unit.client.server import Reply, Server, serving


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(transport, "_PAUSES", (0.0,))
    yield


def problem(code: str, message: str = "because", status: int = 400, **more: object) -> Reply:
    return Reply(status, json.dumps({"code": code, "message": message, **more}).encode())


def test_a_connection_is_used_again() -> None:
    with serving() as server:
        session = Session(server.url, "secret")
        for _ in range(5):
            session.get("/me")
        session.close()
    assert server.connections == 1
    assert server.asked[0].path == "/api/v1/me"
    assert server.asked[0].headers["authorization"] == "Bearer secret"


def test_the_token_is_in_no_address() -> None:
    with serving() as server:
        session = Session(server.url, "secret")
        session.post("/x", {"a": 1}, {"q": "v"})
        session.close()
    assert "secret" not in server.asked[0].path


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("not_found", 404, errors.NotFound),
        ("refused", 409, errors.Refused),
        ("stale_run_epoch", 409, errors.StaleRunEpoch),
        ("unauthenticated", 401, errors.Unauthenticated),
        ("forbidden", 403, errors.Forbidden),
        ("invalid_configuration", 422, errors.InvalidConfigurationException),
        ("checkpoint_not_found", 404, errors.CheckpointNotFound),
        ("invalid_data_type", 422, errors.InvalidDataTypeException),
        ("bad_request", 400, errors.BadRequest),
        ("something_new", 418, errors.DeterminedError),
    ],
)
def test_an_error_is_the_class_it_was_on_the_other_side(code: str, status: int, kind: type[Exception]) -> None:
    with serving(problem(code, "because", status, details=[{"line": 3}])) as server:
        session = Session(server.url)
        with pytest.raises(kind, match=r"^because$") as caught:
            session.get("/x")
        session.close()
    assert type(caught.value) is kind
    assert caught.value.code == code  # type: ignore[attr-defined]
    assert caught.value.details == [{"line": 3}]  # type: ignore[attr-defined]


def test_an_error_without_an_explanation_is_told_by_its_status() -> None:
    with serving(Reply(404, b"<html>"), Reply(500, b"")) as server:
        session = Session(server.url)
        with pytest.raises(errors.NotFound, match="status 404"):
            session.get("/x")
        with pytest.raises(errors.DeterminedError, match="status 500"):
            session.get("/x")
        session.close()


def test_a_call_that_changes_something_keeps_its_key_when_it_is_asked_again() -> None:
    with serving(Reply(cut=True), Reply(503), Reply(201, b'{"id": 7}')) as server:
        session = Session(server.url)
        assert session.post("/experiments", {"config": "x"}) == {"id": 7}
        session.close()
    keys = {asked.headers["idempotency-key"] for asked in server.asked}
    assert len(server.asked) == 3 and len(keys) == 1 and len(keys.pop()) >= 16


def test_two_calls_have_two_keys_and_looking_has_none() -> None:
    with serving() as server:
        session = Session(server.url)
        session.post("/x")
        session.post("/x")
        session.get("/x")
        session.call("POST", "/x", key="of-mine-entirely")
        session.close()
    keys = [asked.headers.get("idempotency-key") for asked in server.asked]
    assert keys[0] != keys[1] and keys[2] is None and keys[3] == "of-mine-entirely"


def test_what_the_other_side_closed_meanwhile_is_asked_on_a_new_connection() -> None:
    with serving(Reply(), Reply(cut=True), Reply(body=b"[1]")) as server:
        session = Session(server.url, attempts=1)
        session.get("/x")
        assert session.get("/x") == [1]
        session.close()


def test_nobody_there_is_told_after_the_last_attempt() -> None:
    with serving() as server:
        url = server.url
    session = Session(url, attempts=2)
    with pytest.raises(errors.MasterUnreachable, match=r"nothing listens there.*DET_MASTER"):
        session.get("/x")


def test_one_that_serves_elsewhere_by_now_is_found() -> None:
    with serving() as server:
        gone = server.url
    with serving(then=Reply(body=b"[1]")) as server:
        session = Session(gone, "token", attempts=1, moved=lambda: server.url)
        assert session.get("/x") == [1]
        assert session.url == server.url and server.asked[-1].headers["authorization"] == "Bearer token"
        session.close()


def test_a_stranger_at_the_old_address_is_not_taken_for_it() -> None:
    stranger = Reply(404, b"<html>")
    with serving(then=stranger) as other, serving(then=Reply(body=b"[1]")) as server:
        session = Session(other.url, moved=lambda: server.url)
        assert session.get("/x") == [1] and len(other.asked) == 1
        session.close()
        session = Session(other.url, moved=lambda: None)
        with pytest.raises(errors.MasterUnreachable, match="what answers there, by 404, is none"):
            session.get("/x")
        session.close()
    with serving(then=problem("not_found", status=404)) as server:
        session = Session(server.url, moved=lambda: "http://127.0.0.1:1")
        with pytest.raises(errors.NotFound, match="because"):
            session.get("/x")
        with pytest.raises(errors.NotFound):
            session.call("HEAD", "/x")  # to which nobody says more than a status
        session.close()


@pytest.mark.parametrize("known", [[None], ["same"], ["http://127.0.0.1:1", "http://127.0.0.1:2"]])
def test_one_that_is_nowhere_is_not_looked_for_for_ever(known: list[str | None]) -> None:
    with serving() as server:
        gone = server.url
    places = itertools.cycle(gone if place == "same" else place for place in known)
    with pytest.raises(errors.MasterUnreachable):
        Session(gone, attempts=2, moved=lambda: next(places)).get("/x")


def test_one_that_does_not_answer_is_told() -> None:
    import threading

    never = threading.Event()

    def wait(asked: object) -> Reply:
        never.wait(5)
        return Reply()

    server = Server(wait)
    try:
        with pytest.raises(errors.MasterUnreachable, match="did not answer in time"):
            Session(server.url, timeout=0.1, attempts=1).get("/x")
    finally:
        never.set()
        server.close()


@pytest.mark.parametrize("url", ["", "ftp://here", "http://", "http://a:b@host", "http://host:port", "http://h/?q=1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(errors.BadRequest, match="no address of a master"):
        Session(url)


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("https://host/", "https://host"),
        ("http://h:1/det/", "http://h:1/det"),
    ],
)
def test_an_address_may_be_short(given: str, whole: str) -> None:
    assert Session(given).url == whole


def test_a_master_below_a_path() -> None:
    with serving() as server:
        session = Session(f"{server.url}/det/")
        session.get("/x", {"a": [1, 2], "b": None, "c": True, "d": "ü &"})
        session.close()
    assert server.asked[0].path == "/det/api/v1/x?a=1&a=2&c=true&d=%C3%BC+%26"


def test_zipped_answers_are_unzipped_and_numbers_that_are_none_survive() -> None:
    body = b'{"nan": NaN, "inf": -Infinity, "zero": -0.0, "big": 9223372036854775808, "small": 1e-310}'
    with serving(Reply(body=gzip.compress(body), headers={"Content-Encoding": "gzip"})) as server:
        session = Session(server.url)
        found = session.get("/x")
        session.close()
    assert math.isnan(found["nan"]) and found["inf"] == -math.inf and found["big"] == 2**63
    assert math.copysign(1, found["zero"]) == -1 and found["small"] == 1e-310


def test_a_stream_is_read_line_by_line() -> None:
    with serving(Reply(body=b"one\ntwo\r\n\nlast")) as server:
        session = Session(server.url)
        with session.stream("/logs", query={"follow": True}) as stream:
            assert list(stream.lines()) == [b"one", b"two", b"", b"last"]
        session.close()


def test_a_stream_that_is_refused_is_an_error() -> None:
    with serving(problem("not_found", "no such trial", 404)) as server:
        session = Session(server.url)
        with pytest.raises(errors.NotFound, match="no such trial"), session.stream("/logs"):
            pass
        session.close()


def test_importing_it_is_cheap() -> None:
    code = "import determined.client.transport, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pydantic", "httpx", "yaml", "numpy", "torch", "asyncio", "orjson"}
    assert not heavy & {name.split(".")[0] for name in done.stdout.split()}


def test_pieces_of_a_path_cannot_lead_elsewhere() -> None:
    assert transport.quoted("../a b/c?d#e%2e") == "..%2Fa%20b%2Fc%3Fd%23e%252e"
