"""A trial without a model: what it reports and saves follows from its hyperparameters alone, step by step."""

from __future__ import annotations

import hashlib
import json
import pathlib
import threading

import determined as det
from determined import core

STEPS = 12
EVERY = 3


def main() -> None:
    info = det.get_cluster_info()
    assert info is not None
    pause = threading.Event()
    hparams = info.trial.hparams
    seconds, steps, every = hparams.get("step_seconds", 0.1), hparams.get("steps", STEPS), hparams.get("every", EVERY)
    with core.init() as context:
        step, state = 0, repr(sorted(hparams.items()))
        if info.latest_checkpoint is not None:
            with context.checkpoint.restore_path(info.latest_checkpoint) as path:
                step, state = json.loads((path / "state.json").read_text())
        while step < steps:
            pause.wait(seconds)
            step += 1
            state = hashlib.sha256(f"{state}|{step}".encode()).hexdigest()
            value = int(state[:8], 16) / 2**32
            context.train.report_training_metrics(step, {"loss": value, "state": state})
            context.train.report_progress(step / steps)
            if step % every == 0:
                context.train.report_validation_metrics(step, {"error": value / 2, "epochs": step // every})
                save(context, step, state)
            if context.preempt.should_preempt():
                save(context, step, state)
                return


def save(context: core.Context, step: int, state: str) -> None:
    with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
        pathlib.Path(path, "state.json").write_text(json.dumps([step, state]))


if __name__ == "__main__":
    main()
