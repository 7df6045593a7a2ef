"""How long to train is said twice, by the search and by TrainingArguments: here they are held to each other."""

from __future__ import annotations

from determined.core import Unit


def require_agreement(length: int, unit: Unit | None, *, max_steps: int, num_train_epochs: float) -> None:
    """Raise ValueError unless the arguments train for exactly the configured length.

    A length without a unit counts steps where the arguments do, else epochs.
    """
    if unit is Unit.RECORDS:
        raise ValueError(
            f"searcher.max_length is {length} records, which TrainingArguments cannot say; give it in batches "
            "(max_steps) or epochs (num_train_epochs)"
        )
    counts_steps = max_steps > 0
    wants_steps = unit is Unit.BATCHES or (unit is None and counts_steps)
    asked = max_steps if counts_steps else num_train_epochs
    if counts_steps == wants_steps and asked == length:
        return
    trains = f"max_steps={max_steps}" if counts_steps else f"num_train_epochs={num_train_epochs:g}"
    wanted = f"max_steps={length}" if wants_steps else f"num_train_epochs={length}"
    instead = f"{wanted} instead" if counts_steps == wants_steps else f"{wanted} and leave the other one out"
    what = "" if unit is None else f" {unit.value.lower()}"
    raise ValueError(
        f"searcher.max_length is {length}{what}, but TrainingArguments has {trains}; they must agree: use {instead}, "
        "or change the config"
    )
