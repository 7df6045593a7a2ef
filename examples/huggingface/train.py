"""A small BERT with Hugging Face's Trainer: `python train.py` on a laptop, or on two processes with
`python -m determined.launch.torch_distributed --nproc 2 train.py`."""

import argparse

import texts
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

from determined import core
from determined.transformers import DetCallback


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=float, default=6)
    parser.add_argument("--output", default="trainer_output", help="where the Trainer keeps its own copies")
    parser.add_argument("--resume", nargs="?", const="latest", help="latest, a checkpoint's uuid, or a path")
    options = parser.parse_args()

    has_gpu = torch.cuda.is_available()
    with core.init(latest_checkpoint=options.resume) as core_context:
        arguments = TrainingArguments(
            output_dir=options.output,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=core_context.distributed.shard_batch_size(16),
            per_device_eval_batch_size=100,
            learning_rate=1e-3,
            logging_steps=20,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            report_to="none",
            disable_tqdm=True,
            ddp_find_unused_parameters=False,
            use_cpu=not has_gpu,
            dataloader_pin_memory=has_gpu,
        )
        det_callback = DetCallback(core_context, arguments)
        trainer = make_trainer(arguments, det_callback)
        trainer.train(resume_from_checkpoint=det_callback.last_checkpoint)
        if det_callback.was_preempted:
            return
        accuracy = trainer.evaluate()["eval_accuracy"]
    if arguments.process_index == 0:
        print(f"accuracy {accuracy:.3f}")


def make_trainer(arguments: TrainingArguments, det_callback: DetCallback) -> Trainer:
    logging.disable_progress_bar()
    set_seed(arguments.seed)
    tokenizer = texts.tokenizer()
    config = BertConfig(
        vocab_size=len(texts.WORDS),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
    )
    trainer = Trainer(
        BertForSequenceClassification(config),
        arguments,
        train_dataset=encode(tokenizer, *texts.make(1000, seed=1)),
        eval_dataset=encode(tokenizer, *texts.make(500, seed=2)),
        processing_class=tokenizer,
        compute_metrics=lambda found: {"accuracy": (found.predictions.argmax(1) == found.label_ids).mean()},
        callbacks=[det_callback],
    )
    # Resolute shows what there is to see.
    trainer.remove_callback(PrinterCallback)
    return trainer


def encode(tokenizer, lines: list[str], labels: list[int]) -> list[dict]:
    return [{"input_ids": ids, "labels": label} for ids, label in zip(tokenizer(lines)["input_ids"], labels)]


if __name__ == "__main__":
    main()
