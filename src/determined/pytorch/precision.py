"""Mixed precision: forward passes in half precision, gradients scaled so that small ones survive."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn


class Precision:
    """What ``use_amp`` and ``wrap_scaler`` decided."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.dtype: torch.dtype | None = None  # of autocast; None while it is off
        self.scaler: torch.amp.GradScaler | None = None
        self.automatic = False  # the trainer scales, unscales and updates by itself

    def use_amp(self, dtype: torch.dtype | None) -> None:
        """Autocast every wrapped model; scale gradients where the type needs it.

        float16 on GPUs by default, bfloat16 on CPUs (which needs no scaling).
        """
        if dtype is None:
            dtype = torch.float16 if self._device.type == "cuda" else torch.bfloat16
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"use_amp takes torch.float16 or torch.bfloat16, not {dtype}")
        self.dtype = dtype
        self.automatic = True
        if dtype is torch.float16:
            self.scaler = torch.amp.GradScaler(self._device.type)

    @property
    def scales(self) -> bool:
        """Whether the trainer itself scales losses and unscales gradients."""
        return self.automatic and self.scaler is not None

    def cast(self, model: nn.Module) -> None:
        """Run this model's forward under autocast, and hand its results out as float32."""
        forward = model.forward
        device_type, dtype = self._device.type, self.dtype
        assert dtype is not None

        @functools.wraps(forward)
        def autocast_forward(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(device_type, dtype=dtype):
                return _to_float(forward(*args, **kwargs))

        model.forward = autocast_forward


def _to_float(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    if isinstance(value, dict):
        return type(value)({k: _to_float(v) for k, v in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_to_float(v) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_to_float(v) for v in value)
    return value
