"""The owner of a machine's master, over its restarts."""

from __future__ import annotations

import pathlib

from tests.unit.master.api.serving import serving


def test_everything_is_there_after_a_restart(tmp_path: pathlib.Path) -> None:
    with serving(tmp_path) as master:
        owner, cluster_id = master.owner, master.get("/master")["cluster_id"]
        workspace = master.make("POST", "/workspaces", name="vision")
        secret = master.app.state.setup_secret
    with serving(tmp_path) as master:
        assert master.owner == owner
        assert master.get("/master")["cluster_id"] == cluster_id
        assert master.get(f"/workspaces/{workspace['id']}") == workspace
        assert [project["name"] for project in master.get("/projects")] == ["Uncategorized"]
        # Each start that still needs a secret tells a new one, and only that is good.
        body = {"secret": secret, "password": "a quiet lantern"}
        assert master.ask("POST", "/auth/setup", None, json=body).status_code == 401
        body["secret"] = master.app.state.setup_secret
        assert master.ask("POST", "/auth/setup", None, json=body).status_code == 200
    with serving(tmp_path) as master:
        assert master.app.state.setup_secret is None


def test_a_lost_or_revoked_token_of_the_owner_is_made_anew(tmp_path: pathlib.Path) -> None:
    with serving(tmp_path) as master:
        first = master.owner
        token_id = master.get("/tokens")[0]["id"]
        assert master.ask("DELETE", f"/tokens/{token_id}").status_code == 204
        assert master.ask("GET", "/me").status_code == 401
    with serving(tmp_path) as master:
        second = master.owner
        assert second != first and master.get("/me")["admin"]
    master.settings.token_file.unlink()
    with serving(tmp_path) as master:
        assert master.owner not in (first, second) and master.get("/me")["admin"]
        assert master.ask("GET", "/me", second).status_code == 401


def test_an_initial_password_is_taken_once(tmp_path: pathlib.Path) -> None:
    def sign_in(password: str) -> int:
        body = {"username": master.settings.owner_name, "password": password}
        return master.ask("POST", "/auth/login", None, json=body).status_code

    with serving(tmp_path, initial_password="a quiet lantern") as master:
        assert sign_in("a quiet lantern") == 200
        assert "lantern" not in master.ask("GET", "/master/config").text
    with serving(tmp_path, initial_password="another one now") as master:
        assert (sign_in("another one now"), sign_in("a quiet lantern")) == (401, 200)
