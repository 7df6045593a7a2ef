"""What must be true of every route, checked on the running app's own list of them."""

from __future__ import annotations

import hashlib
import pathlib
import sqlite3
from collections.abc import Iterator

import pytest
from fastapi import APIRouter, FastAPI

from determined.master.api.doorkeeper import COOKIE
from determined.master.api.policy import Router, include, policy, require_policies
from tests.unit.master.api.routes import (
    ADMIN,
    ALLOCATION,
    EXPECTED,
    PUBLIC,
    READ,
    READ_OWN,
    READ_TOO,
    STREAMS,
    WRITE,
    Call,
    calls,
)
from tests.unit.master.api.serving import Master, serving


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    """One master for all of these tests: hardly any call changes anything."""
    with serving(tmp_path_factory.mktemp("routes")) as started:
        yield started


def everything(master: Master) -> list[Call]:
    return [*calls(master.app)]


def contents(master: Master) -> str:
    """All that the database holds, but for when tokens were used."""
    digest = hashlib.sha256()
    connection = sqlite3.connect(master.settings.database_url)
    try:
        for line in connection.iterdump():
            digest.update(line.encode())
    finally:
        connection.close()
    return digest.hexdigest()


def test_every_route_is_written_down_with_who_may_call_it(master: Master) -> None:
    there = {call.name for call in everything(master)}
    assert there - EXPECTED.keys() == set(), "write down in routes.py who may call these"
    assert EXPECTED.keys() - there == set(), "these are gone"


def test_nobody_gets_in_without_a_good_credential(master: Master) -> None:
    """Threat X1: 100 % of routes, with no, bad, expired, revoked and ended credentials."""
    revoked = master.token_of(1, "read", "write", "admin")
    token_id = next(token["id"] for token in master.get("/tokens") if token["name"] == "for a test")
    assert master.ask("DELETE", f"/tokens/{token_id}").status_code == 204
    bad: dict[str, dict[str, str]] = {
        "none": {},
        "garbage": {"Authorization": "Bearer nonsense"},
        "empty": {"Authorization": "Bearer "},
        "basic": {"Authorization": "Basic YWRtaW46"},
        "no scheme": {"Authorization": master.owner},
        "long": {"Authorization": f"Bearer {'x' * 5000}"},
        "expired": {"Authorization": f"Bearer {master.token_of(1, 'read', 'write', 'admin', seconds=-1.0)}"},
        "revoked": {"Authorization": f"Bearer {revoked}"},
        "ended": {"Authorization": f"Bearer {master.allocation('job-9.1', state='ended')}"},
        "setup secret": {"Authorization": f"Bearer {master.app.state.setup_secret}"},
        "stored hash": {"Authorization": f"Bearer {hashlib.sha256(master.owner.encode()).hexdigest()}"},
        "cookie": {"Cookie": f"{COOKIE}=nonsense", "Origin": "http://localhost"},
        "in the address": {},
    }
    before = contents(master)
    for call in everything(master):
        if EXPECTED[call.name] == PUBLIC:
            continue
        for kind, headers in bad.items():
            path = f"{call.path}?token={master.owner}&access_token={master.owner}" if "address" in kind else call.path
            # A body that would be refused must not be looked at before who sends it.
            answer = master.ask(call.method, path, None, headers, content=b"{" if call.method != "GET" else None)
            assert answer.status_code == 401, f"{call.name} with {kind}: {answer.status_code}"
            assert answer.headers["www-authenticate"] == "Bearer"
    assert contents(master) == before


