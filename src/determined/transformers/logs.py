"""What Hugging Face's Trainer logs, sorted: which group of metrics it belongs to, and what is only about speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RUNTIME = "_runtime"
_SPEED = (
    _RUNTIME,
    "_samples_per_second",
    "_steps_per_second",
    "_tokens_per_second",
    "_model_preparation_time",
    "_jit_compilation_time",
)


def group_of(logs: Mapping[str, Any]) -> str:
    """``training``, ``validation``, or the prefix of an evaluation that has one of its own (``test``)."""
    prefix = _prefix(logs)
    if prefix is None:
        return "validation" if any(name.startswith("eval_") for name in logs) else "training"
    if prefix == "train":
        return "training"
    return "validation" if prefix.split("_")[0] == "eval" else prefix.replace(".", "_")


def is_summary(logs: Mapping[str, Any]) -> bool:
    """Whether this is what the Trainer says at the end, about everything that one call to ``train()`` did."""
    return "train_loss" in logs and "total_flos" in logs


def metrics_in(logs: Mapping[str, Any]) -> dict[str, Any]:
    """What is worth reporting: neither speed, which differs from run to run, nor the epoch, which is no result."""
    prefix = _prefix(logs)
    dropped = {"epoch", "total_flos", *(f"{prefix}{suffix}" for suffix in _SPEED)}
    return {name: value for name, value in logs.items() if name not in dropped}


def _prefix(logs: Mapping[str, Any]) -> str | None:
    # The Trainer measures each evaluation's speed as <prefix>_runtime. A metric of the user's may end like that, too.
    prefixes = [name.removesuffix(_RUNTIME) for name in logs if name.endswith(_RUNTIME)]
    return min(prefixes, key=len, default=None)
