"""Tasks, the queue, pools and machines over the API."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from determined.master.store import tasks
from tests.flow.processes import wait_until
from tests.unit.master.api.scenes import submit
from tests.unit.master.api.serving import Master

JOB = "name: predict\nentrypoint: python predict.py\nresources: {slots: 1}\ndata: {secrets: {k: canary-2718}}\n"


def job(master: Master, config: str = JOB, token: str | None = "owner", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = master.make("POST", "/tasks", token, kind="job", config=config, paused=True, **more)
    return found


async def machines(master: Master) -> None:
    for _ in range(1000):
        if master.app.state.engine.nodes("default"):
            return
        await asyncio.sleep(0.01)


def test_a_job_is_started_shown_and_ended(master: Master) -> None:
    task = job(master, overrides=["resources.priority=7"])
    assert (task["id"], task["kind"], task["name"], task["state"]) == ("job-1", "job", "predict", "PAUSED")
    assert task["priority"] == 7 and task["slots"] == 1 and task["username"]
    assert task["config"]["data"]["secrets"] == {"k": "********"}
    assert "canary" not in master.ask("GET", "/tasks/job-1/config").text + master.ask("GET", "/tasks").text
    assert master.get("/tasks/job-1")["id"] == "job-1"
    assert master.ask("DELETE", "/tasks/job-1").status_code == 409
    assert master.make("POST", "/tasks/job-1/kill")["state"] == "CANCELED"
    assert master.ask("POST", "/tasks/job-1/activate").status_code == 409
    folder = master.settings.logs_dir / "job-1"
    folder.mkdir(parents=True)
    (folder / "job-1.1.jsonl").write_text("")
    assert master.ask("DELETE", "/tasks/job-1").status_code == 204
    assert not folder.exists() and master.ask("GET", "/tasks/job-1").status_code == 404


def test_a_command_is_its_arguments(master: Master) -> None:
    task = master.make("POST", "/tasks", kind="command", arguments=["python", "-c", "print(1)"], paused=True)
    assert task["id"] == "command-1" and task["name"] == "python -c 'print(1)'"
    assert task["config"]["entrypoint"] == ["python", "-c", "print(1)"]
    assert master.ask("POST", "/tasks", json={"kind": "command"}).status_code == 400
    assert master.ask("POST", "/tasks", json={"kind": "job"}).status_code == 422, "a job needs an entrypoint"
    assert master.ask("POST", "/tasks", json={"kind": "shell"}).status_code == 422


def test_mistakes_are_told_with_their_lines(master: Master) -> None:
    answer = master.ask("POST", "/tasks", json={"kind": "job", "config": JOB + "resorces: {}\n", "file": "job.yaml"})
    detail = answer.json()["details"][0]
    assert answer.status_code == 422 and detail["line"] == 5 and "did you mean resources?" in detail["message"]
    master.run(machines(master))
    answer = master.ask("POST", "/tasks", json={"kind": "job", "config": JOB.replace("slots: 1", "slots: 64")})
    assert answer.status_code == 422 and "asks for 64 slots" in answer.json()["message"]


def test_tasks_are_filtered(master: Master) -> None:
    job(master)
    master.make("POST", "/tasks", kind="command", arguments=["true"], paused=True)
    job(master)
    master.make("POST", "/tasks/job-2/kill")

    def ids(query: str) -> list[str]:
        return [item["id"] for item in master.get(f"/tasks?{query}")["items"]]

    assert ids("order=asc") == ["job-1", "command-1", "job-2"] and ids("kind=command") == ["command-1"]
    assert ids("state=CANCELED") == ["job-2"] and ids("user=nobody") == []
    assert ids("limit=1&sort_by=id&order=asc") == ["command-1"]


def test_what_is_somebody_elses_stays(master: Master) -> None:
    job(master)
    other = master.user("other")
    assert master.ask("POST", "/tasks/job-1/kill", other).status_code == 403
    assert master.ask("DELETE", "/tasks/job-1", other).status_code == 403
    assert master.ask("PATCH", "/jobs/job-1", other, json={"priority": 1}).status_code == 403


def test_the_queue_is_shown_and_changed(master: Master) -> None:
    master.run(machines(master))
    master.make("PATCH", "/agents/local", enabled=False)
    for _ in range(3):
        master.make("POST", f"/experiments/{submit(master)['id']}/activate")
    master.make("POST", "/tasks", kind="job", config=JOB)
    jobs = master.get("/jobs")
    assert [entry["job_id"] for entry in jobs] == ["experiment-1", "experiment-2", "experiment-3", "job-1"]
    assert jobs[0]["waiting"] == 1 and jobs[0]["running"] == 0 and jobs[0]["pool"] == "default"
    master.make("PATCH", "/jobs/job-1", ahead_of="experiment-2")
    assert [entry["job_id"] for entry in master.get("/jobs")][:2] == ["experiment-1", "job-1"]
    assert master.make("PATCH", "/jobs/experiment-3", priority=1)["priority"] == 1
    assert master.get("/jobs?pool=default")[0]["job_id"] == "experiment-3" and master.get("/jobs?pool=x") == []
    assert master.get("/jobs/job-1")["kind"] == "job"
    assert master.ask("GET", "/jobs/job-99").status_code == 404
    assert master.ask("PATCH", "/jobs/job-99", json={"priority": 1}).status_code == 404
    assert master.ask("PATCH", "/jobs/job-1", json={"ahead_of": "x", "behind": "y"}).status_code in (400, 404)
    assert master.ask("PATCH", "/jobs/job-1", json={"resource_pool": "none"}).status_code == 409


def test_everything_that_waits_says_why(master: Master) -> None:
    master.run(machines(master))
    refused = master.ask("POST", "/tasks", json={"kind": "job", "config": JOB.replace("slots: 1", "slots: 9")})
    assert "resources.slots asks for 9 slots, and pool default has 1 slot in all" in refused.json()["message"]
    refused = master.ask("POST", "/tasks", json={"kind": "job", "config": JOB.replace("slots: 1", "resource_pool: a")})
    assert "names a pool 'a' that there is not; the pools are default" in refused.json()["message"]
    master.make("PATCH", "/agents/local", enabled=False)
    master.make("POST", "/tasks", kind="job", config=JOB)
    master.write(tasks.update, master.make("POST", "/tasks", kind="job", config=JOB)["id"], resource_pool="gone")
    master.write(tasks.update, master.make("POST", "/tasks", kind="job", config=JOB)["id"], retry_at=4e9)

    def whys() -> list[str]:
        return [entry["why"] for entry in master.get("/jobs")]

    assert wait_until(
        lambda: bool(whys()[0]) and whys()[2].startswith("was lost again and again; it is tried again in ")
    )
    closed, gone, _ = whys()
    assert closed == "needs 1 slot, and no machine that takes new work has any"
    assert gone == "its pool gone is not there any more; the pools are default: move it to one of them"


def test_pools_and_machines_are_shown_and_switched(master: Master) -> None:
    master.run(machines(master))
    pool = master.get("/pools")[0]
    assert (pool["name"], pool["kind"], pool["slots_total"], pool["is_default"]) == ("default", "local", 1, True)
    agent = master.get("/agents")[0]
    assert agent["id"] == "local" and agent["enabled"] and len(agent["slots"]) == 1
    assert master.make("PATCH", "/agents/local", drain=True)["draining"] is True
    assert master.make("PATCH", "/agents/local", enabled=False)["enabled"] is False
    assert master.make("PATCH", "/agents/local", enabled=True)["enabled"] is True
    assert master.make("PATCH", "/agents/local/slots/0", enabled=False)["slots"][0]["enabled"] is False
    assert master.ask("PATCH", "/agents/local/slots/7", json={"enabled": False}).status_code == 404
    assert master.ask("PATCH", "/agents/elsewhere", json={"enabled": False}).status_code == 404


@pytest.mark.parametrize("kind", ["notebook", "tensorboard"])
def test_what_there_is_not_is_said(master: Master, kind: str) -> None:
    assert master.ask("POST", "/tasks", json={"kind": kind}).status_code == 409
