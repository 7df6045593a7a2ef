"""What a training process says about itself: metrics, progress, status."""

from __future__ import annotations

import enum
import operator
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from determined import errors
from determined.core.checkpoint import CheckpointContext
from determined.core.console import Console
from determined.core.reporter import Reporter
from determined.core.run_folder import RunFolder
from determined.core.sinks import Row

_METADATA = "metadata.json"
_PLAIN = frozenset((float, int, str, bool))


class EarlyExitReason(enum.Enum):
    """Why a trial ends before its time."""

    INVALID_HP = "EXITED_REASON_INVALID_HP"
    USER_REQUESTED_STOP = "EXITED_REASON_USER_REQUESTED_STOP"


class TensorboardMode(enum.Enum):
    """Whether reported metrics are written for TensorBoard (AUTO) or the script does that itself (MANUAL)."""

    AUTO = "AUTO"
    MANUAL = "MANUAL"


class TrainContext:
    """Reports metrics and progress. Only the chief should report; what other ranks report is not kept.

    A report costs the caller microseconds. What goes wrong in the background is raised by the next report, or at the
    end.
    """

    def __init__(
        self,
        run: RunFolder,
        checkpoint: CheckpointContext,
        console: Console,
        reporter: Reporter | None,
        tensorboard_mode: TensorboardMode,
        tell: Callable[[Mapping[str, Any]], None] = lambda report: None,
    ) -> None:
        self._run = run
        self._checkpoint = checkpoint
        self._console = console
        self._reporter = reporter
        self._tensorboard_mode = tensorboard_mode
        self._tell = tell
        self._said: set[str] = set()
        self.last_steps = 0
        self.early_exit: EarlyExitReason | None = None
        self.last_validation: tuple[int, Mapping[str, Any]] | None = None

    def report_training_metrics(
        self,
        steps_completed: int,
        metrics: dict[str, Any],
        batch_metrics: list[dict[str, Any]] | None = None,
    ) -> None:
        """Report metrics of the training since the last such report, after ``steps_completed`` steps in all."""
        self._report("training", steps_completed, metrics, batch_metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of a validation. RuntimeError when one is None."""
        for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
            if value is None:
                raise RuntimeError(f"validation metric {name!r} is None; leave it out or report a number")
        self._report("validation", steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of any group: "training", "validation", or a name of your own without a dot."""
        if not isinstance(group, str) or not group or "." in group:
            raise ValueError(f"a metric group is a name without dots, not {group!r}")
        if group == "validation":
            self.report_validation_metrics(steps_completed, metrics)
        else:
            self._report(group, steps_completed, metrics)

    def report_progress(self, progress: float) -> None:
        """Say how much of the training is done, from 0 to 1."""
        self._console.progress(float(progress))
        self._tell(
            {"kind": "progress", "progress": min(max(float(progress), 0.0), 1.0), "steps_completed": self.last_steps}
        )

    def set_status(self, status: str) -> None:
        """Say what is going on, in a few words."""
        self._console.status(status)
        self._tell({"kind": "status", "status": str(status)})

    def report_early_exit(self, reason: EarlyExitReason, message: str = "") -> None:
        """Say that the training ends before its time, and if you like, why."""
        self.early_exit = EarlyExitReason(reason)
        self._tell({"kind": "early_exit", "reason": self.early_exit.name.lower(), "message": message})

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Keep a document with the run, in the place of an earlier one."""
        if not isinstance(metadata, dict):
            raise TypeError(f"metadata is a dict, not {type(metadata).__name__}")
        plain = _plain_mapping(metadata, "metadata ", self._say_once)
        self._run.write(_METADATA, plain)
        self._tell({"kind": "metadata", "metadata": plain})

    def get_metadata(self) -> dict[str, Any] | None:
        """The document kept with the run, if there is one."""
        metadata: dict[str, Any] | None = self._run.read(_METADATA)
        return metadata

    def get_tensorboard_path(self) -> pathlib.Path:
        """The folder that TensorBoard shows of this run."""
        self._run.tensorboard.mkdir(parents=True, exist_ok=True)
        return self._run.tensorboard

    def upload_tensorboard_files(
        self,
        selector: Callable[[pathlib.Path], bool] = lambda _: True,
        mangler: Callable[[pathlib.Path, int], pathlib.Path] = lambda path, _: path,
    ) -> None:
        """Make files in the TensorBoard folder visible; with TensorboardMode.MANUAL only.

        Off-cluster they are where TensorBoard looks already.
        """
        if self._tensorboard_mode is not TensorboardMode.MANUAL:
            raise RuntimeError("upload_tensorboard_files() needs core.init(tensorboard_mode=TensorboardMode.MANUAL)")

    def get_experiment_best_validation(self) -> float | None:
        """The best value of the searcher's metric so far; None while there is none."""
        return self._checkpoint.best_validation()

    def flush(self) -> None:
        """Return once every row reported so far is on disk."""
        if self._reporter is not None:
            self._reporter.flush()

    def settle(self) -> None:
        """As ``flush``, but what went wrong is left for the next report to raise."""
        if self._reporter is not None:
            self._reporter.settle()

    def close(self) -> None:
        """Write what is left; raises what went wrong since the last report."""
        if self._reporter is not None:
            self._reporter.close()

    def _report(
        self,
        group: str,
        steps_completed: int,
        metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        if self._reporter is None:
            self._say_once("metrics are taken from the chief (rank 0) only; what this rank reported is not kept")
            return
        try:
            steps = operator.index(steps_completed)
        except TypeError:
            raise TypeError(f"steps_completed is a whole number, not {steps_completed!r}") from None
        if not isinstance(metrics, Mapping):
            raise errors.InvalidDataTypeException(
                type(metrics).__name__, f"Report {group} metrics as a dict from name to number."
            )
        plain = _plain_mapping(metrics, f"{group} metric ", self._say_once)
        batches: list[Mapping[str, Any]] | None = None
        if batch_metrics:
            batches = [_plain_mapping(each, "batch metric ", self._say_once) for each in batch_metrics]
        self._reporter.put(Row(group, steps, plain, batches, time.time()))
        self.last_steps = max(self.last_steps, steps)
        if group == "validation":
            self.last_validation = (steps, plain)
            metric = self._checkpoint.retention.metric
            value = plain.get(metric) if metric else None
            if isinstance(value, (int, float)):
                self._checkpoint.record_validation(steps, float(value))

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._console.warn(text)


def _plain_mapping(metrics: Mapping[Any, Any], where: str, warn: Callable[[str], None]) -> dict[str, Any]:
    """Metrics as plain numbers, texts, lists and dicts, now: a tensor may be overwritten by the next step."""
    plain: dict[str, Any] = {}
    for name, value in metrics.items():
        if type(name) is not str:
            name = str(name)
        if type(value) in _PLAIN:
            plain[name] = value
        elif isinstance(value, (bytes, bytearray)):
            warn(f"{where}{name!r} is bytes, which is not kept; report a number or text")
        else:
            plain[name] = _plain_value(value, f"{where}{name!r}", warn)
    return plain


def _plain_value(value: Any, where: str, warn: Callable[[str], None]) -> Any:
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return _plain_mapping(value, f"{where}.", warn)
    if isinstance(value, (list, tuple)):
        return [_plain_value(each, where, warn) for each in value]
    if isinstance(value, (bool, int, str, float)):  # subclasses: numpy's float64, an IntEnum
        return next(kind(value) for kind in (bool, int, str, float) if isinstance(value, kind))
    kind = type(value)
    # numpy's and torch's own way to plain values: what is not a plain number after it, has none.
    for method in ("tolist", "item", "__float__"):
        convert = getattr(value, method, None)
        if callable(convert):
            converted = convert()
            if type(converted) is not kind:
                return _plain_value(converted, where, warn)
    raise errors.InvalidDataTypeException(
        f"{kind.__module__}.{kind.__qualname__}",
        f"{where[0].upper()}{where[1:]} must be a number; convert it first, for example with float(...).",
    )
