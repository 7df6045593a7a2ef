"""Trainer: checks what it was given, puts the parts of the loop together, and runs it."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from determined import errors
from determined.config import units
from determined.core import Context
from determined.pytorch import batches, data, loop, oldest, parallel, restoring, rng, sharded, state
from determined.pytorch.callbacks import Hooks
from determined.pytorch.checkpointing import Checkpointer
from determined.pytorch.context import PyTorchTrialContext
from determined.pytorch.reports import Reports
from determined.pytorch.schedule import Schedule
from determined.pytorch.target import Target
from determined.pytorch.trial import PyTorchTrial, overrides
from determined.pytorch.validation import Validation

logger = logging.getLogger("determined.pytorch")

_UNITS: dict[str, type[units.TrainUnit]] = {"batches": units.Batch, "epochs": units.Epoch, "records": units.Record}


class Trainer:
    """Trains a trial. ``context`` is the one the trial was made with."""

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        self._trial = trial
        self._context = context
        self._adapted: PyTorchTrial | None = None

    def configure_profiler(
        self,
        sync_timings: bool = True,
        enabled: bool = False,
        begin_on_batch: int = 0,
        end_after_batch: int | None = None,
    ) -> None:
        """Deprecated and without effect; use ``fit(profiling_enabled=True)`` or ``context.set_profiler()``."""
        logger.error(
            "Trainer.configure_profiler is deprecated and does nothing; use fit(profiling_enabled=True) for system "
            "metrics, or context.set_profiler() for torch's profiler"
        )

    def fit(
        self,
        checkpoint_period: units.TrainUnit | None = None,
        validation_period: units.TrainUnit | None = None,
        max_length: units.TrainUnit | None = None,
        reporting_period: units.TrainUnit = units.Batch(100),
        checkpoint_policy: str = "best",
        latest_checkpoint: str | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
    ) -> dict[str, Any]:
        """Train until ``max_length``, and return the last validation metrics (on the chief).

        Periods of None mean never, though a run always ends with a validation and a checkpoint.
        ``latest_checkpoint`` is what to go on from: ``"latest"``, a checkpoint's uuid, or a path.
        """
        return self.fit_on(
            None,
            None,
            checkpoint_period=checkpoint_period,
            validation_period=validation_period,
            max_length=max_length,
            reporting_period=reporting_period,
            checkpoint_policy=checkpoint_policy,
            latest_checkpoint=latest_checkpoint,
            step_zero_validation=step_zero_validation,
            test_mode=test_mode,
            profiling_enabled=profiling_enabled,
        )

    def fit_on(
        self,
        train_data: Any,
        val_data: Any,
        *,
        checkpoint_period: units.TrainUnit | None,
        validation_period: units.TrainUnit | None,
        max_length: units.TrainUnit | None,
        reporting_period: units.TrainUnit,
        checkpoint_policy: str,
        latest_checkpoint: str | None,
        step_zero_validation: bool,
        test_mode: bool,
        profiling_enabled: bool,
    ) -> dict[str, Any]:
        """``fit`` on these loaders; None stands for the trial's own."""
        context, core_context = self._context, self._context.core_context
        if not isinstance(self._trial, PyTorchTrial):
            raise TypeError(
                f"Trainer trains a det.pytorch.PyTorchTrial, not a {type(self._trial).__name__}"
                + (" class; make an object of it first" if isinstance(self._trial, type) else "")
            )
        if core_context is None:
            raise errors.InvalidExperimentException(
                "a context made to load a checkpoint cannot train; make the trial with det.pytorch.init()"
            )
        core_context.console.unit = "batch"
        is_managed = core_context.info is not None
        if test_mode and is_managed:
            raise ValueError("test_mode is for local runs; on a cluster use det experiment create --test")
        trial = self._adapt()
        checkpoint_period = self._as_batches(checkpoint_period, "checkpoint_period")
        validation_period = self._as_batches(validation_period, "validation_period")
        reporting_period = self._as_batches(reporting_period, "reporting_period") or units.Batch(100)
        max_length = units.Batch(1) if test_mode else self._length(max_length, is_managed)
        self._check(trial)

        distributed, progress = context.distributed, context.progress
        move = _mover(context) if context.moves_batches else None
        hooks = Hooks(trial.build_callbacks())
        target = Target.of(context.settings.exp_conf)
        checkpointer = Checkpointer(
            context, hooks, core_context, policy=checkpoint_policy, target=target, trial_class=type(self._trial)
        )
        reports = Reports(core_context, context, hooks)
        saved = restoring.open_checkpoint(
            core_context, latest_checkpoint, trial_id=context.get_trial_id(), into=state.present(context)
        )
        if saved is not None and saved.counters is not None:
            progress.restore(saved.counters)
        seed = context.get_trial_seed()
        with contextlib.ExitStack() as closing:
            closing.callback(checkpointer.wait)
            closing.callback(_stop_watching, core_context.beats)
            closing.callback(_call_each, hooks.trial_shutdown)
            for startup_hook in hooks.trial_startup:
                startup_hook(progress.batches_done, saved.uuid if saved else None)
            train_data = self._loader(trial, train_data, "training")
            source = batches.training_batches(
                train_data,
                seed=seed,
                start_batch=progress.batches_done,
                rank=distributed.rank,
                size=distributed.size,
                fast_forward=not context.asked_initial_batch,
            )
            closing.callback(source.close)
            closing.callback(_close_loader, train_data)
            epoch_len = source.epoch_len
            # Ranks may hold one batch more or less; the chief's length is everybody's.
            progress.epoch_len = distributed.broadcast(epoch_len) if distributed.size > 1 else epoch_len
            val_data = self._loader(trial, val_data, "validation")
            closing.callback(_close_loader, val_data)
            rows: list[dict[str, Any]] = []
            kept = self._put_back(saved, hooks, rows)
            parts = loop.Parts(
                trial=trial,
                context=context,
                hooks=hooks,
                source=source,
                validation=Validation(
                    trial,
                    context,
                    hooks,
                    val_data,
                    seed=seed,
                    move=move,
                    beats=core_context.beats,
                    max_batches=1 if test_mode else None,
                ),
                checkpointer=checkpointer,
                reports=reports,
                schedule=Schedule(
                    max_length,
                    validation_period,
                    checkpoint_period,
                    reporting_period,
                    progress.epoch_len,
                    self._target(core_context, max_length),
                ),
                preempt=core_context.preempt,
                line=core_context.preempt.stop_line(lambda: progress.batches_done),
                beats=core_context.beats,
                move=move,
                rows=rows,
            )
            closing.callback(parts.line.finish)
            if parts.schedule.end < 1:
                raise errors.InvalidExperimentException(f"max_length must be at least 1, not {max_length!r}")
            progress.started = True
            for start_hook in hooks.training_start:
                start_hook()
            if profiling_enabled:
                core_context.profiler.on()
                closing.callback(core_context.profiler.off)
            if context.profiler is not None:
                closing.enter_context(context.profiler)
            if kept is not None:
                rng.restore(kept.rng)  # last of all: what comes before may have drawn from them
            with _invalid_hp_is_checkpointed(parts, progress):
                loop.train(parts, progress, step_zero_validation=step_zero_validation)
            return parts.validation.last
        raise AssertionError("unreachable")

    def _adapt(self) -> PyTorchTrial:
        if self._adapted is None:
            self._adapted = oldest.adapt(self._trial, self._context)
        return self._adapted

    def _put_back(
        self, saved: restoring.Saved | None, hooks: Hooks, rows: list[dict[str, Any]]
    ) -> state.RankState | None:
        """Load a checkpoint into everything but the random numbers."""
        if saved is None:
            for hook in hooks.checkpoint_load_start:
                hook(None)
            return None
        context = self._context
        for hook in hooks.checkpoint_load_start:
            hook(saved.state)
        if saved.is_sharded:
            pending = saved.state.get(state.EXTRAS, {}).get("sharded_gradients", [])
            sharded.load(context.models, context.optimizers, saved.folder, pending)
        state.put_back(saved.state, context, hooks, sharded=saved.is_sharded)
        kept = state.rank_state(saved.state, context.distributed.rank, context.distributed.size)
        if kept is not None and kept.window is not None:
            state.reopen_window(context, kept.window)
        if kept is not None and context.progress.settled < context.progress.batches_done:
            rows.extend(kept.rows)
            context.reducers.reset()
            context.reducers.restore(kept.reducers)
        return kept

    def _check(self, trial: PyTorchTrial) -> None:
        context, name = self._context, type(self._trial).__name__
        if not context.models:
            raise errors.InvalidExperimentException(
                f"{name} wrapped no model; call self.model = context.wrap_model(model) in __init__"
            )
        if not context.optimizers:
            raise errors.InvalidExperimentException(
                f"{name} wrapped no optimizer; call self.optimizer = context.wrap_optimizer(optimizer) in __init__"
            )
        if not overrides(trial, "train_batch"):
            raise errors.InvalidExperimentException(f"{name} does not define train_batch()")
        by_batch, whole = overrides(trial, "evaluate_batch"), overrides(trial, "evaluate_full_dataset")
        if by_batch == whole:
            raise errors.InvalidExperimentException(
                f"{name} must define exactly one of evaluate_batch() and evaluate_full_dataset(); "
                + ("it defines both" if by_batch else "it defines neither")
            )
        self._warn_of_unwrapped()

    def _warn_of_unwrapped(self) -> None:
        """What is not wrapped is not in checkpoints; a user should hear of it before it matters."""
        context = self._context
        wrapped = {id(m) for model in context.models for m in parallel.unwrap(model).modules()}
        wrapped |= {id(model) for model in context.models} | {id(o) for o in context.optimizers}
        for name, value in vars(self._trial).items():
            is_model = isinstance(value, nn.Module) and any(p.requires_grad for p in value.parameters())
            if id(value) in wrapped or not (is_model or isinstance(value, torch.optim.Optimizer)):
                continue
            if is_model and all(id(m) in wrapped for m in value.modules() if any(True for _ in m.parameters(False))):
                continue
            logger.warning(
                "self.%s is %s that was not wrapped: its state is in no checkpoint and will be lost on resume. "
                "Use context.%s",
                name,
                "a model" if is_model else "an optimizer",
                "wrap_model" if is_model else "wrap_optimizer",
            )

    def _length(self, max_length: units.TrainUnit | None, is_managed: bool) -> units.TrainUnit:
        configured = _configured_length(self._context.settings.exp_conf)
        if max_length is None or (is_managed and configured is not None):
            max_length = configured
        if max_length is None:
            raise ValueError(
                "max_length is missing: say how long to train, as fit(max_length=det.pytorch.Epoch(10)) or in the "
                "configuration's searcher.max_length"
            )
        length = self._as_batches(max_length, "max_length")
        assert length is not None
        if not isinstance(length.value, int):
            raise TypeError(f"max_length must be Batch(n) or Epoch(n) with a whole number, not {max_length!r}")
        return length

    def _target(self, core_context: Context, max_length: units.TrainUnit) -> units.TrainUnit | None:
        """Up to where the search wants this trial for now; in the unit of ``max_length`` unless it says another."""
        target, name = core_context.target
        if target is None:
            return None
        kind = _UNITS[name] if name is not None else type(max_length)
        return self._as_batches(kind(max(math.ceil(target), 1)), "target")

    def _as_batches(self, unit: units.TrainUnit | None, argument: str) -> units.TrainUnit | None:
        if unit is None:
            return None
        if not isinstance(unit, units.TrainUnit):
            raise TypeError(
                f"{argument} must be a det.pytorch.Batch or det.pytorch.Epoch, such as Batch({unit!r}), not {unit!r}"
            )
        if isinstance(unit, units.Record):
            return unit.to_batches(self._context.get_global_batch_size())
        return unit

    def _loader(self, trial: PyTorchTrial, given: Any, which: str) -> Any:
        method = f"build_{which}_data_loader"
        if given is None:
            user_trial = trial.trial if isinstance(trial, oldest.OldestTrial) else trial
            if not overrides(user_trial, method):
                raise errors.InvalidExperimentException(
                    f"there is no {which} data: define {method}() in {type(user_trial).__name__}, "
                    "or pass loaders to context.fit(trial, train_data, val_data)"
                )
            given = getattr(trial, method)()
        if given is None:
            raise errors.InvalidExperimentException(f"{method}() returned None; is a return statement missing?")
        if isinstance(given, torch.utils.data.DataLoader) and self._context.checks_loaders:
            raise RuntimeError(
                f"{method}() gave a plain torch DataLoader. Use det.pytorch.DataLoader, which takes the same "
                "arguments, shards data over ranks and resumes exactly; or you can disable this check by calling "
                "context.experimental.disable_dataset_reproducibility_checks() in the trial's __init__, and shard the "
                "data yourself"
            )
        return given


