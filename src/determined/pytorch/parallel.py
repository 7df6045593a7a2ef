"""How a model is spread over ranks: replicated (DDP), or sharded (FSDP2) when it does not fit on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Union

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from determined import errors

Strategy = Union[str, Callable[[nn.Module], nn.Module]]


class ReplicatedModel(DistributedDataParallel):
    """DistributedDataParallel through which the inner module's own attributes can be reached."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def spread(model: nn.Module, strategy: Strategy, device: torch.device, size: int) -> nn.Module:
    """The model to train with: ``ddp``, ``fsdp`` (torch's fully_shard), ``none``, or what a function of yours returns.

    A single rank trains the model as it is, whatever the strategy, so that the same script runs anywhere.
    """
    if callable(strategy):
        return strategy(model)
    if strategy == "ddp":
        if size == 1 or not any(p.requires_grad for p in model.parameters()):
            return model
        ids = [device.index] if device.type == "cuda" else None
        return ReplicatedModel(model, device_ids=ids)
    if strategy == "fsdp":
        return _shard(model) if torch.distributed.is_initialized() else model
    if strategy == "none":
        return model
    raise errors.InvalidModelException(
        f"{strategy!r} is not a parallel strategy; wrap_model knows 'ddp', 'fsdp', 'none' or a function of the model"
    )


def _shard(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    # The usual advice: shard each layer of a repeated stack by itself, so that only one is whole at a time.
    for child in model.modules():
        if isinstance(child, (nn.ModuleList, nn.Sequential)) and child is not model:
            for layer in child:
                if any(True for _ in layer.parameters()):
                    fully_shard(layer)
    fully_shard(model)
    return model


def is_sharded(model: nn.Module) -> bool:
    """Whether parameters live in pieces on the ranks."""
    # Asked by name, so that a model which is not sharded pays no import of what shards. After a forward pass without
    # a backward one FSDP's parameters are whole for a while, so its modules are asked as well.
    return any(_is_a(part, "FSDPModule") for part in model.modules()) or any(
        _is_a(parameter, "DTensor") for parameter in model.parameters()
    )


def _is_a(value: object, class_name: str) -> bool:
    return any(cls.__name__ == class_name for cls in type(value).__mro__)


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def set_gradient_sync(models: Iterable[nn.Module], on: bool) -> None:
    """Exchange gradients in this batch's backward passes, or keep them for a later batch.

    Replicas only. Sharded models exchange on every batch: what they would keep is whole, as large as the model that
    did not fit, and could not be saved in pieces.
    """
    for model in models:
        if isinstance(model, DistributedDataParallel):
            model.require_backward_grad_sync = on


def expect_no_buffer_sync(models: Iterable[nn.Module]) -> None:
    """Let the next forward pass leave buffers as they are, as it does within a window of accumulated gradients."""
    for model in models:
        if isinstance(model, DistributedDataParallel):
            model.require_forward_param_sync = False
