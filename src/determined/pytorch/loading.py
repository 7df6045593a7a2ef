"""Trials out of checkpoints: to look at, to predict with, to fine-tune by hand."""

from __future__ import annotations

import importlib
import logging
import pathlib
from typing import Any, Union

import torch
from torch import nn

from determined import core, errors
from determined.pytorch import oldest, restoring, state
from determined.pytorch.context import CheckpointLoadContext, PyTorchTrialContext
from determined.pytorch.trial import PyTorchTrial

logger = logging.getLogger("determined.pytorch")


def load_trial_from_checkpoint_path(
    path: str,
    trial_class: type[PyTorchTrial] | None = None,
    trial_kwargs: dict[str, Any] | None = None,
    torch_load_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Union[PyTorchTrial, nn.Module]:
    """A trial with the weights of the checkpoint in a folder.

    The class is imported from the code saved in the checkpoint, unless ``trial_class`` is given. ``trial_kwargs`` go
    to its ``__init__`` after the context. Checkpoints of the oldest API give the bare model. Nothing in the checkpoint
    is executed unless you say ``torch_load_kwargs={"weights_only": False}``, which trusts it.
    """
    options = {**(torch_load_kwargs or {}), **kwargs}
    trusted = options.pop("weights_only", True) is False
    device = torch.device(options.pop("map_location", None) or "cpu")
    if options:
        raise TypeError(
            f"load_trial_from_checkpoint_path does not take {', '.join(sorted(options))}; "
            "it takes map_location and weights_only"
        )
    folder = pathlib.Path(path)
    restoring.verify(folder)
    saved = restoring.read(folder, uuid=folder.name, trusted=trusted)
    if trial_class is None:
        with core.import_from_path(folder / "code"):
            trial_class = _recorded_class(saved, folder)
            trial, _ = _make(saved, trial_class, trial_kwargs, device)
    else:
        trial, _ = _make(saved, trial_class, trial_kwargs, device)
    return trial.model if isinstance(trial, oldest.OldestTrial) else trial


def load(folder: pathlib.Path, trial_class: type[Any], *, device: torch.device) -> tuple[Any, PyTorchTrialContext]:
    """A trial of this class, ready to predict, and its context."""
    saved = restoring.read(folder, uuid=folder.name)
    trial, context = _make(saved, trial_class, None, device)
    for model in context.models:
        model.to(device)
        model.eval()
    return trial, context


def _make(
    saved: restoring.Saved, trial_class: type[Any], trial_kwargs: dict[str, Any] | None, device: torch.device
) -> tuple[Any, PyTorchTrialContext]:
    if saved.is_sharded:
        raise errors.InvalidCheckpointException(
            f"{saved.folder} is the checkpoint of a sharded model; train with latest_checkpoint to load it"
        )
    load_data = saved.load_data or {}
    context = CheckpointLoadContext(load_data.get("hparams"), load_data.get("experiment_config"))
    context.device = device
    trial = oldest.adapt(trial_class(context, **(trial_kwargs or {})), context)
    state.load_models(context.models, saved.state["models_state_dict"])
    return trial, context


def _recorded_class(saved: restoring.Saved, folder: pathlib.Path) -> type[PyTorchTrial]:
    spec = (saved.load_data or {}).get("trial_cls_spec")
    if not spec:
        raise AssertionError(
            f"{folder} does not say which class it was trained with; pass trial_class to "
            "load_trial_from_checkpoint_path"
        )
    module_name, _, qualified = spec.partition(":")
    if module_name == "__main__":
        raise ValueError(
            f"the checkpoint was made by a script that defines {qualified} itself, so it cannot be imported without "
            f"running the script; pass trial_class={qualified} to load_trial_from_checkpoint_path"
        )
    try:
        found: Any = importlib.import_module(module_name)
        for part in qualified.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise errors.InvalidCheckpointException(
            f"the class {spec} cannot be imported from {folder / 'code'} ({error}); pass trial_class"
        ) from error
    return found  # type: ignore[no-any-return]
