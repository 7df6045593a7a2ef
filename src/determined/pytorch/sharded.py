"""Checkpoints of sharded models: every rank writes its own pieces, and any number of ranks reads them back."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

FOLDER = "sharded"


def save(models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], folder: pathlib.Path) -> None:
    """Write the pieces of all ranks; every rank calls this with the same folder."""
    # Takes a second to import, which only sharded models need to pay.
    from torch.distributed.checkpoint.state_dict_saver import save as save_pieces

    state = _state(models, optimizers)
    for index, model in enumerate(models):
        state[f"gradients_{index}"] = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    save_pieces(state, checkpoint_id=str(folder / FOLDER))


def pending(models: Sequence[nn.Module]) -> list[list[str]]:
    """The names, by model, of the parameters whose gradients a later batch will still use."""
    return [[name for name, p in model.named_parameters() if p.grad is not None] for model in models]


def load(
    models: Sequence[nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    folder: pathlib.Path,
    gradients: Sequence[Sequence[str]],
) -> None:
    """Read what this rank now owns, and the gradients that were pending; every rank calls this."""
    from torch.distributed.checkpoint import state_dict as dcp_state
    from torch.distributed.checkpoint.state_dict_loader import load as load_pieces

    state = _state(models, optimizers)
    for index, (model, names) in enumerate(zip(models, gradients)):
        state[f"gradients_{index}"] = {name: torch.zeros_like(model.get_parameter(name)) for name in names}
    with warnings.catch_warnings():
        # One process reading what many wrote is meant, and needs no remark.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        load_pieces(state, checkpoint_id=str(folder / FOLDER), no_dist=not torch.distributed.is_initialized())
    for index, model in enumerate(models):
        dcp_state.set_model_state_dict(model, state[f"model_{index}"])
    for index, optimizer in enumerate(optimizers):
        dcp_state.set_optimizer_state_dict(_owner(models, optimizer), optimizer, state[f"optimizer_{index}"])
    for index, model in enumerate(models):
        for name, gradient in state.get(f"gradients_{index}", {}).items():
            model.get_parameter(name).grad = gradient.detach()


def _state(models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    from torch.distributed.checkpoint import state_dict as dcp_state

    state: dict[str, Any] = {}
    for index, model in enumerate(models):
        state[f"model_{index}"] = dcp_state.get_model_state_dict(model)
    for index, optimizer in enumerate(optimizers):
        state[f"optimizer_{index}"] = dcp_state.get_optimizer_state_dict(_owner(models, optimizer), optimizer)
    return state


def _owner(models: Sequence[nn.Module], optimizer: torch.optim.Optimizer) -> nn.Module:
    """The model whose parameters an optimizer updates; names in the checkpoint come from it."""
    wanted = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for model in models:
        if wanted <= {id(p) for p in model.parameters()}:
            return model
    # An optimizer over several models: name their parameters together.
    return nn.ModuleList(models)
