from __future__ import annotations

from typing import Any

import pytest

from determined.transformers import logs

TRAINING = {"loss": 0.5, "grad_norm": 1.0, "learning_rate": 1e-4, "epoch": 0.5}
VALIDATION = {"eval_loss": 0.4, "eval_runtime": 1.2, "eval_samples_per_second": 9.0, "eval_steps_per_second": 3.0}
SUMMARY = {"train_runtime": 3.0, "train_steps_per_second": 3.3, "total_flos": 1e6, "train_loss": 0.6, "epoch": 2.0}


@pytest.mark.parametrize(
    ("logged", "group"),
    [
        (TRAINING, "training"),
        ({**TRAINING, "train_runtime": 2.0, "train_tokens_per_second": 9.0}, "training"),
        (SUMMARY, "training"),
        ({"my_own": 3}, "training"),
        (VALIDATION, "validation"),
        ({"eval_loss": 0.4}, "validation"),
        ({"eval_news_loss": 0.4, "eval_news_runtime": 1.0}, "validation"),
        ({"test_loss": 0.4, "test_runtime": 1.0}, "test"),
        ({"v1.2_loss": 0.4, "v1.2_runtime": 1.0}, "v1_2"),
    ],
)
def test_knows_the_group(logged: dict[str, Any], group: str) -> None:
    assert logs.group_of(logged) == group


def test_leaves_speed_and_epoch_out() -> None:
    assert logs.metrics_in({**VALIDATION, "epoch": 1.0}) == {"eval_loss": 0.4}
    assert logs.metrics_in(SUMMARY) == {"train_loss": 0.6}
    assert logs.metrics_in(TRAINING) == {"loss": 0.5, "grad_norm": 1.0, "learning_rate": 1e-4}


def test_keeps_a_metric_of_the_users_that_only_looks_like_speed() -> None:
    assert logs.metrics_in({**VALIDATION, "eval_lap_runtime": 7.0}) == {"eval_loss": 0.4, "eval_lap_runtime": 7.0}


def test_knows_the_summary_from_a_report() -> None:
    assert logs.is_summary(SUMMARY)
    assert not logs.is_summary(TRAINING)
