"""Progress: how far a trial has come; the counters of the loop and nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class Progress:
    """Counters of one trial. Everything here is in its checkpoints."""

    batches_done: int = 0
    epochs_done: int = 0
    epoch_len: int | None = None
    last_validation: int | None = None  # batches done at the last validation
    last_checkpoint: int | None = None  # batches done at the last checkpoint
    settled: int = 0  # batches done at the last boundary whose reports were made
    started: bool = False
    training: bool = False  # inside train_batch: the current batch is the one after batches_done

    @property
    def batch_idx(self) -> int:
        """The batch being trained, or the last one that was."""
        return self.batches_done if self.training else max(self.batches_done - 1, 0)

    @property
    def epoch_idx(self) -> int:
        return self.batch_idx // self.epoch_len if self.epoch_len else 0

    def to_json(self, trial_id: int) -> dict[str, Any]:
        """As it stands in a checkpoint; the first six names are the documented ones."""
        return {
            "trial_id": trial_id,
            "last_ckpt": self.last_checkpoint or 0,
            "step_id": 0,
            "last_val": self.last_validation or 0,
            "batches_trained": self.batches_done,
            "epochs_trained": self.epochs_done,
            "settled": self.settled,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.batches_done = int(state["batches_trained"])
        self.epochs_done = int(state.get("epochs_trained", 0))
        self.last_checkpoint = self.batches_done
        last_validation = state.get("last_val")
        self.last_validation = int(last_validation) if last_validation else None
        # Checkpoints of the predecessor were always taken with the reports of their batch already made.
        self.settled = int(state.get("settled", self.batches_done))
