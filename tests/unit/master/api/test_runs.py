"""Runs that no master started, and what allocations report."""

from __future__ import annotations

import gzip
import json
import math
import time
from typing import Any

import pytest

from tests.unit.master.api.serving import Master


def metrics(steps: int, group: str = "training", **values: Any) -> dict[str, Any]:
    return {"kind": "metrics", "group": group, "steps_completed": steps, "metrics": values, "time": 1000.0 + steps}


def report(master: Master, run: dict[str, Any], first: int, *reports: dict[str, Any], epoch: int | None = None) -> Any:
    body = {"run_epoch": epoch or run["run_epoch"], "source": "chief", "first": first, "reports": [*reports]}
    return master.ask("POST", f"/allocations/{run['allocation_id']}/reports", run["session_token"], json=body)


def test_a_run_is_registered_and_reports(master: Master) -> None:
    run = master.make("POST", "/runs", name="notebook", hparams={"lr": 0.1}, labels=["x"], project="p", workspace="w")
    assert run["run_epoch"] == 1 and run["latest_checkpoint"] is None and run["cluster_id"]
    assert report(master, run, 0, metrics(1, loss=1.0), metrics(2, loss=0.5)).json() == {
        "acknowledged": 2,
        "stop": None,
    }
    shown = master.get(f"/experiments/{run['experiment_id']}")
    assert (shown["name"], shown["unmanaged"], shown["labels"], shown["project_name"]) == ("notebook", True, ["x"], "p")
    assert shown["state"] == "RUNNING"
    assert master.get(f"/trials/{run['trial_id']}")["hparams"] == {"lr": 0.1}
    assert master.get(f"/trials/{run['trial_id']}/metrics?group=training")["total"] == 2


def test_each_line_is_taken_once(master: Master) -> None:
    run = master.make("POST", "/runs", name="x")
    assert report(master, run, 0, metrics(1, loss=1.0)).json()["acknowledged"] == 1
    assert report(master, run, 0, metrics(1, loss=1.0), metrics(2, loss=2.0)).json()["acknowledged"] == 2
    assert report(master, run, 7, metrics(8, loss=8.0)).json()["acknowledged"] == 2, "lines between are missing"
    assert report(master, run, 2).json()["acknowledged"] == 2, "a heartbeat"
    assert master.get(f"/trials/{run['trial_id']}/metrics?group=training")["total"] == 2


def test_the_same_external_ids_are_the_same_run_resumed(master: Master) -> None:
    ids = {"external_experiment_id": "e", "external_trial_id": "t"}
    run = master.make("POST", "/runs", name="x", **ids)
    report(master, run, 0, metrics(1, loss=1.0))
    checkpoint = {"kind": "checkpoint", "uuid": "c-1", "steps_completed": 1, "time": 1.0}
    assert report(master, run, 1, checkpoint, metrics(2, loss=2.0)).status_code == 200
    again = master.make("POST", "/runs", name="x", **ids)
    assert again["trial_id"] == run["trial_id"] and again["run_epoch"] == 2
    assert (again["latest_checkpoint"], again["steps_completed"]) == ("c-1", 1)
    assert master.get(f"/trials/{run['trial_id']}/metrics?group=training")["total"] == 1, "what came after is forgotten"
    stale = report(master, run, 3, metrics(3, loss=3.0))
    assert stale.status_code in (401, 409), stale.text
    assert report(master, again, 0, metrics(2, loss=9.0)).status_code == 200
    other = master.make("POST", "/runs", name="x", external_experiment_id="e", external_trial_id="t2")
    assert other["experiment_id"] == run["experiment_id"] and other["trial_id"] != run["trial_id"]
    stranger = master.user("stranger")
    assert master.ask("POST", "/runs", stranger, json={"name": "x", **ids}).status_code == 403


def test_a_run_ends_and_goes_on(master: Master) -> None:
    run = master.make("POST", "/runs", name="x", external_experiment_id="e")
    end = {"run_epoch": 1, "ending": {"outcome": "completed", "exit_code": 0}}
    path = f"/allocations/{run['allocation_id']}/exit"
    assert master.ask("POST", path, run["session_token"], json={**end, "run_epoch": 7}).status_code == 409
    assert master.ask("POST", path, run["session_token"], json=end).status_code == 204
    assert master.get(f"/experiments/{run['experiment_id']}")["state"] == "COMPLETED"
    assert master.get(f"/trials/{run['trial_id']}")["state"] == "COMPLETED"
    again = master.make("POST", "/runs", name="x", external_experiment_id="e")
    assert again["trial_id"] == run["trial_id"]
    assert master.get(f"/experiments/{run['experiment_id']}")["state"] == "RUNNING"
    end["run_epoch"] = 2
    end["ending"] = {"outcome": "failed", "exit_code": 1, "reason": "its own fault"}
    path = f"/allocations/{again['allocation_id']}/exit"
    assert master.ask("POST", path, again["session_token"], json=end).status_code == 204
    assert master.get(f"/experiments/{run['experiment_id']}")["state"] == "ERROR"


