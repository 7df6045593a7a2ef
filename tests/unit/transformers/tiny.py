"""A BERT of a few hundred weights and a Trainer for it: what the tests of the callback train, in a second."""

from __future__ import annotations

import hashlib
import pathlib
import random
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.utils import logging

from determined import core
from determined.transformers import DetCallback

WORDS = ["[PAD]", "[UNK]", "red", "green", "blue", "cat", "dog", "bird"]
# 48 texts in batches of 8: an epoch has 6 steps.
STEPS_PER_EPOCH = 6

logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]"
    )


class Texts(torch.utils.data.Dataset[dict[str, Any]]):
    """Short texts, and whether there is a cat in them."""

    def __init__(self, first: int = 0, last: int = 48) -> None:
        chance = random.Random(0)
        lines = [" ".join(chance.choices(WORDS[2:], k=6)) for _ in range(48)]
        found = tokenizer()(lines)["input_ids"]
        self._rows = [{"input_ids": ids, "labels": int("cat" in line)} for ids, line in zip(found, lines)][first:last]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]


def bert() -> transformers.PreTrainedModel:
    """Random weights, the same every time. With dropout, so that a lost random state would be noticed."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    return transformers.BertForSequenceClassification(config)


def arguments(output: pathlib.Path, **given: Any) -> transformers.TrainingArguments:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "logging_steps": 4,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "ddp_find_unused_parameters": False,
        **given,
    }
    return transformers.TrainingArguments(output_dir=str(output), **settings)


def trainer(
    settings: transformers.TrainingArguments, *callbacks: transformers.TrainerCallback, **given: Any
) -> transformers.Trainer:
    made = transformers.Trainer(
        bert(), settings, train_dataset=Texts(), eval_dataset=Texts(0, 16), callbacks=list(callbacks), **given
    )
    made.remove_callback(transformers.PrinterCallback)
    return made


class At(transformers.TrainerCallback):
    """Calls a function when a step begins."""

    def __init__(self, step: int, act: Any) -> None:
        self._step, self._act = step, act

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self._step:
            self._act()


def train(
    context: core.Context,
    output: pathlib.Path,
    *others: transformers.TrainerCallback,
    user_data: dict[str, Any] | None = None,
    **given: Any,
) -> tuple[transformers.Trainer, DetCallback]:
    """Train as a script would, from where the context says."""
    settings = arguments(output, **given)
    callback = DetCallback(context, settings, user_data=user_data)
    made = trainer(settings, callback, *others)
    made.train(resume_from_checkpoint=callback.last_checkpoint)
    return made, callback


def digest(model: torch.nn.Module | None) -> str:
    """The weights, as something short to compare."""
    assert model is not None
    sha = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        sha.update(name.encode())
        sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()


def rows(context: core.Context, group: str) -> list[tuple[int, dict[str, Any]]]:
    return [(row["steps_completed"], row["metrics"]) for row in context.run.rows(group)]


def steps(found: Sequence[Any]) -> list[int]:
    return [entry.steps_completed for entry in found]
