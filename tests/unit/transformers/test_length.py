from __future__ import annotations

import pytest

from determined.core import Unit
from determined.transformers.length import require_agreement


@pytest.mark.parametrize(
    ("length", "unit", "max_steps", "epochs"),
    [(100, Unit.BATCHES, 100, 3.0), (3, Unit.EPOCHS, -1, 3.0), (100, None, 100, 3.0), (3, None, -1, 3.0)],
)
def test_takes_lengths_that_agree(length: int, unit: Unit | None, max_steps: int, epochs: float) -> None:
    require_agreement(length, unit, max_steps=max_steps, num_train_epochs=epochs)


@pytest.mark.parametrize(
    ("length", "unit", "max_steps", "epochs", "says"),
    [
        (100, Unit.BATCHES, 50, 3.0, "100 batches, but TrainingArguments has max_steps=50; .* max_steps=100 instead"),
        (100, Unit.BATCHES, -1, 100.0, "has num_train_epochs=100; .* max_steps=100 and leave the other one out"),
        (3, Unit.EPOCHS, 3, 3.0, "3 epochs, but TrainingArguments has max_steps=3; .* num_train_epochs=3 and leave"),
        (3, Unit.EPOCHS, -1, 2.5, "has num_train_epochs=2.5; .* num_train_epochs=3 instead"),
        (7, None, -1, 2.0, "is 7, but TrainingArguments has num_train_epochs=2"),
        (640, Unit.RECORDS, 10, 3.0, "640 records, which TrainingArguments cannot say"),
    ],
)
def test_refuses_lengths_that_differ(length: int, unit: Unit | None, max_steps: int, epochs: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        require_agreement(length, unit, max_steps=max_steps, num_train_epochs=epochs)
