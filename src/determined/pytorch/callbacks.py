"""Hooks into the life of a trial, and the one place that finds out which of them are used."""

from __future__ import annotations

import inspect
import logging
import math
import pathlib
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from determined.pytorch.context import PyTorchTrialContext

logger = logging.getLogger("determined.pytorch")


class PyTorchCallback:
    """Code to run at moments of training. Every hook does nothing unless overridden; all run on every rank but
    ``on_checkpoint_save_start`` and ``on_checkpoint_write_end``, which run on the chief.

    ``state_dict`` is saved in checkpoints under the name the callback has in ``build_callbacks()``; return tensors
    and plain data, so that checkpoints stay loadable without running code.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Before the data loaders are built."""

    def on_trial_shutdown(self) -> None:
        """On the way out, whatever happened."""

    def on_training_start(self) -> None:
        """After a checkpoint (if any) was loaded, before the first batch."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Before the first batch of an epoch."""

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """After the last batch of an epoch."""

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        """After each stretch of training, with its averaged metrics and those of each batch."""

    def on_validation_start(self) -> None:
        """Before validation, models already in evaluation mode."""

    def on_validation_epoch_start(self) -> None:
        """Before the first validation batch."""

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """After the last validation batch, with what each batch returned."""

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """After validation, with its reduced metrics."""

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any] | None) -> None:
        """Before a checkpoint's state is applied; may change the dict."""

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Before a checkpoint is written; may add keys to the dict."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Deprecated spelling of ``on_checkpoint_write_end``."""

    def on_checkpoint_write_end(self, checkpoint_dir: pathlib.Path) -> None:
        """After the files are written and before they are published; may add files."""

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """After the checkpoint is complete in the storage."""

    def state_dict(self) -> dict[str, Any]:
        """What to keep in checkpoints: tensors and plain data."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""


class Hooks:
    """The callbacks of a trial, sorted once by the hooks they override, so that an unused hook costs nothing."""

    def __init__(self, callbacks: Mapping[str, PyTorchCallback]) -> None:
        for name, callback in callbacks.items():
            if not isinstance(callback, PyTorchCallback):
                raise TypeError(
                    f"build_callbacks() must map names to det.pytorch.PyTorchCallback objects, but {name!r} is a "
                    f"{type(callback).__name__}"
                )
        self.callbacks = dict(callbacks)
        self.trial_startup = self._overriding("on_trial_startup")
        self.trial_shutdown = self._overriding("on_trial_shutdown")
        self.training_start = self._overriding("on_training_start")
        self.training_epoch_start = [_with_epoch(hook) for hook in self._overriding("on_training_epoch_start")]
        self.training_epoch_end = self._overriding("on_training_epoch_end")
        self.training_workload_end = self._overriding("on_training_workload_end")
        self.validation_start = self._overriding("on_validation_start")
        self.validation_epoch_start = self._overriding("on_validation_epoch_start")
        self.validation_epoch_end = self._overriding("on_validation_epoch_end")
        self.validation_end = self._overriding("on_validation_end")
        self.checkpoint_load_start = self._overriding("on_checkpoint_load_start")
        self.checkpoint_save_start = self._overriding("on_checkpoint_save_start")
        self.checkpoint_end = self._overriding("on_checkpoint_end")
        self.checkpoint_write_end = self._overriding("on_checkpoint_write_end")
        self.checkpoint_upload_end = self._overriding("on_checkpoint_upload_end")
        if self.checkpoint_end:
            warnings.warn(
                "on_checkpoint_end is deprecated; override on_checkpoint_write_end instead",
                FutureWarning,
                stacklevel=2,
            )

    @property
    def want_files(self) -> bool:
        """Whether someone must see a checkpoint's files before it is published."""
        return bool(self.checkpoint_write_end or self.checkpoint_end or self.checkpoint_upload_end)

    def _overriding(self, hook: str) -> list[Callable[..., None]]:
        base = getattr(PyTorchCallback, hook)
        return [
            getattr(callback, hook)
            for callback in self.callbacks.values()
            if hook in vars(callback) or getattr(type(callback), hook) is not base
        ]


def _with_epoch(hook: Callable[..., None]) -> Callable[..., None]:
    """Accept the old form of ``on_training_epoch_start``, which took no argument."""
    parameters = inspect.signature(hook).parameters.values()
    takes_epoch = any(p.kind is not p.KEYWORD_ONLY and p.kind is not p.VAR_KEYWORD for p in parameters)
    if takes_epoch:
        return hook
    warnings.warn(
        "on_training_epoch_start() without epoch_idx is deprecated; write on_training_epoch_start(self, epoch_idx)",
        FutureWarning,
        stacklevel=2,
    )
    return lambda epoch_idx: hook()


class StopOnNaN(PyTorchCallback):
    """Stops training, with a checkpoint, once an averaged training metric is NaN. Not used unless you add it."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._context = context

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        nan = [name for name, value in avg_metrics.items() if isinstance(value, float) and math.isnan(value)]
        if nan:
            logger.warning("stopping because of NaN in %s", ", ".join(nan))
            self._context.set_stop_requested(True)
