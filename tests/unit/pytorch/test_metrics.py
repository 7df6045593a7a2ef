"""Metrics are kept as they were when their batch returned them, and averaged over batches and ranks."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch

from determined import errors
from determined.pytorch import metrics
from determined.pytorch.target import Target


def averages(*rows: dict[str, Any]) -> dict[str, Any]:
    return metrics.Averages().over_ranks([metrics.Averages().of([metrics.keep(row) for row in rows])])


def test_a_tensor_result_is_the_loss() -> None:
    assert metrics.keep(torch.tensor(2.0)) == {"loss": 2.0}


def test_a_buffer_changed_in_place_later_keeps_its_value_of_then() -> None:
    total = torch.zeros(1)
    vector = torch.zeros(3)
    first = metrics.keep({"total": total, "vector": vector})
    total += 1
    vector += 1
    assert first["total"] == 0.0
    assert first["vector"].tolist() == [0, 0, 0]


def test_kept_metrics_hold_no_graph() -> None:
    weight = torch.ones(3, requires_grad=True)
    assert not metrics.keep({"per_class": weight * 2})["per_class"].requires_grad


def test_each_metric_is_averaged_over_the_batches_that_have_it() -> None:
    assert averages({"a": 1.0}, {"a": torch.tensor(2.0), "b": np.float32(4)}) == {"a": 1.5, "b": 4.0}


def test_arrays_are_averaged_elementwise() -> None:
    assert averages({"v": torch.tensor([1.0, 3.0])}, {"v": torch.tensor([3.0, 5.0])}) == {"v": [2.0, 4.0]}


def test_what_has_no_average_is_none_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    averaging = metrics.Averages()
    with caplog.at_level(logging.WARNING):
        assert averaging.of([{"name": "cat"}]) == {"name": (None, 1)}
        averaging.of([{"name": "dog"}])
    assert len(caplog.records) == 1
    assert "'name' cannot be averaged" in caplog.text


def test_ranks_count_by_their_number_of_batches() -> None:
    assert metrics.Averages().over_ranks([{"a": (1.0, 3)}, {"a": (5.0, 1)}]) == {"a": 2.0}


def test_nan_is_data() -> None:
    assert math.isnan(averages({"loss": float("nan")}, {"loss": 1.0})["loss"])


def test_returning_nothing_asks_for_a_return_statement() -> None:
    with pytest.raises(errors.InvalidExperimentException, match="return statement"):
        metrics.keep(None)


def test_only_strictly_better_validations_are_better() -> None:
    target = Target("error")
    assert target.is_better({"error": 1.0}, None)
    assert target.is_better({"error": 0.5}, 1.0)
    assert not target.is_better({"error": 1.0}, 1.0)
    assert not target.is_better({"error": math.nan}, 1.0)
    assert Target("accuracy", smaller_is_better=False).is_better({"accuracy": 2.0}, 1.0)


def test_a_missing_target_metric_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(RuntimeError, match="accuracy"):
        Target("error").is_better({"accuracy": 1.0}, None)


def test_without_configuration_the_loss_or_the_only_metric_is_the_target() -> None:
    assert Target().value({"loss": 3.0, "f1": 1.0}) == 3.0
    assert Target().value({"f1": 1.0, "batches": 4, "epochs": 1}) == 1.0
    assert Target().value({"f1": 1.0, "recall": 1.0}) is None
