"""PyTorchTrial: the class a user organises a model in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

import torch

from determined import errors
from determined.pytorch import data
from determined.pytorch.callbacks import PyTorchCallback
from determined.pytorch.context import PyTorchTrialContext
from determined.pytorch.reducers import Reducer


class PyTorchTrial:
    """Your model, its data and what one batch does to it; the trainer does the rest.

    In ``__init__``, wrap models, optimizers and schedulers with the context. ``train_batch`` computes the loss and
    calls ``context.backward`` and ``context.step_optimizer``. Validation is either ``evaluate_batch``, once per batch,
    or ``evaluate_full_dataset``, once on the chief. The two ``build_*_data_loader`` methods may be left out when
    loaders are passed to ``context.fit()``.
    """

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context

    def build_training_data_loader(self) -> Any:
        """The training data, as a det.pytorch.DataLoader with this rank's batch size."""
        raise _not_defined(self, "build_training_data_loader")

    def build_validation_data_loader(self) -> Any:
        """The validation data, as a det.pytorch.DataLoader with this rank's batch size."""
        raise _not_defined(self, "build_validation_data_loader")

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Callbacks by name; the names identify their state in checkpoints."""
        return {}

    if TYPE_CHECKING:
        # Users leave batch_idx out, or write the oldest forms with a model: to a type checker all of them are right.
        def train_batch(self, *args: Any, **kwargs: Any) -> Any: ...
        def evaluate_batch(self, *args: Any, **kwargs: Any) -> Any: ...
    else:

        def train_batch(self, batch, epoch_idx, batch_idx):
            """Train on one batch and return its loss, or a dict of metrics. ``batch_idx`` counts over all epochs."""
            raise _not_defined(self, "train_batch")

        def evaluate_batch(self, batch, batch_idx):
            """Metrics of one validation batch, the same names for every batch. ``batch_idx`` may be left out."""
            raise _not_defined(self, "evaluate_batch")

    def evaluate_full_dataset(self, data_loader: torch.utils.data.DataLoader[Any]) -> dict[str, Any]:
        """Metrics of the whole validation set, computed on the chief."""
        raise _not_defined(self, "evaluate_full_dataset")

    def evaluation_reducer(self) -> Union[Reducer, dict[str, Reducer]]:
        """How validation metrics are reduced over batches: one rule for all, or one for each name."""
        return Reducer.AVG

    def get_batch_length(self, batch: Any) -> int:
        """How many records a batch has."""
        return data.data_length(batch)


def _not_defined(trial: PyTorchTrial, method: str) -> Exception:
    return errors.InvalidExperimentException(f"{type(trial).__name__} does not define {method}()")


def overrides(trial: object, method: str) -> bool:
    """Whether the trial's class (or the object itself) defines a method rather than inheriting ours."""
    if method in vars(trial):
        return True
    own = getattr(type(trial), method, None)
    return own is not None and own is not getattr(PyTorchTrial, method, None)