def test_who_may_call_what(master: Master) -> None:
    """Threat X19: routes x identities x scopes. What the policy lets through may fail for other reasons."""
    identities = {
        "reader": master.user("reader", scopes=("read",)),
        "writer": master.user("writer", scopes=("read", "write")),
        "only write": master.user("only", scopes=("write",)),
        "admin": master.user("chief", admin=True, scopes=("read", "write", "admin")),
        "admin without the scope": master.user("vice", admin=True, scopes=("read", "write")),
        "this allocation": master.allocation("job-1.1"),
        "another allocation": master.allocation("job-2.1"),
    }
    may = {
        READ: {"reader", "writer", "admin", "admin without the scope"},
        READ_TOO: {"reader", "writer", "admin", "admin without the scope", "this allocation", "another allocation"},
        READ_OWN: {"reader", "writer", "admin", "admin without the scope", "this allocation"},
        WRITE: {"writer", "only write", "admin", "admin without the scope"},
        ADMIN: {"admin"},
        ALLOCATION: {"this allocation"},
        PUBLIC: {*identities},
    }
    for call in everything(master):
        if call.name in STREAMS or call.name in ("POST /auth/logout", "POST /master/stop"):
            continue
        for name, token in identities.items():
            answer = master.ask(call.method, call.path, token, content=b"{" if call.method != "GET" else None)
            allowed = name in may[EXPECTED[call.name]]
            said = f"{call.name} by {name}: {answer.status_code} {answer.text[:200]}"
            assert answer.status_code != 401 or call.name.startswith("POST /auth/"), said
            assert answer.status_code < 500, said
            if allowed:
                assert answer.status_code != 403 or "belongs to somebody else" in answer.text, said
            else:
                assert answer.status_code in (403, 404), said


def test_a_route_without_a_policy_does_not_start() -> None:
    def handler() -> None:
        """Nothing."""

    plain = APIRouter()
    plain.get("/open")(handler)
    undeclared, twice = Router(), Router()
    undeclared.get("/open")(handler)
    twice.get("/open", dependencies=[policy("read"), policy("anyone")])(handler)
    for router in (plain, undeclared, twice):
        with pytest.raises(RuntimeError, match="does not say who may call it"):
            include(FastAPI(openapi_url=None), [router])
    with pytest.raises(RuntimeError, match="does not say who may call it"):
        require_policies(FastAPI())  # the framework's own pages


def test_looking_changes_nothing(master: Master) -> None:
    before = contents(master)
    for call in everything(master):
        if call.method in ("GET", "HEAD") and call.name not in STREAMS:
            assert master.ask(call.method, call.path).status_code < 500
    assert contents(master) == before


FROM_ELSEWHERE = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:9999"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "file://"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Origin": "http://localhost"},
    {},
]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def test_pages_of_other_sites_change_nothing(master: Master) -> None:
    """Threats X14 and X16: every route, seven methods, by a browser that has the cookie."""
    session = master.token_of(1, "read", "write", "admin")
    paths = {call.path for call in everything(master) if call.name not in STREAMS}
    before = contents(master)
    for path in sorted(paths):
        for method in METHODS:
            for headers in FROM_ELSEWHERE:
                sent = {**headers, "Cookie": f"{COOKIE}={session}", "Content-Type": "text/plain"}
                answer = master.ask(method, path, None, sent)
                if method not in ("GET", "HEAD", "OPTIONS"):
                    assert answer.status_code == 403, f"{method} {path} {headers}: {answer.status_code}"
                assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert contents(master) == before


def test_a_page_of_this_master_may_change_things_by_its_cookie(master: Master) -> None:
    session = master.token_of(1, "read", "write", "admin")
    for number, headers in enumerate(({"Origin": "http://localhost"}, {"Sec-Fetch-Site": "same-origin"})):
        sent = {**headers, "Cookie": f"{COOKIE}={session}"}
        answer = master.ask("POST", "/workspaces", None, sent, json={"name": f"by cookie {number}"})
        assert answer.status_code == 201, answer.text