def _configured_length(config: dict[str, Any] | None) -> units.TrainUnit | None:
    """searcher.max_length (or max_time) as a unit."""
    searcher = (config or {}).get("searcher") or {}
    length = searcher.get("max_length")
    if isinstance(length, dict) and len(length) == 1:
        ((name, number),) = length.items()
        if name in _UNITS and isinstance(number, int):
            return _UNITS[name](number)
    return None


def _mover(context: PyTorchTrialContext) -> Callable[[Any], Any] | None:
    """Moves a batch to the device; lists of CPU tensors stay as they are when that is where the model lives."""
    device = context.device
    warned: set[type] = set()
    if device.type != "cpu":
        return lambda batch: data.to_device(batch, device, warned)

    def stay(batch: Any) -> Any:
        kind = type(batch)
        if kind is list or kind is tuple:
            for item in batch:
                if type(item) is not Tensor or not item.is_cpu:
                    return data.to_device(batch, device, warned)
            return batch
        if kind is Tensor and batch.is_cpu:
            return batch
        return data.to_device(batch, device, warned)

    return stay


def _stop_watching(beats: memoryview) -> None:
    """What comes after training takes as long as it takes."""
    beats[0] = 0


def _close_loader(loader: Any) -> None:
    """Let go of worker processes that were kept from one validation to the next."""
    if isinstance(loader, data.DataLoader):
        loader.close()


def _call_each(hooks: list[Callable[[], None]]) -> None:
    for hook in hooks:
        hook()


@contextlib.contextmanager
def _invalid_hp_is_checkpointed(parts: loop.Parts, progress: Any) -> Iterator[None]:
    """A trial that gives up keeps its last state, so that one can look at it."""
    try:
        yield
    except errors.InvalidHP:
        progress.training = False
        if progress.last_checkpoint != progress.batches_done and parts.context.distributed.size == 1:
            loop.save(parts, progress)
        raise
