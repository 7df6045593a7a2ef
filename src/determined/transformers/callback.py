"""DetCallback: what connects Hugging Face's Trainer with a core.Context, on a laptop and on a cluster."""

from __future__ import annotations

import inspect
import logging
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import transformers
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from determined import core, errors
from determined.core.beats import COUNT_BITS
from determined.pytorch import rng
from determined.transformers import length, logs, resuming

logger = logging.getLogger("determined.transformers")

_BEAT_BITS = 64


class DetCallback(TrainerCallback):
    """Reports what the Trainer logs, keeps what it saves, and stops and resumes it.

    Make it on every rank, before the Trainer starts, and begin training with
    ``trainer.train(resume_from_checkpoint=det_callback.last_checkpoint)``: without that a run that was interrupted
    would start over, which is refused. ``filter_metrics(metrics, group)`` gives the metrics to report instead of those
    the Trainer logged; one that takes the metrics alone will do. ``user_data`` is kept in the metadata of every
    checkpoint. Raises ValueError when the config has a ``searcher.max_length`` and ``args`` trains for another length.
    """

    last_checkpoint: str | None
    """The folder to resume from, for ``trainer.train()``; None when this run starts at the beginning."""
    was_preempted: bool
    """Whether training was asked to stop, and did, before it was done."""

    def __init__(
        self,
        core_context: core.Context,
        args: TrainingArguments,
        filter_metrics: Callable[..., Mapping[str, Any]] | None = None,
        user_data: dict[str, Any] | None = None,
    ) -> None:
        self._core = core_context
        self._args = args
        self._is_chief = core_context.distributed.rank == 0
        self._filter = _taking_group(filter_metrics)
        self._user_data = user_data
        self._searcher: Mapping[str, Any] = (core_context.config or {}).get("searcher") or {}
        self._searcher_value: Any = None
        self._operation = self._find_operation(args)
        self._reported: dict[str, tuple[int, dict[str, Any]]] = {}
        self._steps = 0
        self._first_step = 0
        self._end: tuple[int, float] | None = None
        self._evaluated_at = self._saved_at = -1
        self._save_at_epoch_end = False
        self._has_reached_target = False
        self._randomness: dict[str, Any] | None = None
        self._line: core.StopLine | None = None
        self.was_preempted = False
        self.last_checkpoint = None
        self._resumes_at: int | None = None
        _require_same_gang(args, core_context.distributed.size)
        _require_resumable(args, core_context.distributed.cross_size)
        self._keep_by_policy(args)
        if core_context.found is not None:
            self._resume_from(resuming.place(core_context, core_context.found, _output_dir(args)))

    def load_last_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Resume from the newest of the Trainer's checkpoints below a folder instead."""
        self._resume_from(resuming.newest(pathlib.Path(path)))

    # --- the Trainer's events, in the order in which they come

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._require_resumed(state)
        self._steps = self._first_step = state.global_step
        # A checkpoint of the very end, in the middle of an epoch: the Trainer would do one more step before it looks.
        self._end = (state.global_step, state.epoch) if 0 < state.max_steps <= state.global_step else None
        self._evaluated_at = self._saved_at = -1
        self._save_at_epoch_end = False
        self.was_preempted = False
        self._line = self._core.preempt.stop_line(lambda: self._steps)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._end is not None:
            for group in kwargs["optimizer"].param_groups:
                group["lr"] = 0.0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._end is not None:
            state.global_step, state.epoch = self._end
            control.should_training_stop = True
            control.should_save = control.should_evaluate = control.should_log = False
            return
        self._steps = state.global_step
        self._core.beats[0] = self._steps
        if self._steps == self._first_step + 1:
            self._report_progress(state)
        if self._steps < state.max_steps and self._line is not None and self._line.reached():
            self.was_preempted = control.should_training_stop = True
            self._core.preempt.acknowledge_preemption_signal()
        elif self._core.has_reached_target(
            batches=self._steps, epochs=state.epoch or 0.0, records=self._steps * _records_of_a_step(args)
        ):
            # With an evaluation and a save, as at the end.
            self._has_reached_target = control.should_training_stop = True
        if control.should_training_stop or _is_at_end_of_epoch(state):
            # What is due at the end of an epoch comes after this, and must be in what is saved: a resumed run does
            # not do it again.
            self._save_at_epoch_end = control.should_save
            control.should_save = False
        if args.save_strategy == "best" and control.should_training_stop and self._may_evaluate(args, state):
            # With this strategy an evaluation decides whether to save; the end of the epoch is for saving in any case.
            control.should_evaluate = True

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        beats = self._core.beats
        if beats[0]:
            beats[0] = (beats[0] + (1 << COUNT_BITS)) % (1 << _BEAT_BITS)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._end is not None:
            control.should_save = control.should_evaluate = control.should_log = False
            return
        step = state.global_step
        control.should_save = control.should_save or self._save_at_epoch_end
        self._save_at_epoch_end = False
        if control.should_training_stop or (state.epoch or 0) >= state.num_train_epochs:
            # Whatever the Trainer's strategies say, training leaves a checkpoint of where it ended; and an evaluation,
            # unless it will go on.
            control.should_log = args.logging_strategy != "no"
            if self._may_evaluate(args, state) and not self.was_preempted:
                if self._has_reached_target and not control.should_evaluate and self._evaluated_at != step:
                    # It would not be there if training went on: whoever goes on must not notice that it was.
                    self._randomness = rng.capture()
                control.should_evaluate = True
            control.should_save = True
        if self.was_preempted and not _is_at_end_of_epoch(state):
            control.should_evaluate = False  # the epoch is not over, whatever the Trainer thinks
        if self._evaluated_at == step:
            control.should_evaluate = False
        if self._saved_at == step and not control.should_evaluate:
            control.should_save = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if self._is_chief and logs:
            self._report(logs, state)
            self._report_progress(state)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._evaluated_at = state.global_step
        if self._randomness is not None:
            rng.restore(self._randomness)
            self._randomness = None

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._saved_at = state.global_step
        ranks = self._core.distributed
        if ranks.size > 1:
            # Every rank writes files of its own; none may look before all have written.
            ranks.allgather(None)
        saved = _output_dir(args) / f"checkpoint-{state.global_step}"
        metadata: dict[str, Any] = {
            "steps_completed": state.global_step,
            "framework": f"transformers-{transformers.__version__}",
        }
        if self._user_data is not None:
            metadata["user_data"] = self._user_data
        try:
            self._core.checkpoint.upload(saved if saved.is_dir() else None, metadata, shard=True)
        except errors.CheckpointStateException as error:
            logger.error("A CHECKPOINT COULD NOT BE KEPT: %s. Training goes on; %s is there.", error, saved)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._line is not None:
            self._line.finish()
        self._core.beats[0] = 0  # what the script does from here on is not training, and may take its time
        if self._is_chief and not self.was_preempted:
            self._complete()
            if self._has_reached_target and state.max_steps > 0:
                self._core.train.report_progress(min(state.global_step / state.max_steps, 1.0))

    # --- below

    def _find_operation(self, args: TrainingArguments) -> core.SearcherOperation | None:
        """What the search wants trained; None when the config names no length, and the arguments alone decide."""
        if self._searcher.get("max_length") is None:
            return None
        operation = next(iter(self._core.searcher.operations()))
        length.require_agreement(
            operation.max_length,
            self._core.searcher.get_configured_units(),
            max_steps=args.max_steps,
            num_train_epochs=args.num_train_epochs,
        )
        return operation

    def _keep_by_policy(self, args: TrainingArguments) -> None:
        if self._searcher.get("metric"):
            self._core.keep_by_policy()
            return
        name = args.metric_for_best_model or "loss"
        name = name if name.startswith("eval_") else f"eval_{name}"
        self._core.keep_by_policy(name, smaller_is_better=not args.greater_is_better)

    def _resume_from(self, checkpoint: pathlib.Path) -> None:
        self.last_checkpoint = str(checkpoint)
        self._resumes_at = resuming.steps_in(checkpoint)
        self._args.resume_from_checkpoint = self.last_checkpoint  # scripts made from Hugging Face's examples look there

    def _require_resumed(self, state: TrainerState) -> None:
        wanted, self._resumes_at = self._resumes_at, None
        if wanted is not None and state.global_step != wanted:
            raise ValueError(
                f"this run goes on from step {wanted}, but training begins at step {state.global_step}; start it with "
                "trainer.train(resume_from_checkpoint=det_callback.last_checkpoint)"
            )

    def _may_evaluate(self, args: TrainingArguments, state: TrainerState) -> bool:
        """Whether to evaluate at the end: the Trainer has data for it, and a stop in mid-epoch is not the end."""
        return args.eval_strategy != "no" and (not self.was_preempted or _is_at_end_of_epoch(state))

    def _report(self, logged: Mapping[str, Any], state: TrainerState) -> None:
        if logs.is_summary(logged) and (self._first_step > 0 or self.was_preempted):
            return  # a mean over a part of the training only, whichever part an interruption left
        group, step = logs.group_of(logged), state.global_step
        metrics = self._filter(logs.metrics_in(logged), group)
        if group == "validation":
            self._searcher_value = metrics.get(self._searcher.get("metric") or "", self._searcher_value)
        known_at, known = self._reported.get(group, (-1, {}))
        if known_at != step:
            known = {"batches": step, "epochs": state.epoch or 0.0}
            fresh = {**metrics, **known}
        else:
            fresh = {name: value for name, value in metrics.items() if name not in known}
            changed = [name for name, value in metrics.items() if name in known and repr(known[name]) != repr(value)]
            if changed:
                logger.warning(
                    "%s was measured again at step %d and is not reported twice; to keep both, evaluate with another "
                    "metric_key_prefix",
                    changed[0],
                    step,
                )
        self._reported[group] = (step, {**known, **metrics})
        if fresh.keys() - {"batches", "epochs"}:
            self._core.train.report_metrics(group, step, fresh)

    def _report_progress(self, state: TrainerState) -> None:
        if not self._is_chief or state.max_steps <= 0:
            return
        fraction = min(state.global_step / state.max_steps, 1.0)
        if self._operation is not None and not self._operation.completed:
            self._operation.report_progress(fraction * self._operation.max_length)
        else:
            self._core.train.report_progress(fraction)

    def _complete(self) -> None:
        metric = self._searcher.get("metric")
        if metric and self._searcher_value is None:
            logger.warning(
                "searcher.metric is %s, which no evaluation gave; it gave %s",
                metric,
                ", ".join(sorted(self._reported.get("validation", (0, {}))[1])) or "nothing at all",
            )
        if self._core.target[0] is None and (self._operation is None or self._operation.completed):
            self._core.train.report_progress(1.0)
        elif self._operation is not None and not self._operation.completed:
            self._operation.report_completed(self._searcher_value)