GOOD_HOSTS = ["localhost", "LOCALHOST", "localhost:8080", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8080"]
BAD_HOSTS = [
    *("", "evil.example", "evil.example:8080", "0.0.0.0", "0.0.0.0:8080", "[::]", "[::]:8080", "::1", "localhost."),
    *("localhost.evil.example", "evil.localhost", "localhost:8080:8080", "localhost:", "localhost:x", "localhost:-1"),
    *("127.0.0.1.evil.example", "127.0.0.1.", "127.1", "127.0.0.2", "2130706433", "0x7f000001", "0177.0.0.1"),
    *("127.0.0.1:", "127.0.0.1:123456", "[::1", "::1]", "[::1]x", "[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]x", "[]"),
    *("user@localhost", "localhost@evil.example", "localhost/evil", "localhost#", "localhost?", "localhost%00"),
    *("localhost\\", " localhost", "localhost ", "localhost,evil.example", "localhost;x", "http://localhost"),
    *("xn--lcalhost-s4a", "lоcalhost", "ｌocalhost", "localhos𝗍", "local host", "local\thost", "*", "-", ".", ".."),
    *("169.254.169.254", "metadata.google.internal", "10.0.0.1", "192.168.1.1", "host.docker.internal", "a" * 300),
    *(f"{name}.example" for name in "abcdefghijklmnopqrstuvwxyzabcdefghijklmnop"),
]


def test_the_master_answers_to_its_own_names_only(master: Master) -> None:
    """Threat X15: a name that points here does not open a page of somebody else's to this master."""
    assert len(BAD_HOSTS) + len(GOOD_HOSTS) >= 100
    for host in GOOD_HOSTS:
        assert master.ask("GET", "/me", headers={"Host": host}).status_code == 200, host
    for host in BAD_HOSTS:
        headers: list[tuple[bytes, bytes]] = [
            (b"host", host.encode()),
            (b"authorization", b"Bearer " + master.owner.encode()),
        ]
        answer = master.ask_raw("GET", "/me", headers)
        assert answer == 403, host
    for call in everything(master):
        if call.name not in STREAMS:
            assert master.ask(call.method, call.path, headers={"Host": "evil.example"}).status_code == 403, call.name
    for hosts in ([], [b"localhost", b"localhost"], [b"localhost", b"evil.example"]):
        assert master.ask_raw("GET", "/health", [(b"host", host) for host in hosts]) == 403


def test_a_configured_name_is_answered_to(tmp_path: pathlib.Path) -> None:
    with serving(tmp_path, hosts=["train.example"]) as master:
        assert master.ask("GET", "/me", headers={"Host": "train.example:443"}).status_code == 200
        assert master.ask("GET", "/me", headers={"Host": "other.example"}).status_code == 403


def test_ids_that_are_not_there_are_not_found(master: Master) -> None:
    """Whatever stands in a path, the answer is one of 4xx, and never tells of files."""
    tricks = [
        *(
            "0",
            "-1",
            "9999999",
            "9" * 30,
            "1e3",
            "0x1",
            "١",
            "null",
            "true",
            "1.0",
            "%00",
            "..",
            "%2e%2e",
            "..%2f..%2fx",
        ),
        *("..%5c", "%252e%252e%252f", "%c0%ae%c0%ae%c0%af", "/etc/passwd", "//x", ";x", "a" * 3000, "'--", "${x}", "*"),
    ]
    for call in everything(master):
        if call.path == call.name.partition(" ")[2] or call.name in STREAMS:
            continue
        template = call.name.partition(" ")[2]
        for trick in tricks:
            path = "".join(trick if part.startswith("{") else part for part in _parts(template))
            answer = master.ask(call.method, path, content=b"{}" if call.method != "GET" else None)
            said = f"{call.method} {path[:100]}: {answer.status_code} {answer.text[:200]}"
            assert answer.status_code < 500 and "root:" not in answer.text, said


def _parts(template: str) -> list[str]:
    found, rest = [], template
    while "{" in rest:
        before, _, rest = rest.partition("{")
        name, _, rest = rest.partition("}")
        found += [before, "{" + name]
    return [*found, rest]
