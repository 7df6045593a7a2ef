"""Configs of jobs and other tasks."""

from __future__ import annotations

from typing import Any

import pytest

from determined import config, errors
from determined.config import task

INFERENCE = """\
entrypoint_script: python3 batch_inference.py
data:
    trial_id: 777
    batch_size: 64
resources:
    slots: 8
"""


def test_the_batch_inference_config_of_the_trainer_proposal_loads() -> None:
    loaded = config.load_task(INFERENCE, file="batch_inference.yaml", to_run=True)
    assert loaded.entrypoint == "python3 batch_inference.py"
    assert loaded.data == {"trial_id": 777, "batch_size": 64}
    assert loaded.resources.slots == 8
    assert loaded.notices == ("entrypoint_script is now called entrypoint (batch_inference.yaml, line 1)",)


VALID: list[dict[str, Any]] = [
    {},
    {"description": "d", "work_dir": "/w", "idle_timeout": "20m", "tensorboard_args": ["--x"]},
    {"idle_timeout": 90},
    {"resources": {"slots": 0, "priority": 3, "shm_size": "1g", "resource_pool": "p"}},
    {"environment": {"environment_variables": ["A=1"]}, "notebook_idle_type": "activity"},
]


@pytest.mark.parametrize("written", VALID, ids=str)
def test_a_valid_task_survives_being_written_and_read_again(written: dict[str, Any]) -> None:
    loaded = config.load_task(written)
    assert config.load_task(loaded.as_dict()) == loaded


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ({"resources": {"slots_per_trial": 1}}, "resources.slots_per_trial is not a field; did you mean"),
        ({"searcher": {}}, "searcher is not a field"),
        ({"idle_timeout": "soon"}, 'idle_timeout must be a duration such as "20m" or "1h30m", not \'soon\''),
        ({"idle_timeout": -1}, "idle_timeout must be text, not -1"),
        ({"workspace": "w"}, "project is required with workspace"),
    ],
)
def test_a_mistake_is_said_in_one_clear_sentence(written: dict[str, Any], sentence: str) -> None:
    with pytest.raises(errors.InvalidConfigurationException) as caught:
        config.load_task(written)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("written", "seconds"), [("20m", 1200.0), ("1h30m", 5400.0), ("250ms", 0.25), ("1.5s", 1.5), ("90.0s", 90.0)]
)
def test_durations_are_seconds(written: str, seconds: float) -> None:
    assert task.as_seconds(written) == seconds
    assert config.load_task({"idle_timeout": written}).idle_timeout_seconds == seconds