def _records_of_a_step(args: TrainingArguments) -> int:
    return int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)


def _output_dir(args: TrainingArguments) -> pathlib.Path:
    return pathlib.Path(str(args.output_dir))


def _is_at_end_of_epoch(state: TrainerState) -> bool:
    return state.epoch == int(state.epoch)


def _taking_group(
    filter_metrics: Callable[..., Mapping[str, Any]] | None,
) -> Callable[[dict[str, Any], str], Mapping[str, Any]]:
    """A user's filter, which may or may not want to know the group."""
    if filter_metrics is None:
        return lambda metrics, group: metrics
    try:
        inspect.signature(filter_metrics).bind({}, "validation")
    except TypeError:
        return lambda metrics, group: filter_metrics(metrics)
    return filter_metrics


def _require_same_gang(args: TrainingArguments, size: int) -> None:
    if args.world_size != size:
        instead = (
            "without GPUs the Trainer joins the other processes only with TrainingArguments(use_cpu=True)"
            if size > 1 and not args.use_cpu
            else "start the script with determined.launch.torch_distributed or torchrun, so that core.init() finds them"
        )
        raise ValueError(
            f"the Trainer runs on {_count(args.world_size)}, but the core context knows of {size}; {instead}"
        )


def _count(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _require_resumable(args: TrainingArguments, machines: int) -> None:
    if args.save_only_model:
        logger.warning(
            "save_only_model=True leaves the optimizer out of checkpoints: an interrupted run cannot go on exactly "
            "where it was"
        )
    if args.save_on_each_node and machines > 1:
        raise ValueError(
            "save_on_each_node=True would give one checkpoint several versions of its files; leave it out, what "
            "each machine writes is put together anyway"
        )
