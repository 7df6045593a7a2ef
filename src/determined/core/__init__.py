"""What a training process can do, wherever it runs: metrics, checkpoints, preemption, ranks. Needs no torch.

>>> from determined import core
>>> core.Unit.EPOCHS.value
'EPOCHS'
"""

from __future__ import annotations

from determined.core.checkpoint import CheckpointContext, DownloadMode
from determined.core.connect import init
from determined.core.context import Context, ExperimentalCoreContext
from determined.core.imports import import_from_path
from determined.core.preempt import PreemptContext, PreemptMode, StopLine
from determined.core.profiler import ProfilerContext
from determined.core.ranks import DistributedContext
from determined.core.searcher import SearcherContext, SearcherMode, SearcherOperation, Unit
from determined.core.train import EarlyExitReason, TensorboardMode, TrainContext

__all__ = [
    "CheckpointContext",
    "Context",
    "DistributedContext",
    "DownloadMode",
    "EarlyExitReason",
    "ExperimentalCoreContext",
    "PreemptContext",
    "PreemptMode",
    "ProfilerContext",
    "SearcherContext",
    "SearcherMode",
    "SearcherOperation",
    "StopLine",
    "TensorboardMode",
    "TrainContext",
    "Unit",
    "import_from_path",
    "init",
]
