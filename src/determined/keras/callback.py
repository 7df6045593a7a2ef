"""DeterminedCallback: what connects Keras' ``model.fit`` with a core.Context, on a laptop and on a cluster."""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Literal, Union

import keras

from determined import core, errors
from determined.core import connect
from determined.core.beats import COUNT_BITS
from determined.core.checkpoint import Found, read_metadata

logger = logging.getLogger("determined.keras")

_WEIGHTS = "model.weights.h5"
_RANDOMNESS = "randomness.pt"
_VALIDATION_PREFIX = "val_"
_BEAT_BITS = 64


class DeterminedCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras ships no types.
    """Reports what Keras measures, saves checkpoints, and stops and resumes ``model.fit`` between epochs.

    ``checkpoint`` is what to start from: "latest", an id, or a path; None means the one the context was started with,
    if any. A checkpoint saved under the same ``continue_id`` is gone on with, at its epoch; one of another id gives its
    weights and optimizer to a training that starts at the first epoch. With the torch backend the random numbers go on
    too, so that a resumed training does exactly what an undisturbed one would have done.

    Training metrics are reported at the end of each epoch, or after every ``train_metrics_report_period`` batches;
    a checkpoint is saved after every ``checkpoint_epochs`` epochs (0: never), when asked to stop, and at the end.
    Make it on every rank, for one ``fit()``. States of other callbacks, such as EarlyStopping's, are in no checkpoint.

    >>> import keras, numpy
    >>> import determined as det
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer="sgd", loss="mse")
    >>> x = numpy.ones((8, 1))
    >>> with det.core.init() as core_context:
    ...     callback = det.keras.DeterminedCallback(core_context, checkpoint="latest", continue_id="mine")
    ...     history = model.fit(x, x, epochs=2, callbacks=[callback], verbose=0)
    >>> history.epoch
    [0, 1]
    """

    was_preempted: bool
    """Whether training was asked to stop, and did, before it was done."""

    def __init__(
        self,
        core_context: core.Context,
        checkpoint: Union[str, os.PathLike[str], None],
        continue_id: Union[int, str],
        *,
        train_metrics_report_period: Union[int, Literal["epoch"]] = "epoch",
        checkpoint_epochs: int = 1,
    ) -> None:
        super().__init__()
        period = train_metrics_report_period
        if period != "epoch" and (not isinstance(period, int) or period < 1):
            raise ValueError(f'train_metrics_report_period is "epoch" or a number of batches, not {period!r}')
        if checkpoint_epochs < 0:
            raise ValueError(f"checkpoint_epochs must be 0 (never) or more, not {checkpoint_epochs}")
        self._core = core_context
        self._is_chief = core_context.distributed.rank == 0
        self._continue_id = str(continue_id)
        self._period = period
        self._checkpoint_epochs = checkpoint_epochs
        self._batches = self._epoch_began_at = 0
        self._epochs = 0
        self._saved_at: int | None = None
        self.was_preempted = False
        self._has_begun = self._continues = False
        self._found = self._find(None if checkpoint is None else os.fspath(checkpoint))
        searcher = (core_context.config or {}).get("searcher") or {}
        core_context.keep_by_policy(searcher.get("metric") or f"{_VALIDATION_PREFIX}loss")

    @property
    def epochs_completed(self) -> int:
        """How many epochs this training has behind it, those before an interruption included."""
        return self._epochs

    # --- for subclasses

    def save_model(self, model: Any, path: pathlib.Path, distributed: core.DistributedContext) -> None:
        """Write the model and its optimizer into a folder. Called on the chief; override it with ``load_model``."""
        model.save_weights(path / _WEIGHTS)

    def load_model(self, model: Any, path: pathlib.Path, distributed: core.DistributedContext) -> None:
        """Read what ``save_model`` wrote. Called on every rank."""
        if model.optimizer is not None and not model.optimizer.built:
            # Otherwise its state would be skipped, and training would go on with a fresh optimizer.
            model.optimizer.build(model.trainable_variables)
        model.load_weights(path / _WEIGHTS)

    # --- Keras' events, in the order in which they come

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        if self._has_begun:
            raise RuntimeError(
                "this DeterminedCallback has been through a fit() already: its steps and checkpoints are those of one "
                "training; make another callback, in a core.init() of its own, for the next"
            )
        self._has_begun = True
        if self._found is not None:
            self._load(self._found)
        # Where fit() begins to count, as Keras' own BackupAndRestore sets it.
        self.model._initial_epoch = self._epochs or None

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._epochs = epoch
        self._epoch_began_at = self._batches

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        before, self._batches = self._batches, self._epoch_began_at + batch + 1
        self._core.beats[0] = self._batches
        if self._period != "epoch" and self._batches // self._period > before // self._period:
            self._report("training", logs or {})

    def on_test_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        # A sign of life above the count of batches: a long validation is not a training that hangs.
        beats = self._core.beats
        if beats[0]:
            beats[0] = (beats[0] + (1 << COUNT_BITS)) % (1 << _BEAT_BITS)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._epochs = epoch + 1
        logs = logs or {}
        if self._period == "epoch":
            self._report("training", {name: logs[name] for name in logs if not name.startswith(_VALIDATION_PREFIX)})
        self._report("validation", {name: logs[name] for name in logs if name.startswith(_VALIDATION_PREFIX)})
        planned = self.params.get("epochs") or self._epochs
        if self._is_chief:
            self._core.train.report_progress(min(self._epochs / planned, 1.0))
        if self._checkpoint_epochs and self._epochs % self._checkpoint_epochs == 0:
            self._save()
        if self._epochs < planned and self._core.preempt.should_preempt():
            self.was_preempted = self.model.stop_training = True
        elif self._core.has_reached_target(batches=self._batches, epochs=self._epochs):
            self.model.stop_training = True

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._save()
        self.model._initial_epoch = None

    # --- below

    def _find(self, checkpoint: str | None) -> Found | None:
        """The checkpoint to start from; if it is one to go on with, this run becomes the one it is of."""
        found = self._core.found
        if checkpoint == connect.LATEST:
            found = found or self._core.resume(checkpoint)
        elif checkpoint is not None and (found is None or checkpoint not in (found.storage_id, str(found.path))):
            found = self._core.locate(checkpoint)
        if found is None:
            return None
        continue_id = read_metadata(found.path).get("continue_id")
        self._continues = str(continue_id) == self._continue_id
        if self._continues and found is not self._core.found:
            found = self._core.resume(str(found.path)) or found
        if self._is_chief:
            self._core.console.info(
                f"goes on after epoch {read_metadata(found.path)['epochs_completed']}"
                if self._continues
                else f"starts at the first epoch with the weights of checkpoint {found.storage_id}, whose continue_id "
                f"is {continue_id}"
            )
        return found

    def _load(self, found: Found) -> None:
        with self._core.checkpoint.reading(found.path) as path:
            metadata = read_metadata(path)
            if "continue_id" not in metadata:
                raise errors.InvalidCheckpointException(
                    f"checkpoint {found.storage_id} was not saved by determined.keras.DeterminedCallback; name another "
                    "one, or None to start anew"
                )
            self.load_model(self.model, path, self._core.distributed)
            if self._continues:
                self._epochs = int(metadata["epochs_completed"])
                self._batches = self._saved_at = int(metadata["steps_completed"])
                if (path / _RANDOMNESS).exists() and _computes_with_torch():
                    _restore_randomness(path / _RANDOMNESS)

    def _report(self, group: str, metrics: Mapping[str, Any]) -> None:
        if metrics and self._is_chief:
            place = {"batches": self._batches, "epochs": self._epochs}
            self._core.train.report_metrics(group, self._batches, {**metrics, **place})

    def _save(self) -> None:
        if self._saved_at == self._batches:
            return
        self._saved_at = self._batches
        if not self._is_chief:
            return
        metadata = {
            "steps_completed": self._batches,
            "epochs_completed": self._epochs,
            "continue_id": self._continue_id,
            "framework": f"keras-{keras.__version__}",
        }
        try:
            with self._core.checkpoint.store_path(metadata) as (path, _):
                self.save_model(self.model, path, self._core.distributed)
                if _computes_with_torch():
                    _save_randomness(path / _RANDOMNESS)
        except errors.CheckpointStateException as error:
            logger.error("A CHECKPOINT COULD NOT BE SAVED: %s. Training goes on.", error)


def _computes_with_torch() -> bool:
    return bool(keras.backend.backend() == "torch")


def _save_randomness(path: pathlib.Path) -> None:
    import torch

    from determined.pytorch import rng

    torch.save(rng.capture(), path)


def _restore_randomness(path: pathlib.Path) -> None:
    import torch

    from determined.pytorch import rng

    rng.restore(torch.load(path, weights_only=True))