def test_only_the_allocation_itself_reports(master: Master) -> None:
    run, other = master.make("POST", "/runs", name="x"), master.make("POST", "/runs", name="y")
    body = {"run_epoch": 1, "source": "chief", "first": 0, "reports": []}
    path = f"/allocations/{run['allocation_id']}/reports"
    assert master.ask("POST", path, json=body).status_code == 403
    assert master.ask("POST", path, other["session_token"], json=body).status_code == 404
    assert master.ask("POST", path, None, json=body).status_code == 401
    assert master.ask("GET", f"/trials/{other['trial_id']}", run["session_token"]).status_code == 200
    assert master.ask("POST", f"/trials/{run['trial_id']}/kill", run["session_token"]).status_code == 403
    assert master.ask("GET", "/users", run["session_token"]).status_code == 403


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"run_epoch": 1, "source": "chief", "first": 0}',
        b'{"run_epoch": "1", "source": "chief", "first": 0, "reports": []}',
        b'{"run_epoch": 1, "source": "thief", "first": 0, "reports": []}',
        b'{"run_epoch": 1, "source": "chief", "first": -1, "reports": []}',
        b'{"run_epoch": 1, "source": "chief", "first": 0, "reports": [1]}',
        b'{"run_epoch": 1, "source": "chief", "first": 0, "reports": [{"kind": "metrics"}]}',
        b'{"run_epoch": 1, "source": "chief", "first": 0, "reports": [{"kind": "magic"}]}',
        b'{"run_epoch": 1, "source": "chief", "first": 0, "reports": ' + b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_what_is_no_report_is_refused_and_nothing_is_stored(master: Master, body: bytes) -> None:
    run = master.make("POST", "/runs", name="x")
    path = f"/allocations/{run['allocation_id']}/reports"
    answer = master.ask("POST", path, run["session_token"], content=body)
    assert answer.status_code in (400, 422), answer.text
    assert report(master, run, 0).json()["acknowledged"] == 0


def test_zipped_reports_are_taken_and_bombs_are_not(master: Master) -> None:
    run = master.make("POST", "/runs", name="x")
    path = f"/allocations/{run['allocation_id']}/reports"
    body = json.dumps({"run_epoch": 1, "source": "chief", "first": 0, "reports": [metrics(1, loss=math.nan)]}).encode()
    zipped = {"Content-Encoding": "gzip"}
    answer = master.ask("POST", path, run["session_token"], zipped, content=gzip.compress(body))
    assert answer.json()["acknowledged"] == 1
    bomb = gzip.compress(b" " * (80 * 2**20))
    assert master.ask("POST", path, run["session_token"], zipped, content=bomb).status_code in (400, 413)
    assert master.ask("POST", path, run["session_token"], zipped, content=b"no gzip").status_code == 400
    torn = gzip.compress(body)[:-9]
    assert master.ask("POST", path, run["session_token"], zipped, content=torn).status_code == 400


def test_rows_by_the_thousand_are_quick(master: Master) -> None:
    run = master.make("POST", "/runs", name="x")
    rows = [json.dumps(metrics(n, loss=1 / (n + 1), accuracy=0.5)) for n in range(20_000)]
    path = f"/allocations/{run['allocation_id']}/reports"
    begun = time.perf_counter()
    for first in range(0, len(rows), 1000):
        listed = ",".join(rows[first : first + 1000])
        body = f'{{"run_epoch":1,"source":"chief","first":{first},"reports":[{listed}]}}'.encode()
        assert master.ask("POST", path, run["session_token"], content=body).status_code == 200
    seconds = time.perf_counter() - begun
    # bench/ has the figure; here only that nothing is done for each row that should be done once.
    assert len(rows) / seconds > 2_000
    assert master.get(f"/trials/{run['trial_id']}/metrics?group=training&limit=1")["total"] == len(rows)
