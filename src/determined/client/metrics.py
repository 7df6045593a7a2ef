"""Metrics out of the master: one by one, as a table of pandas, or as a Parquet file."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Union

from determined import errors
from determined.wire.views import MetricsRow

if TYPE_CHECKING:
    import pandas

_FIXED = ("trial_id", "group", "steps_completed", "time", "run_epoch")


@dataclasses.dataclass(frozen=True)
class TrialMetrics:
    """One report of metrics. ``trial_run_id`` says in which of the trial's attempts it was made."""

    trial_id: int
    trial_run_id: int
    steps_completed: int
    end_time: datetime.datetime
    metrics: dict[str, Any]
    group: str

    @property
    def total_batches(self) -> int:
        """The older name of ``steps_completed``."""
        return self.steps_completed


def as_trial_metrics(row: MetricsRow) -> TrialMetrics:
    """A row of the API as scripts see it."""
    when = datetime.datetime.fromtimestamp(row.time, datetime.timezone.utc)
    return TrialMetrics(row.trial_id, row.run_epoch, row.steps_completed, when, row.metrics, row.group)


def to_pandas(rows: Iterable[MetricsRow]) -> pandas.DataFrame:
    """A table with one line for each report, complete: nothing is thinned.

    Columns are trial_id, group, steps_completed, time (UTC) and run_epoch, then one for each metric; nested ones are
    named ``outer.inner``. A metric that has the name of one of the first columns is called ``metrics.<name>``.
    """
    pandas = _pandas()
    columns = _columns(rows)
    frame = pandas.DataFrame({name: _typed(values, pandas) for name, values in columns.items()})
    frame["time"] = pandas.to_datetime(frame["time"], unit="s", utc=True)
    return frame


def to_parquet(rows: Iterable[MetricsRow], path: Union[str, os.PathLike[str]]) -> pathlib.Path:
    """The same table as a Parquet file, which appears when it is whole. What has no type there is JSON text."""
    target = pathlib.Path(path)
    frame = to_pandas(rows)
    for name in frame.columns:
        if frame[name].dtype == object:
            frame[name] = [None if value is None else _as_text(value) for value in frame[name]]
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        frame.to_parquet(unfinished, index=False)
        unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return target


def _columns(rows: Iterable[MetricsRow]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in _FIXED}
    count = 0
    for row in rows:
        for name in _FIXED:
            columns[name].append(getattr(row, name))
        for name, value in _flat(row.metrics):
            column = columns.setdefault(f"metrics.{name}" if name in _FIXED else name, [])
            column.extend([None] * (count - len(column)))
            column.append(value)
        count += 1
    for column in columns.values():
        column.extend([None] * (count - len(column)))
    return columns


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in metrics.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _typed(values: list[Any], pandas: Any) -> Any:
    """A column of numbers where it is one. Whole numbers stay exact; NaN is a number, and not an absent one."""
    present = [value for value in values if value is not None]
    kinds = {type(value) for value in present}
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in present):
        return pandas.array(values, dtype="Int64" if len(present) < len(values) else "int64")
    if kinds and kinds <= {int, float} and all(float(value) == value or value != value for value in present):
        return pandas.array([float("nan") if value is None else float(value) for value in values], dtype="float64")
    if kinds == {bool}:
        return pandas.array(values, dtype="boolean" if len(present) < len(values) else "bool")
    if kinds == {str}:
        return pandas.array(values, dtype="string")
    return pandas.Series(values, dtype=object)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _pandas() -> Any:
    try:
        import pandas
        import pyarrow  # noqa: F401
    except ImportError:
        raise errors.DeterminedError(
            "tables of metrics need pandas and pyarrow: pip install 'resolute[export]'"
        ) from None
    return pandas
