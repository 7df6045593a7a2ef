"""The state of this process's random number generators, as plain data."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed Python, numpy and torch alike, as every rank of a trial does."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.manual_seed(seed)


def capture() -> dict[str, Any]:
    """The generators' states under their documented names, loadable without running code."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "cpu_rng_state": torch.random.get_rng_state(),
        "np_rng_state": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "random_rng_state": [version, torch.tensor(words, dtype=torch.int64), gauss],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["gpu_rng_state"] = torch.cuda.get_rng_state()
    return state


def restore(state: dict[str, Any]) -> None:
    """Continue every generator where ``capture`` found it; takes the predecessor's forms as well."""
    if "cpu_rng_state" in state:
        torch.random.set_rng_state(torch.as_tensor(state["cpu_rng_state"]).to("cpu", torch.uint8))
    if "np_rng_state" in state:
        name, keys, position, has_gauss, cached = state["np_rng_state"]
        np.random.set_state((name, np.asarray(keys).astype(np.uint32), int(position), int(has_gauss), float(cached)))
    if "random_rng_state" in state:
        version, words, gauss = state["random_rng_state"]
        random.setstate((version, tuple(int(word) for word in words), gauss))
    if state.get("gpu_rng_state") is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.as_tensor(state["gpu_rng_state"]).to("cpu", torch.uint8))
