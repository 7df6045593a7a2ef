"""Trials over the API: what they show, their metrics whole and thinned, and what may be done with one alone."""

from __future__ import annotations

import json
import math

from tests.unit.master.api.scenes import Run, submit
from tests.unit.master.api.serving import Master


def test_metrics_are_read_page_by_page(master: Master) -> None:
    run = Run(master)
    for steps in range(1, 26):
        run.metrics(steps, loss=1 / steps, nested={"a": steps})
    run.metrics(5, "training", loss=9.0)
    first = master.get(f"/trials/{run.trial_id}/metrics?limit=10")
    assert first["total"] == 25 and [item["steps_completed"] for item in first["items"]] == [*range(1, 11)]
    rest = master.get(f"/trials/{run.trial_id}/metrics?limit=100&after={first['next']}")
    assert [item["steps_completed"] for item in rest["items"]] == [*range(11, 26)] and rest["next"] is None
    assert rest["items"][0]["metrics"] == {"loss": 1 / 11, "nested": {"a": 11}}
    assert master.get(f"/trials/{run.trial_id}/metrics?group=training")["total"] == 1
    assert master.get(f"/trials/{run.trial_id}/metrics?group=none")["items"] == []
    names = master.get(f"/trials/{run.trial_id}/metric-names")["groups"]
    assert names == {"training": ["loss"], "validation": ["loss", "nested.a"]}


def test_all_of_them_come_as_a_stream(master: Master) -> None:
    run = Run(master)
    for start in range(0, 5000, 1000):
        run.report(
            *(
                {"kind": "metrics", "group": "training", "steps_completed": s, "metrics": {"x": s}, "time": 1.0}
                for s in range(start, start + 1000)
            )
        )
    run.metrics(7, loss=1.0)
    answer = master.ask("GET", f"/trials/{run.trial_id}/metrics?stream=true")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["steps_completed"] for line in lines if line["group"] == "training"] == [*range(5000)]
    assert [line["group"] for line in lines[-1:]] == ["validation"]
    assert answer.headers["content-type"].startswith("application/x-ndjson")


def test_a_series_is_thinned_and_keeps_its_peaks(master: Master) -> None:
    run = Run(master)
    run.report(
        *(
            {
                "kind": "metrics",
                "group": "training",
                "steps_completed": s,
                "metrics": {"x": 1000.0 if s == 1234 else -1000.0 if s == 2345 else math.sin(s)},
                "time": float(s),
            }
            for s in range(4000)
        )
    )
    found = master.get(f"/trials/{run.trial_id}/series?group=training&name=x&points=100")
    assert found["total"] == 4000 and 50 <= len(found["steps"]) <= 400
    assert max(found["max"]) == 1000.0 and min(found["min"]) == -1000.0
    part = master.get(f"/trials/{run.trial_id}/series?group=training&name=x&points=100&first=10&last=19")
    assert part["steps"] == [*range(10, 20)]
    assert master.get(f"/trials/{run.trial_id}/series?name=none")["steps"] == []
    for wrong in ("points=0", "points=x&name=x", "first=-1&name=x", "name=x&points=1000000"):
        assert master.ask("GET", f"/trials/{run.trial_id}/series?{wrong}").status_code == 422


def test_what_its_processes_used_is_kept_apart(master: Master) -> None:
    run = Run(master)
    run.report({"kind": "usage", "node_rank": 0, "time": 12.5, "usage": {"cpu": 0.5}})
    found = master.get(f"/trials/{run.trial_id}/usage")
    assert found["items"][0]["metrics"] == {"cpu": 0.5} and found["items"][0]["steps_completed"] == 12500
    assert master.ask("GET", f"/trials/{run.trial_id}/metrics?stream=true").text == ""


def test_one_trial_is_killed_alone(master: Master) -> None:
    experiment = submit(master)
    trial_id = master.get(f"/experiments/{experiment['id']}/trials")["items"][0]["id"]
    assert master.make("POST", f"/trials/{trial_id}/kill")["state"] == "CANCELED"
    assert master.ask("POST", f"/trials/{trial_id}/pause").status_code == 422
    assert master.ask("POST", "/trials/99/kill").status_code == 404
    assert master.get(f"/trials/{trial_id}/allocations") == []


def test_attempts_are_listed(master: Master) -> None:
    run = Run(master, external_experiment_id="mine")
    again = Run(master, external_experiment_id="mine")
    assert again.trial_id == run.trial_id
    found = master.get(f"/trials/{run.trial_id}/allocations")
    assert [(one["run_epoch"], one["state"], one["outcome"]) for one in found] == [
        (1, "ENDED", "lost"),
        (2, "RUNNING", None),
    ]


def test_trials_are_filtered_and_sorted(master: Master) -> None:
    config = (
        "entrypoint: x\nhyperparameters: {lr: {type: double, minval: 0, maxval: 1}}\n"
        "searcher: {name: random, metric: loss, max_trials: 6, max_concurrent_trials: 6}\n"
    )
    experiment_id = submit(master, config)["id"]

    def ids(query: str) -> list[int]:
        return [item["id"] for item in master.get(f"/experiments/{experiment_id}/trials?{query}")["items"]]

    master.make("POST", "/trials/2/kill")
    assert ids("") == [1, 2, 3, 4, 5, 6] and ids("order=desc&limit=2") == [6, 5]
    assert ids("state=CANCELED") == [2] and ids("state=PAUSED&sort_by=number&order=desc") == [6, 5, 4, 3, 1]
    page = master.get(f"/experiments/{experiment_id}/trials?limit=4&sort_by=best_metric")
    rest = master.get(f"/experiments/{experiment_id}/trials?limit=4&sort_by=best_metric&after={page['next']}")
    assert [item["id"] for item in page["items"] + rest["items"]] == [1, 2, 3, 4, 5, 6]
    assert master.ask("GET", f"/experiments/{experiment_id}/trials?sort_by=hparams").status_code == 400
    assert master.ask("GET", "/experiments/99/trials").status_code == 404
