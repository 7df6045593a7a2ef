"""TorchBatchProcessor: what to do with each batch of a dataset, and the context it is given for that."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any, TypeVar

from torch import nn

from determined.pytorch import data
from determined.pytorch.training import TrainingContext

AnyModel = TypeVar("AnyModel", bound=nn.Module)


class TorchBatchProcessorContext:
    """Given to a processor's ``__init__``: its device, its rank, and where results go.

    Made by ``torch_batch_process``, never by hand.
    """

    def __init__(self, training: TrainingContext) -> None:
        self.core_context = training.core_context
        self.distributed = training.distributed
        self.device = training.device
        assert training.core_context is not None
        self._core = training.core_context
        self._warned: set[type] = set()

    def get_distributed_rank(self) -> int:
        """The rank of this process among all."""
        return self.distributed.rank

    def get_distributed_size(self) -> int:
        """How many ranks share the dataset."""
        return self.distributed.size

    def to_device(self, batch: Any) -> Any:
        """Move a batch, however nested, to this rank's device."""
        return data.to_device(batch, self.device, self._warned)

    def prepare_model_for_inference(self, model: AnyModel) -> AnyModel:
        """The model on this rank's device, in evaluation mode."""
        model.to(self.device)
        model.eval()
        return model

    @property
    def output(self) -> pathlib.Path:
        """The folder of the run that collects what ``upload_path`` was given, by all ranks and all starts."""
        return self._core.run.path / "output"

    @contextlib.contextmanager
    def upload_path(self) -> Iterator[pathlib.Path]:
        """A folder to write results into; at the end of the block its files appear in ``output``.

        A file takes the place of an earlier one of its name. So name it by a batch (``f"predictions-{batch_idx}"``):
        after a crash the batches since the last checkpoint come again, and so do their files.
        """
        self.output.mkdir(parents=True, exist_ok=True)
        partial = self.output / f".partial-{os.urandom(4).hex()}"
        partial.mkdir()
        try:
            yield partial
            for path in sorted(partial.rglob("*")):
                if not path.is_dir():
                    target = self.output / path.relative_to(partial)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(path, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of the whole run, on the chief: what other ranks report is not kept."""
        self._core.train.report_metrics(group, steps_completed, metrics)

    def get_tensorboard_path(self) -> pathlib.Path:
        """The folder that TensorBoard shows of this run."""
        return self._core.train.get_tensorboard_path()

    def report_task_using_checkpoint(self, checkpoint: Any) -> None:
        """Say that the processor's model comes from this checkpoint."""
        self._core.experimental.report_task_using_checkpoint(checkpoint)

    def report_task_using_model_version(self, model_version: Any) -> None:
        """Say that the processor's model is this version of a registered model."""
        self._core.experimental.report_task_using_model_version(model_version)


class TorchBatchProcessor:
    """What to do with each batch; one object on every rank. ``__init__`` is given the context and loads the model.

    Results that are kept in memory belong into files, or into ``state_dict``, when ``on_checkpoint_start`` is called:
    what was done before that is not done again.
    """

    def __init__(self, context: TorchBatchProcessorContext) -> None:
        self.context = context

    def process_batch(self, batch: Any, batch_idx: int) -> None:
        """Do the work on one batch, on the CPU as the dataset made it. ``batch_idx`` is its place in the dataset.

        Rank r is given the batches r, r + size, r + 2 * size and so on, in this order.
        """
        raise TypeError(f"{type(self).__name__} does not define process_batch(self, batch, batch_idx)")

    def on_checkpoint_start(self) -> None:
        """Called on every rank before the progress is saved: write down the results so far."""

    def on_finish(self) -> None:
        """Called on every rank when all batches are done and saved; again if the run is started again after that."""

    def state_dict(self) -> dict[str, Any]:
        """What this rank's processor must remember across an interruption, such as sums of a metric: plain data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` returned, before the first batch of a resumed run."""
