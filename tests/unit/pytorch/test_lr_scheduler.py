"""Learning-rate schedulers are stepped as the documentation of each mode says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from determined.pytorch import LRScheduler

Mode = LRScheduler.StepMode


def scheduler(mode: Mode, frequency: int = 1) -> LRScheduler:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    return LRScheduler(torch.optim.lr_scheduler.StepLR(optimizer, 1), mode, frequency)


def optimizer_batches(n: int, aggregation: int) -> list[int]:
    return [i for i in range(n) if (i + 1) % aggregation == 0]


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 60))
def test_every_batch_catches_up_over_the_aggregation_window(aggregation: int, frequency: int, n: int) -> None:
    wrapped = scheduler(Mode.STEP_EVERY_BATCH, frequency)
    steps = sum(wrapped.steps_due(i, aggregation, 10) for i in optimizer_batches(n, aggregation))
    reached = n // aggregation * aggregation
    assert steps == reached // frequency


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 8), st.integers(1, 60))
def test_every_epoch_steps_once_for_each_epoch_crossed(
    aggregation: int, frequency: int, epoch_len: int, n: int
) -> None:
    wrapped = scheduler(Mode.STEP_EVERY_EPOCH, frequency)
    steps = sum(wrapped.steps_due(i, aggregation, epoch_len) for i in optimizer_batches(n, aggregation))
    last = (n // aggregation) * aggregation - 1
    crossed = (last + aggregation) // epoch_len if last >= 0 else 0
    first = (aggregation - 1) // epoch_len
    assert steps == crossed // frequency - (first // frequency if last >= 0 else 0)


def test_every_optimizer_step_counts_batches() -> None:
    wrapped = scheduler(Mode.STEP_EVERY_OPTIMIZER_STEP, 4)
    assert [i for i in optimizer_batches(16, 2) if wrapped.steps_due(i, 2, None)] == [3, 7, 11, 15]


def test_manual_mode_never_steps() -> None:
    assert sum(scheduler(Mode.MANUAL_STEP).steps_due(i, 1, 5) for i in range(20)) == 0


def test_the_mode_must_be_the_enum() -> None:
    with pytest.raises(TypeError, match="StepMode"):
        scheduler("epoch")  # type: ignore[arg-type]


def test_a_plateau_scheduler_must_be_stepped_by_hand() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(ValueError, match="on_validation_end"):
        LRScheduler(plateau, Mode.STEP_EVERY_EPOCH)
    assert LRScheduler(plateau, Mode.MANUAL_STEP).scheduler is plateau


def test_mode_values_are_those_of_older_code() -> None:
    assert [mode.value for mode in Mode] == [1, 2, 3, 4]
