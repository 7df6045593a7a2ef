"""``det.pytorch.init()``: one object that is a trial's context, the trainer's, and usable with or without ``with``."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union

import torch

from determined import core, errors
from determined.config import units
from determined.pytorch import loading, predict, restoring, rng, startup
from determined.pytorch.context import Hparams, PyTorchTrialContext, TrialSettings
from determined.pytorch.trainer import Trainer
from determined.pytorch.trial import PyTorchTrial

logger = logging.getLogger("determined.pytorch")

AnyTrial = TypeVar("AnyTrial", bound=PyTorchTrial)


class Training:
    """What is known about the training task this process is part of."""

    def __init__(self, hparams: Hparams) -> None:
        self.hparams = hparams


class TrainingContext(PyTorchTrialContext):
    """What ``det.pytorch.init()`` returns.

    Make trials with ``build_trial`` (or hand this object to a trial yourself), train them with ``train`` (or a
    ``Trainer``), load them with ``load_checkpoint_trial`` and use them with ``predict``. Everything is closed at the
    end of ``with``, or when the process ends.
    """

    def __init__(self, settings: TrialSettings, core_context: core.Context, device: torch.device) -> None:
        super().__init__(settings, core_context=core_context, device=device)
        self._core: core.Context = core_context
        self._built: list[tuple[PyTorchTrial, PyTorchTrialContext]] = []
        self._owns_process_group = False
        self._closed = False

    def __enter__(self) -> TrainingContext:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        self._let_go()
        self._core.__exit__(kind, error, traceback)

    def close(self) -> None:
        """Finish what is still being written. Called by itself at the end of ``with`` and of the process."""
        self._close(None)

    def _close_at_exit(self) -> None:
        # Used without ``with``: what Python remembers of an exception that nobody caught is how it ended.
        self._close(getattr(sys, "last_value", None))

    def _close(self, error: BaseException | None) -> None:
        if not self._closed:
            self._let_go()
            self._core.close(error)

    @property
    def training(self) -> Training:
        """The training task: its hyperparameters."""
        info = self._core.info
        if info is not None and info.task_type != "TRIAL":
            raise errors.InternalException(
                f"this process is a {info.task_type.lower()} task, not a training task, so it has no hyperparameters; "
                "its settings are in context.config_data"
            )
        return Training(self.settings.hparams if self.settings.hparams is not None else Hparams())

    @property
    def config_data(self) -> dict[str, Any]:
        """The configuration's ``data`` section, {} when it has none."""
        return (self.settings.exp_conf or {}).get("data") or {}

    def build_trial(self, trial_class: type[AnyTrial], *args: Any, **kwargs: Any) -> AnyTrial:
        """Make a trial with a context of its own; further arguments go to its ``__init__`` after the context."""
        context = PyTorchTrialContext(self.settings, core_context=self._core, device=self.device)
        trial = trial_class(context, *args, **kwargs)
        self._built.append((trial, context))
        return trial

    def train(
        self,
        trial: PyTorchTrial,
        train_data: Any = None,
        val_data: Any = None,
        *,
        max_length: units.TrainUnit | None = None,
        min_validation_period: units.TrainUnit | None = None,
        min_checkpoint_period: units.TrainUnit | None = None,
        validation_period: units.TrainUnit | None = None,
        checkpoint_period: units.TrainUnit | None = None,
        reporting_period: units.TrainUnit = units.Batch(100),
        checkpoint_policy: str = "best",
        latest_checkpoint: str | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
    ) -> dict[str, Any]:
        """Train a trial and return its last validation metrics.

        Loaders given here take the place of the trial's own. ``max_length`` is for local runs: on a cluster the
        configured length wins. ``latest_checkpoint`` is what to go on from: ``"latest"``, a uuid or a path.
        """
        return Trainer(trial, self._context_of(trial)).fit_on(
            train_data,
            val_data,
            checkpoint_period=checkpoint_period or min_checkpoint_period,
            validation_period=validation_period or min_validation_period,
            max_length=max_length,
            reporting_period=reporting_period,
            checkpoint_policy=checkpoint_policy,
            latest_checkpoint=latest_checkpoint,
            step_zero_validation=step_zero_validation,
            test_mode=test_mode,
            profiling_enabled=profiling_enabled,
        )

    fit = train

    def load_checkpoint_trial(
        self,
        trial_class: type[AnyTrial],
        trial_id: Union[int, str] | None = None,
        checkpoint: Union[str, os.PathLike[str]] | None = None,
    ) -> AnyTrial:
        """A trial with the weights of a checkpoint, in evaluation mode, with the hyperparameters it was trained with.

        ``checkpoint`` is a uuid, a path or ``"latest"``; otherwise the best checkpoint of the trial is taken, or its
        latest one when none was validated. Locally a trial is a run: ``trial_id`` is the run's id or name, or left
        out for the newest run.
        """
        found = self._core.locate(None if checkpoint is None else str(checkpoint), trial_id)
        with self._core.checkpoint.reading(found.path, trusting=(restoring.STATE,)) as folder:
            trial, context = loading.load(folder, trial_class, device=self.device)
        self._built.append((trial, context))
        return trial  # type: ignore[no-any-return]

    def predict(self, trial: PyTorchTrial, data: Any) -> Any:
        """Predictions for all of ``data``, shared out over the ranks, joined in the dataset's order on the chief.

        Uses the trial's ``predict_batch(batch)`` if it has one, else its model on the input part of each batch. The
        other ranks get None.
        """
        seed = self.settings.trial_seed or 0
        return predict.predict(trial, self._context_of(trial), data, distributed=self.distributed, seed=seed)

    def _context_of(self, trial: PyTorchTrial) -> PyTorchTrialContext:
        for built, context in self._built:
            if built is trial:
                return context
        if isinstance(trial, type):
            raise TypeError(
                f"this takes a trial, not the class {trial.__name__}; "
                f"make one with context.build_trial({trial.__name__})"
            )
        return self

    def _let_go(self) -> None:
        if self._closed:
            return
        self._closed = True
        for _, context in self._built:
            context.close()
        super().close()
        if self._owns_process_group and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def init(
    *,
    hparams: dict[str, Any] | None = None,
    exp_conf: dict[str, Any] | None = None,
    distributed: core.DistributedContext | None = None,
    aggregation_frequency: int = 1,
    enable_tensorboard_logging: bool = True,
    checkpoint_storage: Union[str, Mapping[str, Any]] | None = None,
    name: str | None = None,
) -> TrainingContext:
    """Start (or take up) a run, seed every random number generator, and return its context.

    Works as it is and in ``with``. Locally, hyperparameters come from ``hparams``, else from ``exp_conf``, else from an
    experiment configuration named by ``DET_EXPERIMENT_CONFIG`` or ``--config`` or found beside the script; ranges give
    their first value. ``checkpoint_storage`` is a folder for the checkpoints, instead of the run's own.
    """
    startup.defer_dynamo()
    core_context = core.init(
        distributed=distributed,
        checkpoint_storage=checkpoint_storage,
        tensorboard_mode=core.TensorboardMode.AUTO if enable_tensorboard_logging else core.TensorboardMode.MANUAL,
        config=exp_conf,
        hparams=hparams,
        name=name,
    )
    is_trial = core_context.info is not None and core_context.info.task_type == "TRIAL"
    info = core_context.info.trial if core_context.info is not None and is_trial else None
    config = core_context.config
    optimizations = (config or {}).get("optimizations") or {}
    settings = TrialSettings(
        hparams=core_context.hparams,
        exp_conf=config,
        aggregation_frequency=max(aggregation_frequency, int(optimizations.get("aggregation_frequency", 1))),
        average_gradients=bool(optimizations.get("average_aggregated_gradients", True)),
        trial_id=info.trial_id if info else 0,
        experiment_id=info.experiment_id if info else 0,
        trial_seed=core_context.seed,
        steps_completed=core_context.steps_completed if core_context.found else 0,
        enable_tensorboard_logging=enable_tensorboard_logging,
    )
    device = _device(core_context.distributed)
    context = TrainingContext(settings, core_context, device)
    context._owns_process_group = _join_process_group(core_context.distributed, device)
    rng.seed_all(core_context.seed)
    atexit.register(context._close_at_exit)
    return context


def _device(distributed: core.DistributedContext) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", distributed.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _join_process_group(distributed: core.DistributedContext, device: torch.device) -> bool:
    """Make torch's process group, unless the script has made one."""
    if distributed.size == 1 or torch.distributed.is_initialized():
        return False
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return True
