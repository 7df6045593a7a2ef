"""Metrics out of the master: one by one, as a table of pandas, or as a Parquet file."""

from __future__ import annotations

import builtins
import dataclasses
import datetime
import json
import math
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
    named ``outer.inner``. A metric that has the name of one of the first columns is called ``metrics.<name>``. Where a
    report has no such metric pandas shows NaN, or NA among whole numbers.
    """
    pandas, _ = _libraries()
    columns = _columns(rows)
    frame = pandas.DataFrame({name: _typed(values, pandas) for name, values in columns.items()})
    frame["time"] = pandas.to_datetime(frame["time"], unit="s", utc=True)
    return frame


def to_parquet(rows: Iterable[MetricsRow], path: Union[str, os.PathLike[str]]) -> pathlib.Path:
    """The same table as a Parquet file, which appears when it is whole.

    An absent metric is null there, and NaN is NaN. What has no type of its own is JSON text.
    """
    _, arrow = _libraries()
    target = pathlib.Path(path)
    columns = {name: _arrow(name, values, arrow) for name, values in _columns(rows).items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        arrow.parquet.write_table(arrow.table(columns), unfinished)
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


def _kind(values: list[Any]) -> type:
    """What all values that are there are: whole numbers, numbers, truths, text, or of no one kind (object)."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int} and all(value is None or -(2**63) <= value < 2**63 for value in values):
        return int
    if float in kinds and kinds <= {int, float} and all(_is_float(value) for value in values if value is not None):
        return float
    return kinds.pop() if kinds in ({bool}, {str}) else object


def _is_float(value: float) -> bool:
    """Whether a number is the same as a float."""
    try:
        return float(value) == value or value != value
    except OverflowError:
        return False


def _typed(values: list[Any], pandas: Any) -> Any:
    is_whole = None not in values
    match _kind(values):
        case builtins.int:
            return pandas.array(values, dtype="int64" if is_whole else "Int64")
        case builtins.float:
            return pandas.Series([math.nan if value is None else float(value) for value in values], dtype="float64")
        case builtins.bool:
            return pandas.array(values, dtype="bool" if is_whole else "boolean")
        case builtins.str:
            return pandas.array(values, dtype="string")
        case _:
            return pandas.Series(values, dtype=object)


def _arrow(name: str, values: list[Any], arrow: Any) -> Any:
    if name == "time":
        return arrow.array([round(value * 1e6) for value in values], type=arrow.timestamp("us", tz="UTC"))
    match _kind(values):
        case builtins.int:
            return arrow.array(values, type=arrow.int64(), from_pandas=False)
        case builtins.float:
            numbers = [None if value is None else float(value) for value in values]
            return arrow.array(numbers, type=arrow.float64(), from_pandas=False)
        case builtins.bool:
            return arrow.array(values, type=arrow.bool_())
        case builtins.str:
            return arrow.array(values, type=arrow.string())
        case _:
            texts = [
                None if value is None else value if isinstance(value, str) else json.dumps(value) for value in values
            ]
            return arrow.array(texts, type=arrow.string())


def _libraries() -> tuple[Any, Any]:
    try:
        import pandas
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise errors.DeterminedError(
            "tables of metrics need pandas and pyarrow: pip install 'resolute[export]'"
        ) from None
    return pandas, pyarrow
