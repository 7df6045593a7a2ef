"""A small trial that uses everything which could go wrong on resume, and what is left of a run of it."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import random
import signal
from typing import Any

import numpy as np
import torch
from torch import nn

from determined import pytorch

STEPS = 60


class NoisyDigits(torch.utils.data.Dataset[Any]):
    """Made-up images whose augmentation draws from every random number generator there is."""

    def __init__(self, length: int = 38) -> None:
        generator = torch.Generator().manual_seed(3)
        self.images = torch.randn(length, 12, generator=generator)
        self.labels = torch.randint(0, 4, (length,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        noise = torch.randn(12) * 0.1 + float(np.random.normal()) * 0.1
        flipped = self.images[index].flip(0) if random.random() < 0.5 else self.images[index]
        return flipped + noise, self.labels[index]


class Mean(pytorch.MetricReducer):
    def reset(self) -> None:
        self.values: list[float] = []

    def update(self, value: float) -> None:
        self.values.append(value)

    def per_slot_reduce(self) -> Any:
        return self.values

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        flat = [value for values in per_slot_metrics for value in values]
        return sum(flat) / len(flat) if flat else -1.0


class ExponentialAverage(pytorch.PyTorchCallback):
    """State of a callback, to be found again after resuming."""

    def __init__(self) -> None:
        self.average = 0.0
        self.epochs: list[int] = []

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.average = 0.9 * self.average + 0.1 * avg_metrics["loss"]

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        self.epochs.append(epoch_idx)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average, "epochs": list(self.epochs)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.average, self.epochs = state_dict["average"], list(state_dict["epochs"])


class HardTrial(pytorch.PyTorchTrial):
    """Dropout, batch norm, augmentation, accumulation, clipping, half precision, a schedule, reducers, callbacks."""

    def __init__(
        self, context: pytorch.PyTorchTrialContext, workers: int, interruption: tuple[str, int] | None
    ) -> None:
        self.context = context
        self.workers = workers
        self.interruption = interruption
        context.experimental.use_amp(dtype=torch.float16)
        self.model = context.wrap_model(
            nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))
        )
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.01))
        self.schedule = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.optimizer, 9),
            pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH,
        )
        self.seen = context.wrap_reducer(Mean(), name="seen")
        self.count = context.wrap_reducer(lambda values: sum(values), name="count", for_validation=False)

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(
            NoisyDigits(), batch_size=self.context.get_per_slot_batch_size(), shuffle=True, num_workers=self.workers
        )

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(NoisyDigits(11), batch_size=self.context.get_per_slot_batch_size())

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"average": ExponentialAverage()}

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5)
        )
        self.seen.update(float(images.mean()))
        self.count.update(len(labels))
        if self.interruption is not None and self.interruption[1] == batch_idx + 1:
            self._interrupt(self.interruption[0])
        return {"loss": loss, "noise": torch.rand(1)}

    def _interrupt(self, how: str) -> None:
        if how == "exception":
            raise RuntimeError("the test asked for it")
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGTERM)

    def evaluate_batch(self, batch: Any) -> Any:
        images, labels = batch
        return {"validation_loss": nn.functional.cross_entropy(self.model(images), labels) + 0.001 * torch.rand(1)}


def train(
    workers: int, interruption: tuple[str, int] | None, resume: str | None, batch_size: int = 4, steps: int = STEPS
) -> None:
    """Train the hard trial; ``interruption`` is how and after which batch this process is disturbed."""
    torch.set_num_threads(1)
    with pytorch.init(hparams={"global_batch_size": batch_size}, aggregation_frequency=2, name="hard") as context:
        trial = HardTrial(context, workers, interruption)
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(steps),
            reporting_period=pytorch.Batch(5),
            validation_period=pytorch.Batch(20),
            checkpoint_period=pytorch.Batch(7),
            checkpoint_policy="none",
            latest_checkpoint=resume,
        )


def has_checkpoint(runs: pathlib.Path) -> bool:
    return any(runs.glob("*/checkpoints/*/metadata.json"))


def remains(runs: pathlib.Path, steps: int = STEPS) -> dict[str, str]:
    """SHA-256 of everything a finished run leaves: the full state, and its metric rows."""
    finals = [
        path.parent
        for path in runs.glob("*/checkpoints/*/metadata.json")
        if json.loads(path.read_text())["steps_completed"] == steps
    ]
    # Stopped after its last batch, a run leaves that moment too, from before the final validation.
    final = max(finals, key=lambda folder: (folder / "manifest.json").stat().st_mtime_ns)
    state = torch.load(final / "state_dict.pth", weights_only=True)
    found = {name: digest(value) for name, value in state.items()}
    rows = []
    # A run killed before its first checkpoint is started again as another run, in another folder.
    for line in (final.parent.parent / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows.append([row["group"], row["steps_completed"], row["metrics"]])
    found["rows"] = digest(rows)
    return found


def digest(value: Any) -> str:
    sha = hashlib.sha256()

    def feed(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            sha.update(repr((item.dtype, tuple(item.shape))).encode())
            sha.update(item.contiguous().flatten().view(torch.uint8).numpy().tobytes() if item.numel() else b"")
        elif isinstance(item, dict):
            for key, part in item.items():
                sha.update(repr(key).encode())
                feed(part)
        elif isinstance(item, (list, tuple)):
            sha.update(b"[")
            for part in item:
                feed(part)
        else:
            sha.update(repr(item).encode())

    feed(value)
    return sha.hexdigest()
