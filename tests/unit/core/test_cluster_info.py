"""Cluster info comes from the NodeSpec or from the environment, and there is none off-cluster."""

from __future__ import annotations

import pathlib

import pytest

from determined.core import cluster_info
from determined.wire.node_spec import MasterSpec, NodeSpec, TrialSpec


def spec(tmp_path: pathlib.Path, master: MasterSpec | None, trial: TrialSpec | None = None) -> NodeSpec:
    return NodeSpec(
        name="a",
        run_id="1",
        run_folder=tmp_path,
        code_folder=tmp_path,
        config={"data": {"url": "x"}},
        trial=trial,
        master=master,
        latest_checkpoint="c1",
        slots=2,
    )


MASTER = MasterSpec(
    url="http://master", session_token="t", allocation_id="al", run_epoch=3, task_id="task", slot_ids=[0, 1]
)


def test_off_cluster_there_is_none(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster_info.get_cluster_info() is None
    spec(tmp_path, None).write(tmp_path / "spec.json")
    monkeypatch.setenv("DET_NODE_SPEC", str(tmp_path / "spec.json"))
    assert cluster_info.get_cluster_info() is None


def test_a_trial_knows_itself_from_the_node_spec(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = TrialSpec(trial_id=7, experiment_id=5, seed=11, hparams={"lr": 0.1}, steps_completed=20)
    spec(tmp_path, MASTER, trial).write(tmp_path / "spec.json")
    monkeypatch.setenv("DET_NODE_SPEC", str(tmp_path / "spec.json"))
    info = cluster_info.get_cluster_info()
    assert info is not None
    assert (info.master_url, info.task_id, info.allocation_id, info.session_token) == (
        "http://master",
        "task",
        "al",
        "t",
    )
    assert info.latest_checkpoint == "c1" and info.user_data == {"url": "x"} and info.slot_ids == [0, 1]
    assert (info.trial.trial_id, info.trial.experiment_id, info.trial.trial_seed) == (7, 5, 11)
    assert info.trial.hparams == {"lr": 0.1} and info.trial.steps_completed == 20 and info.trial.trial_run_id == 3
    assert (info.container_rank, info.container_slot_counts, info.gpu_uuids) == (0, [2], [])


def test_a_task_that_is_no_trial_has_no_trial_info(tmp_path: pathlib.Path) -> None:
    notebook = spec(tmp_path, MASTER.model_copy(update={"task_type": "NOTEBOOK"}))
    info = cluster_info.from_spec(notebook.model_dump(mode="json"))
    assert info is not None and info.latest_checkpoint is None
    with pytest.raises(RuntimeError, match="NOTEBOOK"):
        _ = info.trial


def test_the_environment_of_a_task_is_honoured() -> None:
    info = cluster_info.from_environment(
        {
            "DET_MASTER": "http://m",
            "DET_CLUSTER_ID": "c",
            "DET_AGENT_ID": "a",
            "DET_SLOT_IDS": "[3]",
            "DET_TASK_ID": "t",
            "DET_ALLOCATION_ID": "al",
            "DET_SESSION_TOKEN": "s",
            "DET_TASK_TYPE": "TRIAL",
            "DET_TRIAL_ID": "1",
            "DET_EXPERIMENT_ID": "2",
            "DET_TRIAL_SEED": "3",
            "DET_HPARAMS": '{"x": 1}',
            "DET_STEPS_COMPLETED": "4",
            "DET_TRIAL_RUN_ID": "5",
            "DET_EXPERIMENT_CONFIG": '{"data": {"k": "v"}}',
            "DET_LATEST_CHECKPOINT": "ck",
        }
    )
    assert info is not None
    assert info.trial == (1, 2, 3, {"x": 1}, {"data": {"k": "v"}}, 4, 5)
    assert (info.latest_checkpoint, info.slot_ids, info.user_data) == ("ck", [3], {"k": "v"})
    assert cluster_info.from_environment({}) is None
