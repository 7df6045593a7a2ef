"""Lightning's Trainer: a LightningModule and ``fit``, once with everything optional switched off, once as it comes."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import lightning
import torch
from torch import Tensor

from bench.contenders import Marks
from bench.work import Work

# Which of them apply is a matter of taste (few workers, CPU, no rank zero summary); none is news here.
warnings.filterwarnings("ignore", module=r"(lightning|pytorch_lightning|torch)\.")
logging.getLogger("lightning").setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    def __init__(self, work: Work, pace: Marks) -> None:
        super().__init__()
        self.model = work.model()
        self._work = work
        self._pace = pace
        self._chunk = work.case.chunk
        self._reports_loss = work.case.reports_loss
        self._loss_of = work.loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx % self._chunk == 0:
            self._pace.mark()
        inputs, labels = batch
        loss = self._loss_of(self.model(inputs), labels)
        if self._reports_loss:
            self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, labels = batch
        self.log("validation_loss", self._loss_of(self.model(inputs), labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._work.optimizer(self.model)


class Ready:
    """Ready batches; Lightning would take a list for several loaders."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def train(work: Work, pace: Marks) -> None:
    """Without logger, checkpoints, progress bar and summary."""
    _train(
        work,
        pace,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )


def train_with_defaults(work: Work, pace: Marks) -> None:
    """With its progress bar, CSV or TensorBoard logger, and a checkpoint per epoch."""
    _train(work, pace, num_sanity_val_steps=0)


def _train(work: Work, pace: Marks, **options: Any) -> None:
    case = work.case
    module = Module(work, pace)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=work.size,
            strategy="ddp" if work.size > 1 else "auto",
            use_distributed_sampler=False,
            default_root_dir=folder,
            max_epochs=-1,
            max_steps=work.batches,
            log_every_n_steps=case.chunk,
            val_check_interval=case.chunk if case.validates else None,
            limit_val_batches=None if case.validates else 0,
            **options,
        )
        data = work.training_data()
        trainer.fit(module, data if case.loads else Ready(data), work.validation_data() if case.validates else None)
