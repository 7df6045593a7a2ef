"""Hugging Face's Trainer, once with everything optional switched off, once as it comes."""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from bench.contenders import Marks
from bench.work import Work

warnings.filterwarnings("ignore", module=r"(transformers|accelerate|torch)\.")


class Model(nn.Module):
    """What the Trainer wants of a model: a loss among its outputs."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.network = work.model()
        self._loss_of = work.loss

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.network(inputs)
        return {"loss": self._loss_of(logits, labels), "logits": logits}


class Trainer(transformers.Trainer):
    """Gets our batches and optimizer, and marks the chunks."""

    def __init__(self, work: Work, pace: Marks, **options: Any) -> None:
        self._work = work
        self._pace = pace
        self._batches_done = 0
        model = Model(work)
        super().__init__(
            model=model,
            optimizers=(work.optimizer(model), None),
            train_dataset=work.dataset(),
            eval_dataset=work.validation_set(),
            **options,
        )

    def get_train_dataloader(self) -> Any:
        data = self._work.training_data()
        if not self._work.case.loads:
            return _Named(data)
        return self.accelerator.prepare(_with_names(data))

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return self.accelerator.prepare(_with_names(self._work.validation_data()))

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        if self._batches_done % self._work.case.chunk == 0:
            self._pace.mark()
        self._batches_done += 1
        return super().training_step(*args, **kwargs)


class _Named(list[Any]):
    """Ready batches with the names the model's forward has for them."""

    def __init__(self, batches: list[Any]) -> None:
        super().__init__({"inputs": inputs, "labels": labels} for inputs, labels in batches)


def _with_names(loader: torch.utils.data.DataLoader[Any]) -> torch.utils.data.DataLoader[Any]:
    def collate(samples: list[Any]) -> dict[str, Tensor]:
        inputs, labels = torch.utils.data.default_collate(samples)
        return {"inputs": inputs, "labels": labels}

    return torch.utils.data.DataLoader(
        loader.dataset, batch_size=loader.batch_size, sampler=loader.sampler, collate_fn=collate
    )


def train(work: Work, pace: Marks) -> None:
    """Without progress bar, log and checkpoints."""
    _train(work, pace, disable_tqdm=True, logging_strategy="no", save_strategy="no")


def train_with_defaults(work: Work, pace: Marks) -> None:
    """With its progress bar, a log line per chunk, and a checkpoint every 500 batches."""
    _train(work, pace, logging_steps=work.case.chunk)


def _train(work: Work, pace: Marks, **options: Any) -> None:
    case = work.case
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            per_device_train_batch_size=case.batch_size,
            max_steps=work.batches,
            lr_scheduler_type="constant",
            max_grad_norm=0,
            report_to="none",
            eval_strategy="steps" if case.validates else "no",
            eval_steps=case.chunk if case.validates else None,
            prediction_loss_only=True,
            remove_unused_columns=False,
            ddp_backend="gloo" if work.size > 1 else None,
            **options,
        )
        Trainer(work, pace, args=arguments).train()
