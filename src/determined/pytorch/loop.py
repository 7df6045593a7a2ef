"""The training loop: batches to the next boundary, then what is due there, until the schedule ends or someone asks
us to stop."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from determined import core
from determined.core.preempt import StopLine
from determined.pytorch import batches, metrics
from determined.pytorch.callbacks import Hooks
from determined.pytorch.checkpointing import Checkpointer
from determined.pytorch.context import PyTorchTrialContext
from determined.pytorch.metrics import keep
from determined.pytorch.progress import Progress
from determined.pytorch.reports import Reports
from determined.pytorch.schedule import Boundary, Schedule
from determined.pytorch.trial import PyTorchTrial
from determined.pytorch.validation import Validation

Step = Callable[[int], None]


@dataclasses.dataclass
class Parts:
    """What the loop works with; none of it changes while it runs."""

    trial: PyTorchTrial
    context: PyTorchTrialContext
    hooks: Hooks
    source: batches.BatchSource
    validation: Validation
    checkpointer: Checkpointer
    reports: Reports
    schedule: Schedule
    preempt: core.PreemptContext
    line: StopLine
    beats: memoryview
    move: Callable[[Any], Any] | None
    rows: list[metrics.Row]  # metrics of the batches since the last boundary

    @functools.cached_property
    def around_batches(self) -> tuple[list[Step], list[Step]]:
        """What must be done before and after each batch, found once."""
        return _around_batches(self)


def train(parts: Parts, progress: Progress, *, step_zero_validation: bool) -> None:
    """Train until the schedule ends or someone asks us to stop.

    { train to the next boundary → report → validate → checkpoint } → finish
    """
    schedule = parts.schedule
    for model in parts.context.models:
        model.train()
    if step_zero_validation and progress.batches_done == 0 and progress.last_validation is None:
        validate(parts, progress)
    if progress.settled < progress.batches_done:
        # The last run left at a boundary, before doing what was due there.
        due = schedule.boundary(progress.batches_done)
        if due is not None:
            progress.last_checkpoint = None  # it was taken before what is due here, so it is not the last word
            settle(due, parts, progress)
    while not schedule.is_over(progress.batches_done):
        boundary = schedule.next(progress.batches_done)
        train_until(boundary.at, parts, progress)
        if parts.line.reached():
            return leave_early(parts, progress)
        settle(boundary, parts, progress)
        if stop_requested(parts):
            return leave_early(parts, progress)
    finish(parts, progress)


def stop_requested(parts: Parts) -> bool:
    """Whether the trial asked to stop, on any rank: ranks must agree, or some would wait for the others forever."""
    distributed, requested = parts.context.distributed, parts.context.get_stop_requested()
    return requested if distributed.size == 1 else any(distributed.allgather(requested))


def train_until(boundary: int, parts: Parts, progress: Progress) -> None:
    """Train to a boundary, or to the batch at which all ranks agreed to stop."""
    if progress.batches_done == progress.settled:
        parts.context.reset_reducers()
    for model in parts.context.models:
        # Only validation puts models into evaluation mode; telling every submodule each time would cost more than
        # all the rest of a boundary.
        if not model.training:
            model.train()
    line = parts.line
    while progress.batches_done < boundary and not line.reached():
        train_within_epoch(boundary, parts, progress)


def train_within_epoch(boundary: int, parts: Parts, progress: Progress) -> None:
    hooks, epoch_len = parts.hooks, progress.epoch_len
    done = progress.batches_done
    epoch_idx = done // epoch_len if epoch_len else 0
    edge = min(boundary, (epoch_idx + 1) * epoch_len) if epoch_len else boundary
    progress.training = True
    if done == epoch_idx * (epoch_len or 0):
        for hook in hooks.training_epoch_start:
            hook(epoch_idx)
    try:
        train_batches(done, edge, epoch_idx, parts, progress)
    finally:
        progress.training = False
    done = progress.batches_done
    if epoch_len and done == (epoch_idx + 1) * epoch_len:
        for hook in hooks.training_epoch_end:
            hook(epoch_idx)
        progress.epochs_done += 1


def train_batches(done: int, edge: int, epoch_idx: int, parts: Parts, progress: Progress) -> None:
    """The innermost loop: what stands here is paid for on every batch."""
    next_batch = parts.source.__next__
    train_batch: Callable[..., Any] = parts.trial.train_batch
    line, beats, move, add_row = parts.line, parts.beats, parts.move, parts.rows.append
    before, after = parts.around_batches
    batch = None
    try:
        while done < edge and done < line.at:
            batch = next_batch()
            if move is not None:
                batch = move(batch)
            for step in before:
                step(done)
            row = keep(train_batch(batch=batch, epoch_idx=epoch_idx, batch_idx=done))
            for step in after:
                step(done)
            add_row(row)
            done += 1
            progress.batches_done = done
            beats[0] = done
    except TypeError as error:
        _explain(error, batch)
        raise


def _explain(error: TypeError, batch: Any) -> None:
    """A batch given to a model as it is: the most common slip, and torch's message does not say what a batch is."""
    kind = type(batch).__name__
    if kind in ("list", "tuple", "dict") and f"not {kind}" in str(error) and hasattr(error, "add_note"):
        parts = ", ".join(map(repr, batch)) if isinstance(batch, dict) else f"{len(batch)} parts"
        error.add_note(
            f"The batch is a {kind} of {parts}, as the data loader made it; take it apart first, as in "
            + ("data = batch[...]" if kind == "dict" else "data, labels = batch")
        )


