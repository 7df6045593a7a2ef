"""The state of training as one nested value of tensors and plain data: gathered for a checkpoint, and put back."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from determined import errors
from determined.pytorch import gradients, metrics, parallel, rng
from determined.pytorch import sharded as pieces
from determined.pytorch.callbacks import Hooks
from determined.pytorch.context import PyTorchTrialContext
from determined.pytorch.progress import Progress

logger = logging.getLogger("determined.pytorch")

# What the documented layout does not have stands under one key of ours, so that other tools can ignore it.
EXTRAS = "resolute"


class CheckpointMismatch(errors.InvalidCheckpointException, RuntimeError):
    """A checkpoint of another model."""


@dataclasses.dataclass
class RankState:
    """What differs between ranks: random numbers, metrics since the last boundary, gradients not yet shared."""

    rng: dict[str, Any]
    rows: list[metrics.Row]
    reducers: list[Any]
    window: dict[str, Any] | None = None


def of_this_rank(context: PyTorchTrialContext, progress: Progress, rows: Sequence[metrics.Row]) -> dict[str, Any]:
    in_mid_stretch = progress.settled < progress.batches_done
    return {
        "rng": rng.capture(),
        "rows": [{name: _plain_or_none(value) for name, value in row.items()} for row in rows],
        "reducers": [_reducer_state(context, i, s) for i, s in enumerate(context.reducers.state())]
        if in_mid_stretch
        else [],
        **_of_open_window(context),
    }


def _of_open_window(context: PyTorchTrialContext) -> dict[str, Any]:
    """What replicas do not share while gradients accumulate: those, and the buffers that forward passes changed."""
    if context.distributed.size == 1 or any(parallel.is_sharded(model) for model in context.models):
        return {}
    pending = gradients.pending(context.optimizers)
    if not _has_any(pending):
        return {}
    buffers = [dict(parallel.unwrap(model).named_buffers()) for model in context.models]
    return {"window": {"gradients": pending, "buffers": buffers}}


def _has_any(pending: gradients.Pending) -> bool:
    return any(gradient is not None for of_optimizer in pending for gradient in of_optimizer)


def gather(
    context: PyTorchTrialContext, hooks: Hooks, ranks: Sequence[dict[str, Any]], *, sharded: bool
) -> dict[str, Any]:
    """The whole state on the chief, in the documented layout. Tensors are those of the model, not copies."""
    state: dict[str, Any] = {
        "models_state_dict": [] if sharded else [parallel.unwrap(model).state_dict() for model in context.models],
        "optimizers_state_dict": [] if sharded else [optimizer.state_dict() for optimizer in context.optimizers],
        "lr_schedulers_state_dict": [scheduler.state_dict() for scheduler in context.lr_schedulers],
        "callbacks": {name: callback.state_dict() for name, callback in hooks.callbacks.items()},
        "rng_state": ranks[0]["rng"],
    }
    if context.precision.scaler is not None:
        state["scaler_state_dict"] = context.precision.scaler.state_dict()
    pending = [] if sharded else gradients.pending(context.optimizers)
    state[EXTRAS] = {"ranks": list(ranks), "gradients": pending if _has_any(pending) else []}
    if sharded:
        state[EXTRAS]["sharded_gradients"] = pieces.pending(context.models)
    return state


def present(context: PyTorchTrialContext) -> dict[str, Any]:
    """The models' tensors as they lie in memory, for a checkpoint to be read straight into."""
    if any(parallel.is_sharded(model) for model in context.models):
        return {}
    return {"models_state_dict": [parallel.unwrap(model).state_dict() for model in context.models]}


def put_back(state: Mapping[str, Any], context: PyTorchTrialContext, hooks: Hooks, *, sharded: bool) -> None:
    """Load everything but the random numbers, which are restored last, by ``rank_state``."""
    if not sharded:
        load_models(context.models, state.get("models_state_dict", []))
        _load_each("optimizer", context.optimizers, state.get("optimizers_state_dict", []))
    _load_each("LR scheduler", context.lr_schedulers, state.get("lr_schedulers_state_dict", []))
    for name, callback in hooks.callbacks.items():
        if name in state.get("callbacks", {}):
            callback.load_state_dict(state["callbacks"][name])
        elif callback.state_dict():
            logger.warning("the checkpoint has no state for the callback %r; it starts afresh", name)
    scaler, scaler_state = context.precision.scaler, state.get("scaler_state_dict")
    if scaler is not None and scaler_state:
        scaler.load_state_dict(dict(scaler_state))
    elif scaler is not None:
        logger.warning("the checkpoint has no state for the gradient scaler; it starts afresh")
    pending = state.get(EXTRAS, {}).get("gradients", [])
    gradients.restore_pending(context.optimizers, pending)


