"""The oldest way to write a trial: ``build_model``, ``optimizer`` and a ``train_batch`` that is handed the model.

An adapter turns such a class into today's, so that it is trained by the same loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from determined import errors
from determined.pytorch.callbacks import PyTorchCallback
from determined.pytorch.context import PyTorchTrialContext
from determined.pytorch.lr_scheduler import LRScheduler
from determined.pytorch.trial import PyTorchTrial, overrides


def adapt(trial: PyTorchTrial, context: PyTorchTrialContext) -> PyTorchTrial:
    """The trial itself, or today's form of it if it was written for the oldest API."""
    return OldestTrial(trial, context) if callable(getattr(trial, "build_model", None)) else trial


class OldestTrial(PyTorchTrial):
    """Does for one model and one optimizer what users of the oldest API left to the platform."""

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        self.context = context
        self.trial = trial
        if not callable(getattr(trial, "optimizer", None)):
            raise errors.InvalidExperimentException(
                f"{type(trial).__name__} defines build_model() but no optimizer(model); the two go together"
            )
        if _mixed_precision(context) and context.precision.dtype is None:
            context.experimental.use_amp()
        model = trial.build_model()  # type: ignore[attr-defined]
        if not isinstance(model, nn.Module):
            raise errors.InvalidModelException(
                f"{type(trial).__name__}.build_model() must return a torch.nn.Module, not {type(model).__name__}"
            )
        self.model = context.wrap_model(model)
        self.optimizer = context.wrap_optimizer(trial.optimizer(self.model))  # type: ignore[attr-defined]
        scheduler: LRScheduler | None = None
        if callable(getattr(trial, "create_lr_scheduler", None)):
            scheduler = trial.create_lr_scheduler(self.optimizer)  # type: ignore[attr-defined]
        if scheduler is not None:
            if not isinstance(scheduler, LRScheduler):
                raise errors.InvalidExperimentException(
                    "create_lr_scheduler() must return a det.pytorch.LRScheduler(scheduler, step_mode), "
                    f"not {type(scheduler).__name__}"
                )
            context.lr_schedulers.append(scheduler)
        self._clip = _clipping(context)
        self._train = _with_model(trial.train_batch, self.model)
        # Validation has two forms; only the one the user wrote may seem to exist on the adapter.
        if overrides(trial, "evaluate_batch"):
            self.evaluate_batch = _with_model(trial.evaluate_batch, self.model)  # type: ignore[method-assign]
        if overrides(trial, "evaluate_full_dataset"):
            self.evaluate_full_dataset = _with_model(trial.evaluate_full_dataset, self.model)  # type: ignore[method-assign]

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        result: Any = self._train(batch=batch, epoch_idx=epoch_idx, batch_idx=batch_idx)
        if isinstance(result, torch.Tensor):
            result = {"loss": result}
        if not isinstance(result, dict) or not isinstance(result.get("loss"), torch.Tensor):
            raise errors.InvalidExperimentException(
                f"train_batch of {type(self.trial).__name__} must return the loss, or a dict with the loss under "
                "'loss', as a tensor that has a graph: the platform calls backward on it"
            )
        self.context.backward(result["loss"])
        self.context.step_optimizer(self.optimizer, clip_grads=self._clip)
        return result

    def build_training_data_loader(self) -> Any:
        return self.trial.build_training_data_loader()

    def build_validation_data_loader(self) -> Any:
        return self.trial.build_validation_data_loader()

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return self.trial.build_callbacks()

    def evaluation_reducer(self) -> Any:
        return self.trial.evaluation_reducer()

    def get_batch_length(self, batch: Any) -> int:
        return self.trial.get_batch_length(batch)


def reset_parameters(model: nn.Module) -> None:
    """Draw every submodule's parameters anew, where it knows how. Call it before loading a backbone's weights."""
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()


def _with_model(method: Callable[..., Any], model: nn.Module) -> Callable[..., Any]:
    """The method with ``model`` filled in, where its signature asks for it."""
    parameters = inspect.signature(method).parameters
    takes_batch_idx = "batch_idx" in parameters
    if "model" not in parameters:
        return method
    if takes_batch_idx:
        return lambda *args, **kwargs: method(*args, model=model, **kwargs)

    def without_batch_idx(*args: Any, batch_idx: int = 0, **kwargs: Any) -> Any:
        return method(*args, model=model, **kwargs)

    return without_batch_idx


def _clipping(context: PyTorchTrialContext) -> Callable[[Any], Any] | None:
    hparams: dict[str, Any] = context.settings.hparams or {}
    norm, value = hparams.get("clip_grad_l2_norm"), hparams.get("clip_grad_val")
    if norm and value:
        raise errors.InvalidExperimentException(
            "the hyperparameters clip_grad_l2_norm and clip_grad_val exclude each other; remove one"
        )
    if norm:
        return lambda parameters: nn.utils.clip_grad_norm_(parameters, float(norm))
    if value:
        return lambda parameters: nn.utils.clip_grad_value_(parameters, float(value))
    return None


def _mixed_precision(context: PyTorchTrialContext) -> bool:
    optimizations = (context.settings.exp_conf or {}).get("optimizations") or {}
    return bool(optimizations.get("mixed_precision", "O0") != "O0")
