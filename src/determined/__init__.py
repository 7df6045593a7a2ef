"""Train PyTorch models anywhere and resume them exactly.

Importing this package costs nothing: every public name below is fetched when it is first used.
"""

from __future__ import annotations

# Type checkers take this name for true. Importing typing for it would cost more than all the rest of this file.
TYPE_CHECKING = False

__version__ = "0.1.0"

LOG_FORMAT = "%(levelname)s: [%(process)d] %(name)s: %(message)s"

__all__ = [
    "LOG_FORMAT",
    "Batch",
    "Batches",
    "ClusterInfo",
    "Epoch",
    "Epochs",
    "ExperimentConfig",
    "InvalidHP",
    "Record",
    "Records",
    "RendezvousInfo",
    "ResourcesInfo",
    "TrainUnit",
    "TrialContext",
    "TrialInfo",
    "__version__",
    "core",
    "errors",
    "get_cluster_info",
    "import_from_path",
]

if TYPE_CHECKING:
    from determined import core, errors
    from determined.config.experiment import ExperimentConfig
    from determined.config.units import Batch, Batches, Epoch, Epochs, Record, Records, TrainUnit
    from determined.core.cluster_info import ClusterInfo, RendezvousInfo, ResourcesInfo, TrialInfo, get_cluster_info
    from determined.core.imports import import_from_path
    from determined.errors import InvalidHP
    from determined.pytorch import PyTorchTrialContext as TrialContext
else:
    # Hidden from type checkers, so that they refuse a misspelt name instead of taking it for Any.
    _HOMES = {
        "Batch": "determined.config.units",
        "Batches": "determined.config.units",
        "ClusterInfo": "determined.core.cluster_info",
        "Epoch": "determined.config.units",
        "Epochs": "determined.config.units",
        "ExperimentConfig": "determined.config.experiment",
        "InvalidHP": "determined.errors",
        "Record": "determined.config.units",
        "Records": "determined.config.units",
        "RendezvousInfo": "determined.core.cluster_info",
        "ResourcesInfo": "determined.core.cluster_info",
        "TrainUnit": "determined.config.units",
        "TrialContext": "determined.pytorch",
        "TrialInfo": "determined.core.cluster_info",
        "get_cluster_info": "determined.core.cluster_info",
        "import_from_path": "determined.core.imports",
    }
    _NAMES_THERE = {"TrialContext": "PyTorchTrialContext"}
    _SUBMODULES = {"core", "errors", "experimental", "keras", "launch", "pytorch", "transformers"}

    def __getattr__(name):
        """Fetch a public name from the module it lives in, once."""
        import importlib

        if name in _SUBMODULES:
            return importlib.import_module(f"determined.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'determined' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), _NAMES_THERE.get(name, name))
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
