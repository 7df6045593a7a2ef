"""Figure L5: values that break pages and databases go through the API and the SDK as they are."""

from __future__ import annotations

import json
import math
import pathlib
import struct
from typing import Any

import pyarrow.parquet

from determined.client.checkpoint import Checkpoint
from determined.client.experiment import Experiment
from determined.client.master import Master as Client
from determined.client.transport import Session
from determined.client.trial import Trial
from tests.unit.master.api.scenes import Run
from tests.unit.master.api.serving import Master

PLANES = "".join(chr(plane << 16 | 0x1234) for plane in range(17) if plane not in (3,)) + "\u2028\u2029\ufeff\u0000\x7f"
NUMBERS: dict[str, float] = {
    "nan": math.nan,
    "inf": math.inf,
    "minus_inf": -math.inf,
    "minus_zero": -0.0,
    "denormal": 1e-310,
    "least": 5e-324,
    "greatest": 1.7976931348623157e308,
    "third": 1 / 3,
    "whole": 2**63,
    "negative": -(2**63),
    "odd": 2**53 + 1,
}
VALUES: dict[str, Any] = {
    **NUMBERS,
    "long": "x" * 2**20,
    "planes": PLANES,
    "nothing": None,
    "text that says": "NaN Infinity -Infinity",
    "list": [math.nan, {"deep": -math.inf}, None],
    PLANES: "as a name",
}


def bits(value: Any) -> Any:
    """What must be the same for two values to be the same to the last bit."""
    if isinstance(value, float):
        return struct.pack(">d", value) if not math.isnan(value) else "nan"
    if isinstance(value, dict):
        return {name: bits(inner) for name, inner in value.items()}
    return [bits(inner) for inner in value] if isinstance(value, list) else (type(value), value)


def report_all(master: Master) -> Run:
    run = Run(master, name=f"run {PLANES}", hparams=VALUES)
    metrics = {name: value for name, value in VALUES.items() if value is not None}
    body = {
        "run_epoch": 1,
        "source": "chief",
        "first": 0,
        "reports": [
            {"kind": "metrics", "group": PLANES, "steps_completed": 1, "metrics": metrics, "time": 1e9},
            {"kind": "metrics", "group": "validation", "steps_completed": 2**62, "metrics": NUMBERS, "time": 1e-310},
            {"kind": "metadata", "metadata": VALUES},
            {
                "kind": "checkpoint",
                "uuid": "c-1",
                "steps_completed": 2**62,
                "metadata": VALUES,
                "resources": {PLANES.replace("\0", ""): 2**62},
                "time": 1.5,
            },
        ],
    }
    path = f"/allocations/{run.run.allocation.id}/reports"
    answer = master.ask("POST", path, run.token, content=json.dumps(body).encode())
    assert answer.status_code == 200, answer.text
    return run


def test_they_come_back_as_they_went(listening: tuple[Master, str], tmp_path: pathlib.Path) -> None:
    master, url = listening
    run = report_all(master)
    client = Client(url, session=Session(url, master.owner))
    trial, experiment = (
        Trial(client, client.trial(run.trial_id)),
        Experiment(client, client.experiment(run.experiment_id)),
    )
    metrics = {name: value for name, value in VALUES.items() if value is not None}
    assert bits(trial.hparams) == bits(VALUES)
    assert bits(trial.metadata) == bits(VALUES)
    assert bits(trial._view.latest_validation) == bits({**NUMBERS, "batches": 2**62})
    for found in (trial.iter_metrics(), experiment.iter_metrics()):
        by_group = {row.group: row for row in found}
        assert bits(by_group[PLANES].metrics) == bits(metrics)
        assert bits(by_group["validation"].metrics) == bits(NUMBERS) and by_group["validation"].steps_completed == 2**62
    (row,) = client.trial_metrics(run.trial_id).items
    assert bits(row.metrics) == bits(NUMBERS) and bits(row.time) == bits(1e-310)
    checkpoint = Checkpoint(client, client.checkpoint("c-1"))
    assert bits(checkpoint.metadata) == bits(VALUES) and checkpoint.resources == {PLANES.replace("\0", ""): 2**62}
    checkpoint.add_metadata({"again": VALUES})
    assert bits(client.checkpoint("c-1").metadata["again"]) == bits(VALUES)
    assert experiment.name == f"run {PLANES}"
    experiment.set_notes(PLANES)
    experiment.set_labels([PLANES, "x" * 2**20])
    experiment.reload()
    assert experiment.notes == PLANES and experiment.labels == {PLANES, "x" * 2**20}
    listed = client.experiments(labels=[PLANES]).items
    assert [view.id for view in listed] == [experiment.id]
    table = pyarrow.parquet.read_table(experiment.metrics_to_parquet(tmp_path / "m.parquet", "validation")).to_pylist()
    for name in ("nan", "inf", "minus_inf", "minus_zero", "denormal", "least", "greatest", "third"):
        assert bits(table[0][name]) == bits(NUMBERS[name]), name
    assert table[0]["odd"] == 2**53 + 1 and table[0]["negative"] == -(2**63)
    client.close()


def test_a_browser_gets_json(master: Master) -> None:
    """Figure F29: what has no word in JSON comes as text, to whoever does not say that they know Python's words."""
    run = report_all(master)
    for path in (
        f"/trials/{run.trial_id}",
        f"/trials/{run.trial_id}/metrics",
        f"/trials/{run.trial_id}/series?name=nan",
        f"/trials/{run.trial_id}/metric-names",
        f"/experiments/{run.experiment_id}/trials",
        f"/experiments/{run.experiment_id}",
        "/experiments",
        "/checkpoints/c-1",
    ):
        answer = master.ask("GET", path, headers={"Accept": "application/json"})
        assert answer.status_code == 200, f"{path}: {answer.text[:300]}"
        json.loads(answer.content, parse_constant=refuse)
    found = master.get(f"/trials/{run.trial_id}/metrics")["items"][0]["metrics"]
    assert (found["nan"], found["inf"], found["minus_inf"]) == ("NaN", "Infinity", "-Infinity")
    assert math.copysign(1, found["minus_zero"]) == -1 and found["denormal"] == 1e-310


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def test_half_a_character_is_refused_or_kept_and_never_a_fault(master: Master) -> None:
    half = '"\\ud800"'
    bodies = [
        ("POST", "/experiments", f'{{"config": {half}}}'),
        ("POST", "/runs", f'{{"name": {half}}}'),
        ("POST", "/workspaces", f'{{"name": {half}}}'),
        ("POST", "/checkpoints/delete", f'{{"uuids": [{half}]}}'),
    ]
    for method, path, body in bodies:
        answer = master.ask(method, path, content=body.encode(), headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500, f"{path}: {answer.text}"
    run = Run(master)
    line = f'{{"kind":"metrics","group":"g","steps_completed":1,"metrics":{{"x":{half}}},"time":1.0}}'
    body = f'{{"run_epoch":1,"source":"chief","first":0,"reports":[{line}]}}'
    answer = master.ask("POST", f"/allocations/{run.run.allocation.id}/reports", run.token, content=body.encode())
    assert answer.status_code < 500
    assert master.ask("GET", f"/trials/{run.trial_id}/metrics?group=g").status_code == 200
    assert master.ask("GET", f"/trials/{run.trial_id}/metrics?stream=true").status_code == 200
    assert master.ask("GET", "/experiments?name=%ED%A0%80").status_code < 500
