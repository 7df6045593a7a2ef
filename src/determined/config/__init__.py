"""What the user asked for, as pure data.

>>> from determined import config
>>> config.load({"hyperparameters": {"lr": 0.1}}).searcher.name
'single'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from determined.config.experiment import ExperimentConfig as ExperimentConfig
    from determined.config.hparams import first_values as first_values
    from determined.config.loading import check as check
    from determined.config.loading import load as load
    from determined.config.loading import load_task as load_task
    from determined.config.task import TaskConfig as TaskConfig

# Training scripts import the units beside this; they must not wait for pydantic and PyYAML.
_HOMES = {
    "ExperimentConfig": "experiment",
    "TaskConfig": "task",
    "check": "loading",
    "first_values": "hparams",
    "load": "loading",
    "load_task": "loading",
}
__all__ = ["ExperimentConfig", "TaskConfig", "check", "first_values", "load", "load_task"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