def rank_state(state: Mapping[str, Any], rank: int, size: int) -> RankState | None:
    """What belongs to this rank; None from a checkpoint that does not have it for each rank."""
    ranks = state.get(EXTRAS, {}).get("ranks", [])
    if len(ranks) == size:
        mine = ranks[rank]
        return RankState(mine["rng"], list(mine["rows"]), list(mine["reducers"]), mine.get("window"))
    saved = state.get("rng_state")
    if not saved:
        logger.warning("the checkpoint has no state of the random number generators; they start afresh")
        return None
    if ranks:
        logger.warning(
            "the checkpoint was taken with %d ranks and is resumed with %d: the order of the data goes on, but each "
            "rank's random numbers start from the chief's",
            len(ranks),
            size,
        )
    return RankState(saved, [], [])


def reopen_window(context: PyTorchTrialContext, window: Mapping[str, Any]) -> None:
    """Go on accumulating where this rank was."""
    gradients.restore_pending(context.optimizers, window["gradients"])
    for model, buffers in zip(context.models, window["buffers"]):
        own = dict(parallel.unwrap(model).named_buffers())
        with torch.no_grad():
            for name, value in buffers.items():
                own[name].copy_(value)
    parallel.expect_no_buffer_sync(context.models)


def forget_window(state: Mapping[str, Any]) -> None:
    """Take accumulated gradients out of a state that somebody else's training begins with."""
    extras = state.get(EXTRAS, {})
    extras.pop("gradients", None)
    extras.pop("sharded_gradients", None)
    for rank in extras.get("ranks", []):
        rank.pop("window", None)


def load_models(models: Sequence[nn.Module], saved: Sequence[Mapping[str, Any]]) -> None:
    if len(models) != len(saved):
        raise CheckpointMismatch(
            f"the checkpoint has {len(saved)} models, but the trial wrapped {len(models)}; "
            "wrap the same models, in the same order, as when it was saved"
        )
    for index, (model, state) in enumerate(zip(models, saved)):
        inner = parallel.unwrap(model)
        if state and all(name.startswith("module.") for name in state):
            own = inner.state_dict().keys()
            if not all(name in own for name in state):
                state = {name[len("module.") :]: value for name, value in state.items()}
        try:
            inner.load_state_dict(state)
        except RuntimeError as error:
            raise CheckpointMismatch(
                f"the checkpoint does not fit model {index} ({type(inner).__name__}): {_first_lines(error)}"
            ) from error


def _load_each(what: str, targets: Sequence[Any], saved: Sequence[Any]) -> None:
    if len(targets) != len(saved):
        raise CheckpointMismatch(
            f"the checkpoint has {len(saved)} {what} states, but the trial wrapped {len(targets)}; "
            "wrap the same ones, in the same order, as when it was saved"
        )
    for index, (target, state) in enumerate(zip(targets, saved)):
        try:
            target.load_state_dict(state)
        except (ValueError, KeyError, RuntimeError) as error:
            raise CheckpointMismatch(f"the checkpoint does not fit {what} {index}: {_first_lines(error)}") from error


def _first_lines(error: BaseException) -> str:
    return " ".join(line.strip() for line in str(error).splitlines()[:4])


def _reducer_state(context: PyTorchTrialContext, index: int, state: Any) -> Any:
    try:
        return plain(state)
    except TypeError as error:
        logger.warning(
            "reducer %s holds %s, which a checkpoint cannot keep: after resuming, its next value covers only the "
            "batches since this checkpoint. Keep tensors and plain data in it to avoid that",
            context.reducers.wrapped[index].label,
            error,
        )
        return None


def _plain_or_none(value: Any) -> Any:
    try:
        return plain(value)
    except TypeError:
        return None


def plain(value: Any) -> Any:
    """The value as tensors and plain containers; TypeError names what is neither."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, (collections.Counter, collections.OrderedDict)) or type(value) is dict:
        return {key: plain(item) for key, item in value.items()}
    if type(value) is list:
        return [plain(item) for item in value]
    if type(value) is tuple:
        return tuple(plain(item) for item in value)
    raise TypeError(f"a {type(value).__name__}")
