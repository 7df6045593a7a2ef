"""PyTorch training: organise a model as a ``PyTorchTrial``, and train it anywhere."""

from __future__ import annotations

from determined.config.units import Batch, Epoch, TrainUnit
from determined.pytorch.callbacks import PyTorchCallback, StopOnNaN
from determined.pytorch.context import CheckpointLoadContext, PyTorchExperimentalContext, PyTorchTrialContext
from determined.pytorch.data import DataLoader, TorchData, adapt_batch_sampler, data_length, to_device
from determined.pytorch.loading import load_trial_from_checkpoint_path
from determined.pytorch.lr_scheduler import LRScheduler
from determined.pytorch.oldest import reset_parameters
from determined.pytorch.reducers import MetricReducer, Reducer
from determined.pytorch.samplers import (
    DistributedBatchSampler,
    DistributedSampler,
    RepeatBatchSampler,
    RepeatSampler,
    ReproducibleShuffleBatchSampler,
    ReproducibleShuffleSampler,
    SkipBatchSampler,
    SkipSampler,
)
from determined.pytorch.trainer import Trainer
from determined.pytorch.training import TrainingContext, init
from determined.pytorch.trial import PyTorchTrial

__all__ = [
    "Batch",
    "CheckpointLoadContext",
    "DataLoader",
    "DistributedBatchSampler",
    "DistributedSampler",
    "Epoch",
    "LRScheduler",
    "MetricReducer",
    "PyTorchCallback",
    "PyTorchExperimentalContext",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Reducer",
    "RepeatBatchSampler",
    "RepeatSampler",
    "ReproducibleShuffleBatchSampler",
    "ReproducibleShuffleSampler",
    "SkipBatchSampler",
    "SkipSampler",
    "StopOnNaN",
    "TorchData",
    "TrainUnit",
    "Trainer",
    "TrainingContext",
    "adapt_batch_sampler",
    "data_length",
    "init",
    "load_trial_from_checkpoint_path",
    "reset_parameters",
    "to_device",
]
