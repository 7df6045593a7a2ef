"""Experiments over the API: submitted, refused with every mistake, listed without gaps, changed and ended."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import pytest

from determined.master.lifecycle import experiments as lifecycle
from determined.master.operations import Operation
from determined.master.store import experiments as rows
from tests.unit.master.api.scenes import CONFIG, Run, crowd, many, submit
from tests.unit.master.api.serving import Master


def test_what_was_submitted_is_shown(master: Master) -> None:
    found = submit(master)
    assert (found["id"], found["name"], found["state"], found["trial_count"]) == (1, "digits", "PAUSED", 1)
    assert (found["project_name"], found["workspace_name"]) == ("Uncategorized", "Uncategorized")
    assert found["config"]["searcher"]["max_length"] == {"batches": 10}
    assert master.get("/experiments/1") == found
    trial = master.get("/experiments/1/trials")["items"][0]
    assert trial["hparams"] == {"lr": 0.1} and trial["state"] == "PAUSED"
    assert master.get("/trials/1") == trial


def test_every_mistake_is_told_at_once_with_its_line(master: Master) -> None:
    wrong = "name: 3\nentrypoint: x\nresources:\n  slots: two\n  slots_per_trail: 1\nsearcher:\n  name: singel\n"
    answer = master.ask("POST", "/experiments", json={"config": wrong, "file": "const.yaml"})
    problem = answer.json()
    assert answer.status_code == 422 and problem["code"] == "invalid_configuration"
    by_path = {detail["path"]: detail for detail in problem["details"]}
    assert by_path["resources.slots_per_trail"]["line"] == 5
    assert by_path["resources.slots_per_trail"]["file"] == "const.yaml"
    assert "did you mean slots_per_trial?" in by_path["resources.slots_per_trail"]["message"]
    assert "did you mean single?" in by_path["searcher.name"]["message"]
    assert {"name", "resources.slots", "searcher.name"} <= by_path.keys()
    assert all(detail["message"] in problem["message"] for detail in problem["details"])
    assert master.get("/experiments")["total"] == 0


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("name: a\nhyperparameters: {}\n", "entrypoint is required to run"),
        ("entrypoint: x\nresources: {slots_per_trial: 5}\n", "asks for 5 slots, and pool default has 1 slot in all"),
        ("entrypoint: x\nresources: {resource_pool: defualt}\n", "did you mean default?"),
        ("entrypoint: x\nworkspace: there\nproject: nowhere\n", "there is no workspace there"),
        ("entrypoint: x\nsearcher: {name: single, source_trial_id: 99}\n", "no trial 99"),
        ("entrypoint: x\nsearcher: {name: single, source_checkpoint_uuid: nope-nope}\n", "nope-nope"),
        (
            "entrypoint: x\nsearcher: {name: random, max_trials: 1000000000, max_concurrent_trials: 0}\n",
            "lets 1000000000 trials begin at once",
        ),
        (
            "entrypoint: x\nhyperparameters: {a: {type: double, minval: 0, maxval: 1, count: 100000000}}\n"
            "searcher: {name: grid, max_concurrent_trials: 0}\n",
            "at most 10000 may",
        ),
        ("[1, 2]", "must be a map"),
        ("", "is empty"),
        ("/etc/passwd", "must be a map"),
        ("!!python/object:os.system {}", "entrypoint"),
    ],
)
def test_what_cannot_run_is_refused_and_nothing_is_created(master: Master, config: str, says: str) -> None:
    if "slots_per_trial" in config or "defualt" in config:
        master.run(engine_has_looked(master))
    answer = master.ask("POST", "/experiments", json={"config": config})
    assert 400 <= answer.status_code < 500
    assert says in answer.json()["message"] or "tag" in answer.json()["message"]
    assert "root:" not in answer.text
    assert master.get("/experiments")["total"] == 0


async def engine_has_looked(master: Master) -> None:
    for _ in range(500):
        if master.app.state.engine.nodes("default"):
            return
        await asyncio.sleep(0.01)


def test_a_check_creates_nothing_and_tells_what_it_would_become(master: Master) -> None:
    answer = master.make("POST", "/experiments", config=CONFIG, check_only=True)
    assert answer["experiment"] is None and answer["config"]["max_restarts"] == 5
    assert master.get("/experiments")["total"] == 0
    refused = master.ask("POST", "/experiments", json={"config": CONFIG, "check_only": True, "project_id": 99})
    assert refused.status_code == 404


def test_overrides_template_and_defaults_are_laid_over_and_under(master: Master) -> None:
    master.make("PUT", "/templates/mine", config="max_restarts: 1\nlabels: [a]\nresources: {priority: 7}\n")
    found = submit(master, overrides=["resources.priority=9", "labels=b"], template="mine")
    assert found["config"]["max_restarts"] == 1
    assert found["priority"] == 9 and found["labels"] == ["b"]
    assert master.ask("POST", "/experiments", json={"config": CONFIG, "template": "none"}).status_code == 404


def test_old_spellings_and_container_fields_are_noticed(master: Master) -> None:
    old = "description: old\nentrypoint: x\nsearcher: {name: single, metric: loss, max_steps: 2}\n"
    found = submit(master, old + "environment: {image: them/theirs}\n")
    assert found["name"] == "old" and found["config"]["searcher"]["max_length"] == {"batches": 200}
    assert any("max_steps" in notice for notice in found["notices"])
    assert any("image" in notice for notice in found["notices"])


def test_a_test_is_one_batch_of_one_trial_and_archived(master: Master) -> None:
    search = CONFIG.replace("name: single", "name: random\n  max_trials: 50")
    found = submit(master, search, test=True)
    assert found["archived"] and found["trial_count"] == 1
    assert found["config"]["searcher"]["name"] == "single"
    assert found["config"]["searcher"]["max_length"] == {"batches": 1}
    assert found["config"]["max_restarts"] == 0


def test_secrets_are_masked_wherever_a_config_is_shown(master: Master) -> None:
    secret = "canary-3141592653"
    config = CONFIG + (
        f"data: {{secrets: {{wandb: {secret}}}, open: yes}}\n"
        f"environment: {{environment_variables: [API_KEY={secret}, PLAIN=x]}}\n"
        f"checkpoint_storage: {{type: s3, bucket: b, secret_key: {secret}}}\n"
    )
    submit(master, config)
    for path in ("/experiments/1", "/experiments?with_config=true", "/experiments/1/config", "/changes?after=0"):
        if path.startswith("/changes"):
            continue
        answer = master.ask("GET", path)
        assert answer.status_code == 200 and secret not in answer.text, path
    written = master.get("/experiments/1/config")["written"]
    assert "PLAIN=x" in written and "********" in written
    wrong = config.replace("name: digits", "name: 3")
    assert secret not in master.ask("POST", "/experiments", json={"config": wrong}).text


def test_operations_and_what_is_refused(master: Master) -> None:
    submit(master)
    refused = master.ask("POST", "/experiments/1/archive")
    assert refused.status_code == 409 and "cancel or kill it first" in refused.json()["message"]
    assert master.make("POST", "/experiments/1/kill")["state"] == "CANCELED"
    assert master.make("POST", "/experiments/1/archive")["archived"] is True
    assert master.make("POST", "/experiments/1/unarchive")["archived"] is False
    assert master.ask("POST", "/experiments/1/pause").status_code == 409
    assert master.ask("POST", "/experiments/1/explode").status_code == 422
    assert master.ask("DELETE", "/experiments/1").status_code == 202
    assert master.ask("POST", "/experiments/99/kill").status_code == 404


def test_it_is_edited_and_moved(master: Master) -> None:
    submit(master)
    edited = master.make("PATCH", "/experiments/1", name="new", notes="n", labels=["a", "b"], priority=3, max_slots=4)
    assert (edited["name"], edited["notes"], edited["labels"], edited["priority"]) == ("new", "n", ["a", "b"], 3)
    assert edited["max_slots"] == 4
    assert master.make("PATCH", "/experiments/1", max_slots=None, name=None)["max_slots"] is None
    assert master.get("/experiments/1")["name"] == "new"
    assert master.ask("PATCH", "/experiments/1", json={"priority": 100}).status_code == 422
    assert master.ask("PATCH", "/experiments/1", json={"colour": "red"}).status_code == 422
    assert master.ask("PATCH", "/experiments/1", json={"resource_pool": "none"}).status_code == 409
    workspace = master.make("POST", "/workspaces", name="w")["id"]
    project = master.make("POST", "/projects", workspace_id=workspace, name="p")["id"]
    moved = master.make("POST", "/experiments/1/move", to=project)
    assert (moved["project_name"], moved["workspace_name"]) == ("p", "w")
    assert submit(master, CONFIG + "workspace: w\nproject: p\n")["project_id"] == project


def test_what_belongs_to_somebody_else_is_only_looked_at(master: Master) -> None:
    submit(master)
    other = master.user("other")
    assert master.get("/experiments/1", other)["id"] == 1
    for method, path, body in (
        ("POST", "/experiments/1/kill", None),
        ("PATCH", "/experiments/1", {"name": "x"}),
        ("DELETE", "/experiments/1", None),
        ("POST", "/experiments/1/move", {"to": 1}),
        ("POST", "/experiments/1/continue", {}),
        ("POST", "/trials/1/kill", None),
        ("PATCH", "/jobs/experiment-1", {"priority": 1}),
    ):
        answer = master.ask(method, path, other, json=body)
        assert answer.status_code == 403, f"{method} {path}: {answer.text}"
    done = master.make("POST", "/experiments/bulk", other, ids=[1], operation="kill")
    assert "belongs to somebody else" in done[0]["error"]


def test_several_at_once_answer_each_for_itself(master: Master) -> None:
    submit(master)
    submit(master)
    done = master.make("POST", "/experiments/bulk", ids=[1, 77, 2, 1], operation="kill")
    assert [(one["id"], one["error"] is None) for one in done] == [("1", True), ("77", False), ("2", True)]
    assert {one["state"] for one in master.get("/experiments")["items"]} == {"CANCELED"}


def test_lists_are_filtered(master: Master) -> None:
    for name, label in (("alpha", "x"), ("beta", 'quote"d'), ("alphabet", "x y")):
        config = CONFIG.replace("digits", name) + f"labels: [{json.dumps(label)}]\n"
        submit(master, config)
    master.make("POST", "/experiments/3/kill")

    def ids(query: str) -> list[int]:
        return [item["id"] for item in master.get(f"/experiments?{query}")["items"]]

    assert ids("") == [3, 2, 1]
    assert ids("name=ALPHA&order=asc") == [1, 3]
    assert ids("label=x") == [1] and ids("label=quote%22d") == [2]
    assert ids("state=PAUSED") == [2, 1] and ids("state=canceled") == [3] and ids("state=RUNNING") == []
    assert ids("state=PAUSED&state=CANCELED&sort_by=name&order=asc") == [1, 3, 2]
    assert ids("search=2") == [2] and ids("search=bet") == [3, 2]
    assert ids("id=1&id=3") == [3, 1] and ids("user=nobody") == [] and ids("project_id=1") == [3, 2, 1]
    assert ids("limit=0") == [] and ids("offset=2") == [1]
    for wrong in ("state=ASLEEP", "sort_by=config", "sort_by=id;drop", "after=garbage", "order=up", "limit=-1"):
        assert master.ask("GET", f"/experiments?{wrong}").status_code in (400, 422), wrong
    assert master.get("/experiments")["items"][0]["config"] == {}


@pytest.mark.parametrize("sort_by", ["id", "name", "best_metric", "progress", "ended_at", "username"])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_walk_has_no_gaps_and_nothing_twice_whatever_happens_meanwhile(
    master: Master, sort_by: str, order: str
) -> None:
    """Figure A4, small: what was there all the time is seen once."""
    made = many(master, 60)
    chance = random.Random(7)

    def scatter(tx: Any) -> None:
        for experiment in made:
            value = chance.choice([None, 0.0, 1.0, -1.0, float("inf")])
            rows.update(
                tx, experiment.id, best_metric=value, progress=chance.choice([0.0, 0.5]), name=chance.choice("ab")
            )

    master.write(scatter)
    stays = {experiment.id for experiment in made}
    seen: list[int] = []
    after = ""
    while True:
        page = master.get(f"/experiments?sort_by={sort_by}&order={order}&limit=7{after}")
        seen += [item["id"] for item in page["items"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
        gone = [one.id for one in made if one.id in stays and one.id not in seen][-1:]
        new = many(master, 2, chance.choice("abc"))
        for one in (*gone, new[0].id):
            master.write(rows.delete, one)
            stays.discard(one)
    assert len(seen) == len(set(seen))
    assert stays <= set(seen)


def test_ten_thousand_are_listed_in_milliseconds(master: Master) -> None:
    crowd(master, 10_000)
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        page = master.get("/experiments?limit=100")
        best = min(best, time.perf_counter() - begun)
    assert page["total"] == 10_000 and len(page["items"]) == 100
    assert best < 0.15


def test_the_best_checkpoints_come_first(master: Master) -> None:
    run = Run(master, config={"searcher": {"name": "single", "metric": "loss"}})
    uuids = {}
    for at, loss in ((1, 3.0), (2, 1.0), (3, float("nan")), (4, 2.0)):
        run.metrics(at, loss=loss, other=-loss)
        uuids[at] = run.checkpoint(at, {"w": b"x" * at})
    uuids[5] = run.checkpoint(5, {"w": b"x"})

    def steps(query: str = "") -> list[int]:
        found = master.get(f"/experiments/{run.experiment_id}/checkpoints?{query}")
        return [item["steps_completed"] for item in found["items"]]

    assert steps()[:3] == [2, 4, 1] and {*steps()[3:]} == {3, 5}
    assert steps("sort_by=steps_completed&order=desc") == [5, 4, 3, 2, 1]
    assert steps("sort_by=metric:other&order=asc")[:3] == [1, 4, 2]
    assert steps("sort_by=size&order=desc&limit=1") == [4]
    assert steps("state=COMPLETED&limit=2") == [2, 4] and steps("state=DELETED") == []
    first = master.get(f"/trials/{run.trial_id}/checkpoints?limit=1")["items"][0]
    assert first["uuid"] == uuids[2] and first["validation_metrics"]["loss"] == 1.0
    assert master.get(f"/experiments/{run.experiment_id}/best")["value"] == 1.0


def test_metrics_are_exported_whole(master: Master) -> None:
    run = Run(master)
    for steps in range(1, 51):
        run.metrics(steps, "training", loss=1 / steps)
    run.metrics(50, loss=float("inf"))
    answer = master.ask("GET", f"/experiments/{run.experiment_id}/metrics", headers={"Accept": "nan=constants"})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["steps_completed"] for line in lines] == [*range(1, 51), 50]
    assert lines[0]["metrics"] == {"loss": 1.0} and lines[-1]["metrics"] == {"loss": float("inf")}
    only = master.ask("GET", f"/experiments/{run.experiment_id}/metrics?group=validation")
    assert json.loads(only.text)["metrics"] == {"loss": "Infinity"}


def test_continuing_needs_an_end_and_something_to_train(master: Master) -> None:
    submit(master)
    assert master.ask("POST", "/experiments/1/continue", json={}).status_code == 409
    master.make("POST", "/experiments/1/kill")
    wrong = master.ask("POST", "/experiments/1/continue", json={"overrides": ["searcher.max_lenght=3"]})
    assert wrong.status_code == 422 and "max_length" in wrong.json()["message"]
    again = master.make("POST", "/experiments/1/continue", overrides=["searcher.max_length.batches=20"])
    assert again["config"]["searcher"]["max_length"] == {"batches": 20}
    master.write(lifecycle.operate, 1, Operation.KILL)


def test_search_events_and_preview(master: Master) -> None:
    submit(master)
    events = master.get("/experiments/1/search-events")
    assert events[0]["kind"] == "start" and events[0]["actions"]
    assert master.get("/experiments/1/search-events?after=0") == events[1:]
    preview = master.make(
        "POST",
        "/search/preview",
        config=CONFIG.replace("name: single", "name: random\n  max_trials: 3").replace(
            "0.1", "{type: double, minval: 0, maxval: 1}"
        ),
        seed=3,
    )
    assert preview["trials"] == 3 and preview["rows"][0]["trials"] == 3
    assert all(0 <= example["lr"] <= 1 for example in preview["examples"])


def test_sent_twice_under_a_key_it_is_one(master: Master) -> None:
    """Figure A2, for submissions: also when the answer was lost on the way."""
    key = {"Idempotency-Key": "the-same-key-1"}
    first = master.ask("POST", "/experiments", headers=key, json={"config": CONFIG, "paused": True})
    again = master.ask("POST", "/experiments", headers=key, json={"config": CONFIG, "paused": True})
    assert first.status_code == again.status_code == 201 and first.json() == again.json()
    assert master.get("/experiments")["total"] == 1
    other = master.ask("POST", "/experiments", headers=key, json={"config": CONFIG + "labels: [x]", "paused": True})
    assert other.status_code == 409
    for path in ("/experiments/1/kill", "/experiments/bulk"):
        body = {"ids": [1], "operation": "kill"} if path.endswith("bulk") else None
        answers = [master.ask("POST", path, headers=key, json=body) for _ in range(2)]
        assert answers[0].status_code == answers[1].status_code == 200 and answers[0].content == answers[1].content
