"""Workspaces and projects."""

from __future__ import annotations

import pytest

from tests.unit.master.api.serving import Master


def status(master: Master, method: str, path: str, token: str = "owner", **body: object) -> int:
    return master.ask(method, path, token, json=body).status_code


def test_there_is_always_a_place_for_experiments(master: Master) -> None:
    (workspace,) = master.get("/workspaces")
    (project,) = master.get("/projects")
    assert (workspace["name"], workspace["immutable"], workspace["project_count"]) == ("Uncategorized", True, 1)
    assert (project["name"], project["workspace_name"], project["immutable"]) == ("Uncategorized",) * 2 + (True,)
    for thing in ("workspaces", "projects"):
        assert status(master, "PATCH", f"/{thing}/1", name="other") == 409
        assert status(master, "POST", f"/{thing}/1/archive") == 409
        assert master.ask("DELETE", f"/{thing}/1").status_code == 409


def test_projects_are_made_changed_moved_and_removed(master: Master) -> None:
    first = master.make("POST", "/workspaces", name=" vision ")
    second = master.make("POST", "/workspaces", name="text")
    assert first["name"] == "vision"
    project = master.make("POST", "/projects", workspace_id=first["id"], name="digits", description="small")
    path = f"/projects/{project['id']}"
    changed = master.make("PATCH", path, notes="# Notes", name="numbers", workspace_id=second["id"])
    assert (changed["notes"], changed["name"], changed["workspace_name"]) == ("# Notes", "numbers", "text")
    assert changed["description"] == "small"
    assert [found["id"] for found in master.get(f"/projects?workspace_id={second['id']}")] == [project["id"]]
    assert master.get(f"/projects?workspace_id={first['id']}") == []
    assert master.ask("DELETE", f"/workspaces/{second['id']}").status_code == 409
    assert master.ask("DELETE", path).status_code == 204
    assert master.ask("GET", path).status_code == 404
    assert master.ask("DELETE", f"/workspaces/{second['id']}").status_code == 204


def test_names_are_taken_once_in_their_place(master: Master) -> None:
    first, second = (master.make("POST", "/workspaces", name=name)["id"] for name in ("a", "b"))
    assert status(master, "POST", "/workspaces", name="a") == 409
    assert status(master, "PATCH", f"/workspaces/{second}", name="a") == 409
    master.make("POST", "/projects", workspace_id=first, name="p")
    other = master.make("POST", "/projects", workspace_id=second, name="p")["id"]
    assert status(master, "POST", "/projects", workspace_id=first, name="p") == 409
    assert status(master, "PATCH", f"/projects/{other}", workspace_id=first) == 409
    for wrong in ("", "   ", "x" * 201, "a\nb", "a\x00b"):
        assert status(master, "POST", "/workspaces", name=wrong) == 400
        assert status(master, "POST", "/projects", workspace_id=first, name=wrong) == 400


def test_what_is_put_away_takes_nothing(master: Master) -> None:
    workspace = master.make("POST", "/workspaces", name="old")["id"]
    project = master.make("POST", "/projects", workspace_id=workspace, name="p")["id"]
    assert master.make("POST", f"/projects/{project}/archive")["archived"]
    assert status(master, "PATCH", f"/projects/{project}", name="q") == 409
    assert not master.make("POST", f"/projects/{project}/unarchive")["archived"]
    master.make("POST", f"/workspaces/{workspace}/archive")
    assert status(master, "POST", "/projects", workspace_id=workspace, name="q") == 409
    assert status(master, "PATCH", f"/workspaces/{workspace}", name="q") == 409


@pytest.mark.parametrize("thing", ["workspaces", "projects", "models", "templates"])
def test_what_belongs_to_somebody_is_theirs_to_change(master: Master, thing: str) -> None:
    ada, bob = master.user("ada"), master.user("bob")
    body: dict[str, object] = {"name": "ada's"}
    if thing == "projects":
        body["workspace_id"] = 1
    if thing == "templates":
        master.make("PUT", "/templates/adas", ada, config="name: x")
        path = "/templates/adas"
        assert status(master, "PUT", path, bob, config="name: y") == 403
    else:
        path = f"/{thing}/{master.make('POST', f'/{thing}', ada, **body)['id']}"
        for method, below in (("PATCH", ""), ("POST", "/archive"), ("POST", "/unarchive")):
            assert status(master, method, f"{path}{below}", bob) == 403
    assert master.ask("DELETE", path, bob).status_code == 403
    assert master.ask("GET", path, bob).status_code == 200
    assert master.ask("DELETE", path, ada).status_code == 204
