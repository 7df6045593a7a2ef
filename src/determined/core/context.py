"""Context: what ``core.init`` gives, everything a training process can do, wherever it runs."""

from __future__ import annotations

import atexit
import contextlib
import os
import pathlib
import shutil
import sys
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from determined import errors
from determined.core.checkpoint import CheckpointContext, Found
from determined.core.code_capture import CodeCapture
from determined.core.console import Console, describe
from determined.core.preempt import PreemptContext
from determined.core.profiler import ProfilerContext
from determined.core.ranks import DistributedContext
from determined.core.run_folder import TARGET, RunFolder
from determined.core.searcher import SearcherContext
from determined.core.train import EarlyExitReason, TrainContext

if TYPE_CHECKING:
    from determined.core.cluster_info import ClusterInfo
    from determined.wire.node_spec import NodeSpec


class ExperimentalCoreContext:
    """What may still change."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def report_task_using_checkpoint(self, checkpoint: Any) -> None:
        """Say that this task reads a checkpoint. Off-cluster there is nobody to keep account of it."""
        self._console.info(f"uses checkpoint {getattr(checkpoint, 'uuid', checkpoint)}")

    def report_task_using_model_version(self, model_version: Any) -> None:
        """Say that this task reads a version of a registered model. Off-cluster there is nobody to keep account."""
        self._console.info(f"uses model version {getattr(model_version, 'name', model_version)}")


class Parts(NamedTuple):
    """What a Context is put together from."""

    train: TrainContext
    checkpoint: CheckpointContext
    distributed: DistributedContext
    preempt: PreemptContext
    searcher: SearcherContext
    profiler: ProfilerContext
    console: Console
    run: RunFolder
    beats: memoryview
    spec: Mapping[str, Any]
    info: ClusterInfo | None
    found: Found | None
    capture: Callable[[], CodeCapture | None]
    find: Callable[[str], Found | None]
    locate: Callable[[str | None, int | str | None], Found]
    owns_distributed: bool
    how_to_resume: str


class Context:
    """Metrics, checkpoints, preemption and ranks of one training process. Use it in a ``with`` block.

    Leaving the block by det.InvalidHP reports that and exits with code 0.
    """

    def __init__(self, parts: Parts) -> None:
        self.train = parts.train
        self.checkpoint = parts.checkpoint
        self.distributed = parts.distributed
        self.preempt = parts.preempt
        self.searcher = parts.searcher
        self.profiler = parts.profiler
        self.experimental = ExperimentalCoreContext(parts.console)
        self.info = parts.info
        self.console = parts.console
        self.run = parts.run
        self.beats = parts.beats
        self.found = parts.found
        """The checkpoint this run goes on from, if any."""
        self._facts = parts.spec
        self._spec: NodeSpec | None = None
        self._parts = parts
        self._closed = False
        # For a context that is used without ``with``.
        self._last_chance = _closer(weakref.ref(self))
        atexit.register(self._last_chance)

    @property
    def spec(self) -> NodeSpec:
        """The NodeSpec as the chief has it; made at first use, because pydantic takes long to import."""
        if self._spec is None:
            from determined.wire.node_spec import NodeSpec

            self._spec = NodeSpec.model_validate(self._facts)
        return self._spec

    @property
    def config(self) -> dict[str, Any] | None:
        """The experiment config, when there is one."""
        config: dict[str, Any] | None = self._facts["config"]
        return config

    @property
    def hparams(self) -> dict[str, Any]:
        """The hyperparameters of this run."""
        hparams: dict[str, Any] = self._facts["trial"]["hparams"]
        return hparams

    @property
    def seed(self) -> int:
        """The seed of this run."""
        return int(self._facts["trial"]["seed"])

    @property
    def steps_completed(self) -> int:
        """Up to where this run has been trained; 0 for one that begins, be it with another trial's weights."""
        return int(self._facts["trial"]["steps_completed"])

    @property
    def target(self) -> tuple[float | None, str | None]:
        """How far a search wants this run trained for now, and in which unit; (None, None) means to its end."""
        trial = self._facts["trial"]
        return trial.get("target"), trial.get("target_unit")

    def has_reached_target(self, *, batches: int, epochs: float, records: int | None = None) -> bool:
        """Whether a run that has come so far may leave, because the search wants no more of it for now."""
        target, unit = self.target
        if target is None:
            return False
        if unit is None:
            length = ((self.config or {}).get("searcher") or {}).get("max_length")
            unit = next(iter(length)) if isinstance(length, Mapping) else "epochs"
        done = {"batches": batches, "epochs": epochs, "records": records}.get(unit)
        return done is not None and done >= target

    def alert(
        self,
        title: str | None = None,
        description: str | None = None,
        level: Literal["debug", "info", "warn", "error"] = "info",
    ) -> None:
        """Tell people something."""
        text = ": ".join(part for part in (title, description) if part)
        if level in ("warn", "error"):
            self.console.warn(text)
        else:
            self.console.info(text)

    def resume(self, latest_checkpoint: str) -> Found | None:
        """Go on from a checkpoint ("latest", an id, or a path); all ranks call this, before anything is reported.

        When the checkpoint is of an earlier run, this run becomes that one. "latest" gives None when there is none yet;
        any other name raises CheckpointNotFound.
        """
        self.found = self._parts.find(latest_checkpoint)
        self._spec = None
        self._facts = {
            **self._facts,
            "name": self.run.name,
            "run_id": self.run.id,
            "run_folder": str(self.run.path),
            "latest_checkpoint": self.found.storage_id if self.found else None,
            "trial": {**self._facts["trial"], "steps_completed": self.found.steps_completed if self.found else 0},
        }
        return self.found

    def locate(self, checkpoint: str | None = None, trial: int | str | None = None) -> Found:
        """A checkpoint to look at: by "latest", id or path; or the best of a trial (locally: of a run).

        Without either it is the best of the newest run that has one. Raises CheckpointNotFound.
        """
        return self._parts.locate(checkpoint, trial)

    def link_code(self, target: pathlib.Path) -> None:
        """Put the run's copy of the code into a checkpoint too, without copying it again where links can be made."""
        capture = self._parts.capture()
        if capture is not None:
            capture.finish()
        if self.run.code.is_dir():
            shutil.copytree(self.run.code, target, copy_function=_link_or_copy)

    def keep_by_policy(self, metric: str | None = None, smaller_is_better: bool | None = None) -> None:
        """From now on keep the best and the latest checkpoints, as many as the config says (1 and 1 by default)."""
        storage = (self.config or {}).get("checkpoint_storage") or {}
        searcher = (self.config or {}).get("searcher") or {}
        better = smaller_is_better if smaller_is_better is not None else searcher.get("smaller_is_better")
        metric, better = metric or searcher.get("metric"), True if better is None else bool(better)
        self.checkpoint.retain(
            best=max(storage.get("save_trial_best", 1), storage.get("save_experiment_best", 0)),
            latest=storage.get("save_trial_latest", 1),
            metric=metric,
            smaller_is_better=better,
        )
        if metric is not None and self.distributed.rank == 0:
            # For whoever looks for the best checkpoint of this run later; a full disk is complained about elsewhere.
            with contextlib.suppress(OSError):
                self.run.write(TARGET, {"metric": metric, "smaller_is_better": better})

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, errors.InvalidHP):
            self.train.report_early_exit(EarlyExitReason.INVALID_HP, str(error))
            self.console.info(f"these hyperparameters are not worth training: {error}")
            self.close(error)
            raise SystemExit(0)
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """Write what is left, say how it ended, and let go of everything. ``error`` is what ended it, if anything.

        Raises what went wrong with the last reports, unless training itself ended by an error.
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._last_chance)
        state = _state(error, self.preempt.acknowledged, self.train.early_exit)
        problem: Exception | None = None
        self.profiler.off()
        try:
            self.train.close()
        except Exception as failure:
            problem = failure
            self.console.warn(f"not everything that was reported could be kept: {failure}")
        capture = self._parts.capture()
        if capture is not None:
            capture.finish()
        self.console.close()
        if self.distributed.rank == 0:
            for line in self._summary(state):
                self.console.info(line)
            self.run.finish(state)
        self.preempt.close()
        if self._parts.owns_distributed:
            self.distributed.close()
        if problem is not None and error is None:
            raise problem

    def _summary(self, state: str) -> list[str]:
        parts = [f"run {self.run.name}-{self.run.id} {_WORDS[state]}"]
        retention = self.checkpoint.retention
        best_value = self.checkpoint.best_validation()
        latest = best = None
        try:
            latest, best = self.checkpoint.latest(), self.checkpoint.best()
        except (errors.DeterminedError, OSError):
            pass  # the storage is gone; that has been said elsewhere
        if retention.metric and best_value is not None:
            parts.append(f"best {retention.metric} {best_value:.4g}")
        elif self.train.last_validation is not None:
            parts.append(describe(self.train.last_validation[1], most=3))
        shown = best if best is not None and state == "completed" else latest
        if shown is not None:
            parts.append(f"checkpoint {shown.storage_id}")
        lines = [f"{' · '.join(parts)} · {self.run.path}"]
        if self._parts.how_to_resume and state in ("interrupted", "failed") and latest is not None:
            lines.append(f'go on with: {self._parts.how_to_resume}  (or latest_checkpoint="latest")')
        return lines


_WORDS = {
    "completed": "completed",
    "interrupted": "interrupted",
    "failed": "failed",
    "invalid_hp": "ended: invalid hyperparameters",
    "stopped": "stopped as the script asked",
}


def _state(error: BaseException | None, was_told_to_stop: bool, early_exit: EarlyExitReason | None) -> str:
    if early_exit is EarlyExitReason.INVALID_HP:
        return "invalid_hp"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if error is not None and not (isinstance(error, SystemExit) and not error.code):
        return "failed"
    if was_told_to_stop:
        return "interrupted"
    return "completed" if early_exit is None else "stopped"


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _closer(context: weakref.ref[Context]) -> Callable[[], None]:
    def close_at_exit() -> None:
        alive = context()
        if alive is not None:
            alive.close(getattr(sys, "last_value", None))

    return close_at_exit
