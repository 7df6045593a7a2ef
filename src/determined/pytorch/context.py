"""PyTorchTrialContext: what a trial asks of its surroundings; a façade over models, precision, gradients, reducers."""

from __future__ import annotations

import difflib
import logging
import pathlib
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Union

import torch
from torch import nn

from determined import core, errors
from determined.pytorch import parallel
from determined.pytorch.data import to_device as move_to_device
from determined.pytorch.gradients import Gradients
from determined.pytorch.lr_scheduler import LRScheduler
from determined.pytorch.precision import Precision
from determined.pytorch.progress import Progress
from determined.pytorch.reducers import MetricReducer, Reducers

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger("determined.pytorch")

AnyReducer = TypeVar("AnyReducer", MetricReducer, Callable[[list[Any]], Any])


class Hparams(dict[str, Any]):
    """Hyperparameters by name; asking for an unknown one lists those there are."""

    def __missing__(self, name: str) -> Any:
        raise UnknownHparam(name, self)


class UnknownHparam(KeyError):
    """A hyperparameter that does not exist."""

    def __init__(self, name: object, known: Mapping[str, Any]) -> None:
        super().__init__(name)
        self._text = _unknown_hparam(name, known)

    def __str__(self) -> str:
        return self._text


def _unknown_hparam(name: object, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(str(name), [str(k) for k in known], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    names = ", ".join(sorted(map(str, known))) or "none"
    return (
        f"there is no hyperparameter {name!r}{hint} (known: {names}). Give it in the experiment configuration's "
        f"hyperparameters, or locally with det.pytorch.init(hparams={{...}})"
    )


class TrialSettings:
    """What a trial context is told when it is made, and never changes."""

    def __init__(
        self,
        *,
        hparams: Mapping[str, Any] | None = None,
        exp_conf: Mapping[str, Any] | None = None,
        aggregation_frequency: int = 1,
        average_gradients: bool = True,
        trial_id: int = 0,
        experiment_id: int = 0,
        trial_seed: int | None = None,
        steps_completed: int = 0,
        enable_tensorboard_logging: bool = True,
    ) -> None:
        self.hparams = None if hparams is None else Hparams(hparams)
        self.exp_conf = None if exp_conf is None else dict(exp_conf)
        self.aggregation_frequency = aggregation_frequency
        self.average_gradients = average_gradients
        self.trial_id = trial_id
        self.experiment_id = experiment_id
        self.trial_seed = trial_seed
        self.steps_completed = steps_completed
        self.enable_tensorboard_logging = enable_tensorboard_logging


class PyTorchTrialContext:
    """Given to a trial's ``__init__``: wraps its models, optimizers and schedulers, and answers its questions.

    Made by ``det.pytorch.init()``, never by hand.
    """

    def __init__(
        self,
        settings: TrialSettings,
        *,
        core_context: core.Context | None = None,
        distributed: core.DistributedContext | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.distributed = distributed or (core_context.distributed if core_context else _alone())
        self.device = device or torch.device("cpu")
        self.models: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.profiler: torch.profiler.profile | None = None
        self.settings = settings
        self.core_context = core_context
        self.progress = Progress()
        self.precision = Precision(self.device)
        self.reducers = Reducers(self.distributed)
        self.gradients = Gradients(
            self.progress, self.precision, settings.aggregation_frequency, settings.average_gradients
        )
        self.experimental = PyTorchExperimentalContext(self)
        self.checks_loaders = True  # plain torch loaders are refused
        self.moves_batches = True  # batches are moved to the device before train_batch sees them
        self.asked_initial_batch = False
        self._tensorboard_logging = settings.enable_tensorboard_logging
        self._writer: SummaryWriter | None = None
        self._stop_requested = False
        self._lean_step = False
        self._decide_lean_step()

    # The calls of a training step come first: they are what a reader looks for.

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Compute gradients of ``loss``; scaled if mixed precision asks for it."""
        if self._lean_step and gradient is None and not retain_graph and not create_graph:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self.gradients.backward(loss, gradient, retain_graph, create_graph)

    def step_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: Callable[[Any], Any] | None = None,
        auto_zero_grads: bool = True,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        """Average accumulated gradients, clip them, step, and zero them; on the last batch of each aggregation
        window, and nothing on the others.

        ``clip_grads`` gets the list of the optimizer's parameters, already unscaled under ``use_amp``.
        """
        if self._lean_step and clip_grads is None and scaler is None:
            optimizer.step()
            if auto_zero_grads:
                optimizer.zero_grad()
        else:
            self.gradients.step(optimizer, clip_grads, auto_zero_grads, scaler)

    # Wrapping, in __init__ of the trial.

    def wrap_model(self, model: nn.Module, strategy: parallel.Strategy = "ddp") -> nn.Module:
        """Move a model to the device, spread it over the ranks, and save it in checkpoints. Use what this returns.

        ``strategy``: ``"ddp"`` replicates it, ``"fsdp"`` shards it with torch's fully_shard, a function of the model
        does what you like.
        """
        if not isinstance(model, nn.Module):
            raise errors.InvalidModelException(
                f"wrap_model takes a torch.nn.Module, not {type(model).__name__}"
                + (" (a class: call it to make a model)" if isinstance(model, type) else "")
            )
        if self._is_unmanaged:
            self.models.append(model)
            return model
        model = model.to(self.device)
        if self.precision.dtype is not None:
            self.precision.cast(model)
        wrapped = parallel.spread(model, strategy, self.device, self.distributed.size)
        self.models.append(wrapped)
        return wrapped

    def wrap_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> torch.optim.Optimizer:
        """Save an optimizer in checkpoints and let ``step_optimizer`` step it. Returns the same optimizer.

        ``backward_passes_per_step`` and ``fp16_compression`` only mattered to Horovod; they are checked and ignored.
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise errors.InvalidExperimentException(
                f"wrap_optimizer takes a torch.optim.Optimizer, not {type(optimizer).__name__}"
            )
        if backward_passes_per_step < 1:
            raise errors.InvalidExperimentException(
                f"backward_passes_per_step must be at least 1, not {backward_passes_per_step}"
            )
        if average_aggregated_gradients is not None:
            self.gradients.average = average_aggregated_gradients
        self.optimizers.append(optimizer)
        return optimizer

    def wrap_lr_scheduler(
        self,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        step_mode: LRScheduler.StepMode,
        frequency: int = 1,
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """Step a scheduler by ``step_mode`` and save it in checkpoints. Returns the same scheduler."""
        wrapped = LRScheduler(lr_scheduler, step_mode, frequency)
        optimizer = getattr(lr_scheduler, "optimizer", None)
        if optimizer is not None and all(optimizer is not known for known in self.optimizers):
            raise errors.InvalidExperimentException(
                "wrap the optimizer before its learning-rate scheduler: call context.wrap_optimizer(optimizer) first, "
                "then build the scheduler on what it returns"
            )
        self.lr_schedulers.append(wrapped)
        return lr_scheduler

    def wrap_scaler(self, scaler: torch.amp.GradScaler) -> torch.amp.GradScaler:
        """Save a gradient scaler of yours in checkpoints; you scale, unscale and update it yourself."""
        if self.precision.scaler is not None:
            raise errors.InvalidExperimentException(
                "there is a gradient scaler already: call wrap_scaler once, and not together with "
                "experimental.use_amp() or configure_apex_amp()"
            )
        if self.models:
            raise errors.InvalidExperimentException("call wrap_scaler before the first wrap_model")
        self.precision.scaler = scaler
        self._decide_lean_step()
        return scaler

    def wrap_reducer(
        self,
        reducer: AnyReducer,
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> Any:
        """Report what a reducer makes of all batches of a stretch. Returns an object to update.

        A function becomes an object with ``update(value)``; the function gets the flat list of all values, of all
        ranks, in batch order.
        """
        return self.reducers.wrap(reducer, name, for_training, for_validation)

    def configure_apex_amp(
        self,
        models: Any,
        optimizers: Any,
        enabled: bool | None = True,
        opt_level: str | None = "O1",
        cast_model_type: torch.dtype | None = None,
        patch_torch_functions: bool | None = None,
        keep_batchnorm_fp32: Union[bool, str] | None = None,
        master_weights: bool | None = None,
        loss_scale: Union[float, str] | None = None,
        cast_model_outputs: torch.dtype | None = None,
        num_losses: int | None = 1,
        verbosity: int | None = 1,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = 2.0**24,
    ) -> tuple[Any, Any]:
        """Deprecated: apex is gone, so this turns on torch's own mixed precision, which does what level O1 did."""
        if enabled and opt_level != "O0":
            if opt_level not in ("O1", "O2", "O3"):
                raise ValueError(f"opt_level must be one of O0, O1, O2, O3, not {opt_level!r}")
            warnings.warn(
                "configure_apex_amp is deprecated: apex is no longer used, and torch's own mixed precision is turned "
                "on instead; call context.experimental.use_amp() before wrap_model",
                FutureWarning,
                stacklevel=2,
            )
            for model in models if isinstance(models, (list, tuple)) else [models]:
                if all(model is not known for known in self.models):
                    raise errors.InvalidExperimentException("call wrap_model before configure_apex_amp")
            self.experimental.use_amp()
        return models, optimizers

    # Questions about hyperparameters and the configuration.

    @property
    def hparams(self) -> Hparams:
        """The trial's hyperparameters by name."""
        if self.settings.hparams is None:
            raise ValueError(
                "this trial has no hyperparameters; locally, give them with det.pytorch.init(hparams={...}) or in an "
                "experiment configuration beside the script"
            )
        return self.settings.hparams

    def get_hparams(self) -> dict[str, Any]:
        """All hyperparameters; the same as ``hparams``."""
        return self.hparams

    def get_hparam(self, name: str) -> Any:
        """One hyperparameter; ValueError lists the known ones when it does not exist."""
        hparams = self.hparams
        if name not in hparams:
            raise ValueError(_unknown_hparam(name, hparams))
        if name == "global_batch_size":
            logger.warning(
                "get_hparam('global_batch_size') is the batch size of all ranks together; "
                "a data loader wants context.get_per_slot_batch_size()"
            )
        return hparams[name]

    def get_per_slot_batch_size(self) -> int:
        """The batch size of this rank: global_batch_size divided by the number of ranks, rounded down."""
        size = self.distributed.size
        batch_size = self._configured_batch_size()
        if batch_size % size:
            logger.warning(
                "global_batch_size %d is not a multiple of the %d slots; %d records are used per batch",
                batch_size,
                size,
                batch_size // size * size,
            )
        return batch_size // size

    def get_global_batch_size(self) -> int:
        """The batch size of all ranks together, as it really is: a multiple of the number of ranks."""
        return self.get_per_slot_batch_size() * self.distributed.size

    def get_experiment_config(self) -> dict[str, Any]:
        """The experiment configuration as plain data; ValueError when there is none."""
        if self.settings.exp_conf is None:
            raise ValueError(
                "this trial has no experiment configuration; locally, give one with det.pytorch.init(exp_conf={...}) "
                "or name a file in DET_EXPERIMENT_CONFIG"
            )
        return self.settings.exp_conf

    def get_data_config(self) -> dict[str, Any]:
        """The ``data`` section of the configuration, {} when it has none."""
        return self.get_experiment_config().get("data") or {}

    # Questions about where training stands.

    def is_epoch_start(self) -> bool:
        """Whether the current batch is the first of its epoch; InternalException before training has started."""
        progress = self._started()
        return bool(progress.epoch_len) and progress.batch_idx % (progress.epoch_len or 1) == 0

    def is_epoch_end(self) -> bool:
        """Whether the current batch is the last of its epoch; InternalException before training has started."""
        progress = self._started()
        return bool(progress.epoch_len) and (progress.batch_idx + 1) % (progress.epoch_len or 1) == 0

    def current_train_epoch(self) -> int:
        """The epoch of the batch being trained, or trained last, from 0."""
        return self._started().epoch_idx

    def current_train_batch(self) -> int:
        """The batch being trained, or trained last, counted from 0 over all epochs."""
        return self._started().batch_idx

    def get_initial_batch(self) -> int:
        """How many batches earlier runs of this trial have trained; a loader of your own should skip them.

        Having asked, you do the skipping: the trainer no longer does it for plain loaders.
        """
        self.asked_initial_batch = True
        return self.progress.batches_done or self.settings.steps_completed

    def get_trial_seed(self) -> int:
        """The seed that every random number generator was given at the start: locally experiment_seed, else 0."""
        if self.settings.trial_seed is None:
            raise errors.InternalException("this context was made to load a checkpoint, so it has no trial seed")
        return self.settings.trial_seed

    def get_experiment_id(self) -> int:
        """The number of the experiment; 0 locally."""
        return self.settings.experiment_id

    def get_trial_id(self) -> int:
        """The number of the trial; 0 locally."""
        return self.settings.trial_id

    def get_stop_requested(self) -> bool:
        """Whether ``set_stop_requested(True)`` was called on this rank."""
        return self._stop_requested

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Ask that training stop, with a checkpoint, at the next boundary."""
        assert isinstance(stop_requested, bool), (
            f"set_stop_requested takes True or False, not {type(stop_requested).__name__}"
        )
        logger.info("the trial asked to stop: training will end with a checkpoint at the next boundary")
        self._stop_requested = stop_requested

    # Data, TensorBoard, profiling.

    def to_device(self, data: Any, warned_types: set[type] | None = None) -> Any:
        """Move arrays and tensors, however nested, to this rank's device."""
        return move_to_device(data, self.device, warned_types)

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        """Whether reported metrics also go to TensorBoard."""
        if not isinstance(enable_tensorboard_logging, bool):
            raise AssertionError("set_enable_tensorboard_logging takes True or False")
        self._tensorboard_logging = enable_tensorboard_logging

    def get_enable_tensorboard_logging(self) -> bool:
        """Whether reported metrics also go to TensorBoard."""
        return self._tensorboard_logging

    def get_tensorboard_path(self) -> pathlib.Path:
        """The folder whose TensorBoard files belong to this run."""
        if self.core_context is None:
            raise errors.InternalException("this context was made to load a checkpoint, so it has no TensorBoard path")
        path = self.core_context.train.get_tensorboard_path()
        assert path is not None
        return path

    def get_tensorboard_writer(self) -> SummaryWriter:
        """One SummaryWriter for anything you want to log yourself."""
        if self._writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise errors.InvalidExperimentException(
                    "get_tensorboard_writer() needs the tensorboard package; install it with "
                    "pip install 'resolute[tensorboard]'"
                ) from error
            self._writer = SummaryWriter(log_dir=str(self.get_tensorboard_path()))
        return self._writer

    def set_profiler(self, *args: Any, **kwargs: Any) -> None:
        """Profile training batches with torch.profiler.profile; the arguments are its own. Traces go to TensorBoard's
        folder unless you give an ``on_trace_ready``."""
        kwargs.setdefault("on_trace_ready", torch.profiler.tensorboard_trace_handler(str(self.get_tensorboard_path())))
        self.profiler = torch.profiler.profile(*args, **kwargs)

    def reset_reducers(self) -> None:
        """Let every wrapped reducer forget. The trainer does this before each stretch of training or validation."""
        self.reducers.reset()

    def reduce_metrics(self, for_training: bool) -> dict[str, Any]:
        """The results of the reducers for training, or of those for validation; all ranks call this together."""
        return self.reducers.reduce(for_training=for_training)

    def close(self) -> None:
        """Let go of what was opened on demand."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def use_amp(self, dtype: torch.dtype | None) -> None:
        """See ``experimental.use_amp``."""
        if self.precision.scaler is not None:
            raise errors.InvalidExperimentException(
                "use_amp() brings its own gradient scaler; use either use_amp() or wrap_scaler(), and only once"
            )
        self.precision.use_amp(dtype)
        for model in self.models:
            self.precision.cast(parallel.unwrap(model))
        self._decide_lean_step()

    def _decide_lean_step(self) -> None:
        """Most trials neither accumulate nor scale; their step should cost no question about either."""
        self._lean_step = self.settings.aggregation_frequency == 1 and not self.precision.scales

    @property
    def _is_unmanaged(self) -> bool:
        return self.core_context is None

    def _started(self) -> Progress:
        if not self.progress.started:
            raise errors.InternalException("training has not started, so there is no current batch or epoch yet")
        return self.progress

    def _configured_batch_size(self) -> int:
        hparams = self.settings.hparams
        if hparams is None or "global_batch_size" not in hparams:
            raise ValueError(
                "the batch size of a slot comes from the hyperparameter global_batch_size, which is not set; "
                "give it in hyperparameters, or locally with det.pytorch.init(hparams={'global_batch_size': 32})"
            )
        batch_size = hparams["global_batch_size"]
        if not isinstance(batch_size, int) or isinstance(batch_size, bool):
            raise errors.InvalidExperimentException(
                f"the hyperparameter global_batch_size must be a whole number, not {batch_size!r}"
            )
        if batch_size < self.distributed.size:
            raise errors.InvalidExperimentException(
                f"the hyperparameter global_batch_size ({batch_size}) must be at least the number of slots "
                f"({self.distributed.size}), so that each gets a record"
            )
        return batch_size


class PyTorchExperimentalContext:
    """Parts of the context whose names are kept from when they were new."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._context = context

    def use_amp(self, dtype: torch.dtype | None = None) -> None:
        """Train in mixed precision: autocast every wrapped model, and scale gradients where the type needs it.

        float16 on GPUs by default, bfloat16 on CPUs. Scaling, unscaling before clipping, stepping and updating the
        scaler happen by themselves.
        """
        self._context.use_amp(dtype)

    def disable_dataset_reproducibility_checks(self) -> None:
        """Allow plain torch data loaders; sharding them over ranks is then your job."""
        self._context.checks_loaders = False

    def disable_auto_to_device(self) -> None:
        """Leave batches where the loader put them; call ``context.to_device`` yourself."""
        self._context.moves_batches = False


def _alone() -> core.DistributedContext:
    return core.DistributedContext(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)


class CheckpointLoadContext(PyTorchTrialContext):
    """A context for building a trial outside training, to look at a checkpoint or to predict.

    Models stay where they are and are not spread over ranks.
    """

    def __init__(self, hparams: dict[str, Any] | None = None, exp_conf: dict[str, Any] | None = None) -> None:
        super().__init__(TrialSettings(hparams=hparams, exp_conf=exp_conf))
