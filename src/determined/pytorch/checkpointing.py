"""Checkpointer: takes a consistent cut of training out of the way, and has it written while training goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

import determined
from determined import core, errors
from determined.pytorch import archive, metrics, parallel, restoring, sharded, snapshot, state
from determined.pytorch.callbacks import Hooks
from determined.pytorch.context import PyTorchTrialContext
from determined.pytorch.progress import Progress
from determined.pytorch.target import Target
from determined.storage import base

POLICIES = ("best", "all", "none")


class Checkpointer:
    """Saves checkpoints of one trial; all ranks call it together, the chief writes."""

    def __init__(
        self,
        context: PyTorchTrialContext,
        hooks: Hooks,
        core_context: core.Context,
        *,
        policy: str,
        target: Target,
        trial_class: type,
    ) -> None:
        if policy not in POLICIES:
            raise errors.InvalidExperimentException(
                f"checkpoint_policy must be one of {', '.join(POLICIES)}, not {policy!r}"
            )
        self._trial_class = trial_class
        self._context = context
        self._hooks = hooks
        self._core = core_context
        self._policy = policy
        self._target = target
        self._snapshotter = snapshot.Snapshotter()
        self._saver = snapshot.Saver()
        self._prepared = False
        self._saving = 0  # batches done at the save that is in flight, or was the last
        core_context.keep_by_policy(target.metric, target.smaller_is_better)

    @property
    def _is_chief(self) -> bool:
        return self._context.distributed.rank == 0

    @property
    def is_sharded(self) -> bool:
        return any(parallel.is_sharded(model) for model in self._context.models)

    def policy_wants(self, found: dict[str, Any]) -> bool:
        """Whether the validation just made, not yet reported, earns a checkpoint. All ranks get the same answer."""
        wants = self._policy == "all"
        if self._is_chief:
            self._rate_by(self._target.name(found))
            if self._policy == "best":
                wants = self._target.is_better(found, self._core.train.get_experiment_best_validation())
        distributed = self._context.distributed
        return bool(distributed.broadcast(wants) if distributed.size > 1 else wants)

    def _rate_by(self, metric: str | None) -> None:
        """Keep the checkpoints that are best by this metric."""
        if metric is not None and self._core.checkpoint.retention.metric != metric:
            self._core.keep_by_policy(metric, self._target.smaller_is_better)

    def is_due(self) -> bool:
        """Whether this very moment has no checkpoint yet. All ranks ask; the chief knows which saves failed."""
        progress, distributed = self._context.progress, self._context.distributed
        due = progress.last_checkpoint != progress.batches_done
        return bool(distributed.broadcast(due)) if distributed.size > 1 else due

    def prepare(self) -> None:
        """Have memory ready for the first copy, before it is needed."""
        if self._is_chief and not self._prepared and not self.is_sharded:
            self._prepared = True
            self._snapshotter.prepare(
                [[m.state_dict() for m in self._context.models], [o.state_dict() for o in self._context.optimizers]]
            )

    def save(self, rows: Sequence[metrics.Row]) -> None:
        """Checkpoint this very moment. Returns when training may change the state again, before it is on disk."""
        distributed, progress = self._context.distributed, self._context.progress
        mine = state.of_this_rank(self._context, progress, rows)
        ranks = distributed.gather(mine) if distributed.size > 1 else [mine]
        staged = self._core.checkpoint.begin(self._metadata(progress)) if self._is_chief else None
        if self.is_sharded:
            folder = distributed.broadcast(staged.path if staged else None)
            sharded.save(self._context.models, self._context.optimizers, folder)
        if staged is not None:
            assert ranks is not None
            self._save_on_chief(staged, ranks, progress)
        if self._hooks.want_files:
            uuid = distributed.broadcast(staged.storage_id if staged else None)
            for hook in self._hooks.checkpoint_upload_end:
                hook(uuid)

    def wait(self) -> None:
        """Until the last checkpoint is durable, or known to have failed."""
        try:
            self._saver.wait()
        except (OSError, errors.CheckpointStateException) as error:
            self._warn_of_failure(error)

    def _save_on_chief(
        self, staged: base.StagedCheckpoint, ranks: Sequence[dict[str, Any]], progress: Progress
    ) -> None:
        self.wait()  # one save in flight
        self._saving = progress.batches_done
        whole = state.gather(self._context, self._hooks, ranks, sharded=self.is_sharded)
        for hook in self._hooks.checkpoint_save_start:
            hook(whole)
        documents = {
            restoring.COUNTERS: progress.to_json(self._context.get_trial_id()),
            "load_data.json": self._load_data(),
        }
        captured = self._snapshotter.capture(whole)

        def write() -> None:
            size, digest = archive.write(captured.state, staged.path / restoring.STATE)
            staged.record(restoring.STATE, size, digest)
            for name, document in documents.items():
                (staged.path / name).write_text(json.dumps(document, indent=1, default=str))
            self._core.link_code(staged.path / "code")

        def write_and_publish() -> None:
            try:
                write()
                staged.publish()
            except BaseException:
                staged.discard()
                raise

        if not self._hooks.want_files:
            self._saver.save(captured, write_and_publish)
            return
        try:
            write()
            for write_hook in self._hooks.checkpoint_write_end:
                write_hook(staged.path)
            for end_hook in self._hooks.checkpoint_end:
                end_hook(str(staged.path))
            staged.publish()
        except (OSError, errors.CheckpointStateException) as error:
            staged.discard()
            self._warn_of_failure(error)
        except BaseException:
            staged.discard()
            raise
        finally:
            captured.release()

    def _metadata(self, progress: Progress) -> dict[str, Any]:
        return {
            "determined_version": determined.__version__,
            "steps_completed": progress.batches_done,
            "framework": f"torch-{torch.__version__}",
            "format": "pickle",
        }

    def _load_data(self) -> dict[str, Any]:
        cls = self._trial_class
        return {
            "trial_type": "PyTorchTrial",
            "experiment_config": self._context.settings.exp_conf,
            "hparams": self._context.settings.hparams,
            "trial_cls_spec": f"{cls.__module__}:{cls.__qualname__}",
            "is_trainer": True,
        }

    def _warn_of_failure(self, error: Exception) -> None:
        if self._context.progress.last_checkpoint == self._saving:
            self._context.progress.last_checkpoint = None  # so that the next occasion is taken
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self._core.console.warn(
            f"A CHECKPOINT COULD NOT BE SAVED to {self._core.run.checkpoints}: {why}. Training goes on, earlier "
            "checkpoints are untouched; make room, and the next one will be saved"
        )
