"""Users, signing in, and what ends it."""

from __future__ import annotations

import stat

import pytest

from tests.unit.master.api.serving import Master

PASSWORD = "a quiet lantern"


def sign_in(master: Master, username: str, password: str = PASSWORD) -> str:
    answer = master.ask("POST", "/auth/login", None, json={"username": username, "password": password})
    assert answer.status_code == 200, answer.text
    token: str = answer.json()["token"]
    return token


def is_good(master: Master, token: str) -> bool:
    answer = master.ask("GET", "/me", token)
    assert answer.status_code in (200, 401)
    return answer.status_code == 200


def test_the_first_start_makes_an_owner_with_a_token_that_only_they_can_read(master: Master) -> None:
    me = master.get("/me")
    assert me["admin"] and me["username"] == master.settings.owner_name
    assert stat.S_IMODE(master.settings.token_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(master.settings.state_dir.stat().st_mode) == 0o700


def test_nobody_can_sign_in_before_a_password_was_set(master: Master) -> None:
    for username in (master.settings.owner_name, "admin", "determined", "root", ""):
        for password in ("", "admin", "determined", "password", master.settings.owner_name):
            answer = master.ask("POST", "/auth/login", None, json={"username": username, "password": password})
            assert answer.status_code in (401, 429)


def test_the_setup_secret_sets_the_owners_password_once(master: Master) -> None:
    secret = master.app.state.setup_secret
    wrong = master.ask("POST", "/auth/setup", None, json={"secret": secret + "x", "password": PASSWORD})
    weak = master.ask("POST", "/auth/setup", None, json={"secret": secret, "password": "password"})
    assert (wrong.status_code, weak.status_code) == (401, 400)
    first = master.ask("POST", "/auth/setup", None, json={"secret": secret, "password": PASSWORD})
    assert first.status_code == 200 and is_good(master, first.json()["token"])
    again = master.ask("POST", "/auth/setup", None, json={"secret": secret, "password": "another good one"})
    assert again.status_code == 401
    assert is_good(master, sign_in(master, master.settings.owner_name))
    assert not is_good(master, secret)


def test_sessions_and_tokens_end_with_the_password_but_the_one_that_changed_it(master: Master) -> None:
    ada = master.make("POST", "/users", username="ada", password=PASSWORD)
    first, second = sign_in(master, "ada"), sign_in(master, "ada")
    program = master.make("POST", "/tokens", first, name="nightly")["token"]
    assert is_good(master, first) and is_good(master, second)
    body = {"current": "wrong one", "password": "a new lantern"}
    assert master.ask("POST", f"/users/{ada['id']}/password", first, json=body).status_code == 403
    body["current"] = PASSWORD
    assert master.ask("POST", f"/users/{ada['id']}/password", first, json=body).status_code == 200
    assert (is_good(master, first), is_good(master, second), is_good(master, program)) == (True, False, False)
    assert master.ask("POST", "/auth/login", None, json={"username": "ada", "password": PASSWORD}).status_code == 401


@pytest.mark.parametrize("how", ["logout", "revoke", "deactivate", "reset"])
def test_a_session_ends_at_once(master: Master, how: str) -> None:
    ada = master.make("POST", "/users", username="ada", password=PASSWORD)
    session = sign_in(master, "ada")
    assert is_good(master, session)  # and is remembered
    if how == "logout":
        assert master.ask("POST", "/auth/logout", session).status_code == 204
    elif how == "revoke":
        token_id = master.get("/tokens", session)[0]["id"]
        assert master.ask("DELETE", f"/tokens/{token_id}").status_code == 204
    elif how == "deactivate":
        master.make("PATCH", f"/users/{ada['id']}", active=False)
    else:
        master.make("POST", f"/users/{ada['id']}/password", password="a new lantern")
    assert not is_good(master, session)
    if how == "deactivate":
        answer = master.ask("POST", "/auth/login", None, json={"username": "ada", "password": PASSWORD})
        assert answer.status_code == 401
        program = master.user("bob")
        bob = master.get("/me", program)["id"]
        master.make("PATCH", f"/users/{bob}", active=False)
        assert not is_good(master, program)
        # For good: who may sign in again gets new ones.
        master.make("PATCH", f"/users/{bob}", active=True)
        assert not is_good(master, program)


def test_the_owners_token_of_this_machine_outlives_their_password(master: Master) -> None:
    me = master.get("/me")["id"]
    other = master.make("POST", "/tokens", name="elsewhere")["token"]
    assert is_good(master, other)
    for password in (PASSWORD, "a new lantern"):
        session = sign_in(master, master.settings.owner_name) if password != PASSWORD else None
        body = {"password": password, "current": PASSWORD}
        assert master.ask("POST", f"/users/{me}/password", session or master.owner, json=body).status_code == 200
        assert is_good(master, master.owner) and not is_good(master, other)


def test_a_token_may_do_no_more_than_its_maker_and_its_scopes(master: Master) -> None:
    ada = master.user("ada")
    reading = master.make("POST", "/tokens", ada, scopes=["read"])["token"]
    assert is_good(master, reading)
    assert master.ask("POST", "/workspaces", reading, json={"name": "mine"}).status_code == 403
    assert master.ask("POST", "/tokens", reading, json={"scopes": ["read"]}).status_code == 403
    assert master.ask("POST", "/tokens", ada, json={"scopes": ["admin"]}).status_code == 403
    assert master.ask("POST", "/tokens", ada, json={"user_id": 1}).status_code == 403
    # An administrator's token without the scope is not an administrator's.
    plain = master.make("POST", "/tokens", scopes=["read", "write"])["token"]
    assert master.ask("POST", "/users", plain, json={"username": "eve"}).status_code == 403


def test_tokens_are_ones_own_to_see_and_to_end(master: Master) -> None:
    ada, bob = master.user("ada"), master.user("bob")
    (mine,) = master.get("/tokens", ada)
    assert master.ask("DELETE", f"/tokens/{mine['id']}", bob).status_code == 404
    assert [token["id"] for token in master.get("/tokens", bob)] != [mine["id"]]
    assert master.ask("GET", "/tokens?everyone=true", bob).status_code == 403
    assert len(master.get("/tokens?everyone=true")) == 3
    assert all(token["token"] is None for token in master.get("/tokens?everyone=true"))


def test_an_expired_token_is_refused(master: Master) -> None:
    expired = master.token_of(1, "read", seconds=-1.0)
    assert not is_good(master, expired)


def test_the_last_administrator_stays_one(master: Master) -> None:
    assert master.ask("PATCH", "/users/1", json={"admin": False}).status_code == 409
    assert master.ask("PATCH", "/users/1", json={"active": False}).status_code == 409
    master.make("POST", "/users", username="ada", admin=True)
    assert master.make("PATCH", "/users/1", admin=False)["admin"] is False


def test_people_change_their_own_shown_name_and_nothing_else(master: Master) -> None:
    token = master.user("ada")
    ada = master.get("/me", token)["id"]
    assert master.make("PATCH", f"/users/{ada}", token, display_name="Ada L.")["display_name"] == "Ada L."
    for body in ({"admin": True}, {"active": False}, {"username": "root"}):
        assert master.ask("PATCH", f"/users/{ada}", token, json=body).status_code == 403
    assert master.ask("PATCH", "/users/1", token, json={"display_name": "x"}).status_code == 403
    assert master.ask("POST", "/users/1/password", token, json={"password": PASSWORD}).status_code == 403


@pytest.mark.parametrize("username", ["", "a b", "../x", "-x", "a" * 65, "x\n", "é"])
def test_a_username_is_plain(master: Master, username: str) -> None:
    assert master.ask("POST", "/users", json={"username": username}).status_code == 400


def test_a_username_is_taken_once(master: Master) -> None:
    master.make("POST", "/users", username="ada")
    assert master.ask("POST", "/users", json={"username": "ada"}).status_code == 409


def test_a_browser_gets_a_cookie_that_no_script_can_read(master: Master) -> None:
    master.make("POST", "/users", username="ada", password=PASSWORD)
    body = {"username": "ada", "password": PASSWORD, "cookie": True}
    answer = master.ask("POST", "/auth/login", None, json=body)
    cookie = answer.headers["set-cookie"]
    assert answer.json()["token"] == ""
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Path=/", "resolute_session=res_"))


def test_the_token_of_an_allocation_ends_with_it(master: Master) -> None:
    token = master.allocation("job-1.1")
    ended = master.allocation("job-2.1", state="ended")
    path = f"/contexts/{'0' * 64}"
    assert master.ask("HEAD", path, token).status_code == 404
    assert master.ask("HEAD", path, ended).status_code == 401
    assert master.ask("GET", "/users", token).status_code == 403
    assert master.ask("GET", "/me", token).status_code == 403