def _around_batches(parts: Parts) -> tuple[list[Step], list[Step]]:
    """What must be done before and after each batch; usually nothing."""
    context = parts.context
    gradients, precision, epoch_len = context.gradients, context.precision, context.progress.epoch_len
    before: list[Step] = []
    after: list[Step] = []
    if gradients.aggregation_frequency > 1 and context.distributed.size > 1:
        before.append(lambda batch_idx: gradients.begin_batch(batch_idx, context.models))
    if context.profiler is not None:
        profiler = context.profiler
        after.append(lambda batch_idx: profiler.step())
    if precision.scales:
        scaler = precision.scaler
        assert scaler is not None

        def update_scaler(batch_idx: int) -> None:
            if gradients.stepped:
                gradients.stepped = False
                scaler.update()

        after.append(update_scaler)
    automatic = [s for s in context.lr_schedulers if s.step_mode is not s.StepMode.MANUAL_STEP]
    if automatic:

        def step_schedulers(batch_idx: int) -> None:
            if gradients.communicates(batch_idx):
                for scheduler in automatic:
                    for _ in range(scheduler.steps_due(batch_idx, gradients.aggregation_frequency, epoch_len)):
                        scheduler.step()

        after.append(step_schedulers)
    return before, after


def settle(boundary: Boundary, parts: Parts, progress: Progress) -> None:
    """Do what is due at a boundary, in the documented order."""
    report_training(parts, progress)
    if boundary.train_ends:
        parts.reports.progress(progress, parts.schedule)
    if boundary.validate and progress.last_validation != progress.batches_done:
        validate(parts, progress)
    if boundary.checkpoint and parts.checkpointer.is_due():
        save(parts, progress)
    if boundary.report and not boundary.train_ends:
        parts.reports.progress(progress, parts.schedule)


def report_training(parts: Parts, progress: Progress) -> None:
    """Average what the batches since the last boundary returned, report it, and start afresh."""
    rows = parts.rows[:]
    parts.rows.clear()
    progress.settled = progress.batches_done
    parts.checkpointer.prepare()
    parts.reports.training(rows, progress)


def validate(parts: Parts, progress: Progress) -> None:
    """Validate, report, and checkpoint if the policy wants this one."""
    parts.reports.status("validating")
    found = parts.validation.run()
    progress.last_validation = progress.batches_done
    worth_keeping = parts.checkpointer.policy_wants(found)
    parts.reports.validation(found, progress)
    if worth_keeping and parts.checkpointer.is_due():
        save(parts, progress)
    parts.reports.status("training")


def save(parts: Parts, progress: Progress) -> None:
    progress.last_checkpoint = progress.batches_done
    parts.checkpointer.save(parts.rows)


def leave_early(parts: Parts, progress: Progress) -> None:
    """Keep everything where it is, for a later run to go on from."""
    if parts.preempt.asked:
        parts.preempt.acknowledge_preemption_signal()
    if parts.checkpointer.is_due():
        save(parts, progress)


def finish(parts: Parts, progress: Progress) -> None:
    """A run always ends with a validation and a checkpoint of its last batch."""
    if parts.schedule.is_over(progress.batches_done) and progress.last_validation != progress.batches_done:
        validate(parts, progress)
    if parts.checkpointer.is_due():
        save(parts, progress)
