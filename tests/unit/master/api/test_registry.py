"""The model registry and templates."""

from __future__ import annotations

from typing import Any

import pytest

from determined.master.store.tables import checkpoints
from tests.unit.master.api.serving import Master

FIRST, SECOND = "11111111-0000-4000-8000-000000000000", "22222222-0000-4000-8000-000000000000"


def checkpoint(master: Master, uuid: str, state: str = "completed") -> None:
    values = {"uuid": uuid, "state": state, "resources": {}, "metadata": {}, "storage": {}}

    def insert(tx: Any) -> None:
        tx.execute(checkpoints.insert(), {**values, "reported_at": tx.now})

    master.write(insert)


def status(master: Master, method: str, path: str, **body: object) -> int:
    return master.ask(method, path, json=body).status_code


def test_a_model_is_known_by_name_and_by_id(master: Master) -> None:
    made = master.make("POST", "/models", name="digits", description="small", labels=["a"], metadata={"x": 1})
    assert master.get("/models/digits") == master.get(f"/models/{made['id']}") == made
    master.make("PATCH", "/models/digits", name="numbers", labels=["b", "c"], metadata={"y": [1, 2]})
    found = master.get("/models/numbers")
    assert (found["labels"], found["metadata"], found["description"]) == (["b", "c"], {"y": [1, 2]}, "small")
    assert found["updated_at"] >= made["updated_at"]
    for name in ("numbers", "7", "a/b", "", " x", "..", "x" * 201, "a\tb"):
        assert status(master, "POST", "/models", name=name) in (400, 409), name


def test_models_are_listed_by_what_is_known_of_them(master: Master) -> None:
    workspace = master.make("POST", "/workspaces", name="vision")["id"]
    master.make("POST", "/models", name="Digits", description="Small", labels=["a", "b"])
    master.make("POST", "/models", name="letters", labels=["a"], workspace_id=workspace)
    master.make("POST", "/models/letters/archive")
    names = {
        query: [model["name"] for model in master.get(f"/models?{query}")]
        for query in ("", "name=dig", "description=SMALL", "label=a", "label=a&label=b", "archived=true")
    }
    assert names[""] == names["label=a"] == ["Digits", "letters"]
    assert names["name=dig"] == names["description=SMALL"] == names["label=a&label=b"] == ["Digits"]
    assert names["archived=true"] == ["letters"]
    assert [model["name"] for model in master.get(f"/models?workspace_id={workspace}")] == ["letters"]


def test_versions_are_numbered_once_and_for_all(master: Master) -> None:
    checkpoint(master, FIRST)
    checkpoint(master, SECOND)
    master.make("POST", "/models", name="m")
    made = [
        master.make("POST", "/models/m/versions", checkpoint_uuid=uuid, name=name)
        for uuid, name in ((FIRST, "one"), (SECOND, "two"), (FIRST, "three"))
    ]
    assert [version["version"] for version in made] == [1, 2, 3]
    assert [version["version"] for version in master.get("/models/m/versions")] == [3, 2, 1]
    assert master.get("/models/m")["version_count"] == 3
    assert master.ask("DELETE", "/models/m/versions/3").status_code == 204
    assert master.make("POST", "/models/m/versions", checkpoint_uuid=SECOND)["version"] == 4
    changed = master.make("PATCH", "/models/m/versions/2", comment="good", metadata={"f1": 0.9}, labels=["x"])
    assert (changed["comment"], changed["metadata"], changed["checkpoint_uuid"]) == ("good", {"f1": 0.9}, SECOND)
    assert status(master, "PATCH", "/models/m/versions/2", checkpoint_uuid=FIRST) == 422
    assert master.ask("GET", "/models/m/versions/3").status_code == 404
    assert master.ask("DELETE", "/models/m").status_code == 204
    assert master.ask("GET", "/models/m").status_code == 404


@pytest.mark.parametrize("state", ["deleting", "deleted", "partially_deleted"])
def test_only_a_completed_checkpoint_is_registered(master: Master, state: str) -> None:
    master.make("POST", "/models", name="m")
    checkpoint(master, FIRST, state)
    assert status(master, "POST", "/models/m/versions", checkpoint_uuid=FIRST) == 409
    assert status(master, "POST", "/models/m/versions", checkpoint_uuid=SECOND) == 404


def test_an_archived_model_is_left_as_it_is(master: Master) -> None:
    checkpoint(master, FIRST)
    master.make("POST", "/models", name="m")
    master.make("POST", "/models/m/versions", checkpoint_uuid=FIRST)
    master.make("POST", "/models/m/archive")
    assert status(master, "PATCH", "/models/m", notes="x") == 409
    assert status(master, "POST", "/models/m/versions", checkpoint_uuid=FIRST) == 409
    assert status(master, "PATCH", "/models/m/versions/1", notes="x") == 409
    assert master.ask("DELETE", "/models/m/versions/1").status_code == 409
    master.make("POST", "/models/m/unarchive")
    assert status(master, "PATCH", "/models/m", notes="x") == 200


def test_templates_are_made_replaced_and_removed(master: Master) -> None:
    made = master.make("PUT", "/templates/gpu", config="resources:\n  slots_per_trial: 2\n")
    assert made["config"] == {"resources": {"slots_per_trial": 2}}
    master.make("PUT", "/templates/gpu", config="max_restarts: 1")
    assert master.get("/templates/gpu")["config"] == {"max_restarts": 1}
    assert [found["name"] for found in master.get("/templates")] == ["gpu"]
    assert master.ask("DELETE", "/templates/gpu").status_code == 204
    assert master.ask("GET", "/templates/gpu").status_code == 404


@pytest.mark.parametrize("config", ["", "[1]", "x", "a: 1\na: 2", "a: !!python/object:os.system {}", "a: [", "&a [*a]"])
def test_a_template_is_a_map(master: Master, config: str) -> None:
    answer = master.ask("PUT", "/templates/x", json={"config": config})
    assert answer.status_code == 422 and answer.json()["code"] == "invalid_configuration"
    for name in ("..", "%2e%2e", "a%2fb", "-x", "x" * 200):
        assert status(master, "PUT", f"/templates/{name}", config="a: 1") in (404, 405, 422)
