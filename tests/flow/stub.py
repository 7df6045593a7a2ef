"""A trial without a model: what it reports and saves follows from its hyperparameters alone, step by step.

With ``STUB_WAITS=training:FILE`` (or ``checkpoint:FILE``) in its environment it stops in its fifth step (while it saves
its second checkpoint), leaves ``FILE.here``, and goes on when there is a FILE, or, in a step, when it is asked to stop.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import determined as det
from determined import core

STEPS = 12
EVERY = 3


def course(hparams: Mapping[str, Any]) -> Iterator[tuple[int, str, float]]:
    """Each step with the state after it and the loss, from the first on."""
    state = repr(sorted(hparams.items()))
    for step in range(1, hparams.get("steps", STEPS) + 1):
        state, loss = advance(state, step)
        yield step, state, loss


def advance(state: str, step: int) -> tuple[str, float]:
    state = hashlib.sha256(f"{state}|{step}".encode()).hexdigest()
    return state, int(state[:8], 16) / 2**32


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
            state, value = advance(state, step)
            context.train.report_training_metrics(step, {"loss": value, "state": state})
            context.train.report_progress(step / steps)
            if step % every == 0:
                context.train.report_validation_metrics(step, {"error": value / 2, "epochs": step // every})
                save(context, step, state)
            if step == 5:
                wait_at("training", context)
            if context.preempt.should_preempt():
                save(context, step, state)
                return


def save(context: core.Context, step: int, state: str) -> None:
    with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
        pathlib.Path(path, "state.json").write_text(json.dumps([step, state]))
        if step == 2 * EVERY:
            wait_at("checkpoint")


def wait_at(moment: str, stoppable: core.Context | None = None) -> None:
    wanted, _, name = os.environ.get("STUB_WAITS", "").partition(":")
    if wanted != moment or os.path.exists(name):
        return
    pathlib.Path(f"{name}.here").touch()
    pause = threading.Event()
    while not os.path.exists(name) and not (stoppable is not None and stoppable.preempt.should_preempt()):
        pause.wait(0.02)


if __name__ == "__main__":
    main()
