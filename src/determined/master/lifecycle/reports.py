"""What trials and tasks report, taken in: each line once, in order, all of a batch in one transaction.

A batch is understood before it comes to the write thread (``understand``), without a model for each row: a thousand
rows of metrics are to cost a few milliseconds. A line that has been acknowledged is stored for good, with everything
that follows from it: a validation together with what the search makes of it, a checkpoint after the metrics before it.
"""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Union

import orjson
import pydantic
import sqlalchemy as sa

from determined import errors
from determined.master.lifecycle import allocations, checkpoints, trials
from determined.master.lifecycle.patience import grace_seconds
from determined.master.records import AllocationState
from determined.master.store import allocations as allocation_rows
from determined.master.store import metrics as metric_rows
from determined.master.store import tables
from determined.master.store import trials as trial_rows
from determined.master.store.database import Tx
from determined.master.store.series import Row, Rows
from determined.wire.reports import (
    CheckpointGoneReport,
    CheckpointReport,
    EarlyExitReport,
    MetadataReport,
    MetricsReport,
    ProgressReport,
    Report,
    ReportBatch,
    ReportReply,
    Source,
    StatusReport,
    StopOrder,
    StopReason,
    UsageReport,
)

VALIDATION = "validation"
# When a node was last heard is written down this often at most: a heartbeat need not wait for the disk.
_HEARD_EVERY_SECONDS = 2.0
_MOST_STEPS = 2**63


Line = Union[
    tuple[str, Row],
    CheckpointReport,
    CheckpointGoneReport,
    ProgressReport,
    StatusReport,
    MetadataReport,
    EarlyExitReport,
    UsageReport,
]


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """Lines that are all metrics of one group."""

    group: str
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows.steps)

    def __getitem__(self, part: slice) -> Series:
        return Series(self.group, self.rows.cut(part.start))


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Lines of one spool as they are taken in. A line of metrics is a group and a row."""

    run_epoch: int
    source: Source
    first: int
    lines: Series | Sequence[Line]


_REPORT: pydantic.TypeAdapter[Report] = pydantic.TypeAdapter(Report)


def understand(body: bytes) -> Batch:
    """A batch from the body of a request; raises BadRequest that names the line that is wrong."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            data = json.loads(body)  # numbers that are none, in Python's spelling
        except (ValueError, RecursionError) as error:
            raise errors.BadRequest(f"this is no batch of reports: {error}") from None
    if not isinstance(data, dict) or not isinstance(reports := data.get("reports"), list):
        raise errors.BadRequest("this is no batch of reports: it has no list of them")
    run_epoch, first = data.get("run_epoch"), data.get("first")
    if type(run_epoch) is not int or type(first) is not int or not 0 <= first < _MOST_STEPS:
        raise errors.BadRequest("a batch of reports needs run_epoch and first, both integers")
    try:
        source = Source(data.get("source"))
    except ValueError:
        raise errors.BadRequest(f"reports come from chief or node, not from {data.get('source')!r}") from None
    return Batch(run_epoch, source, first, _series(reports) or [*_lines(reports, first)])


def from_batch(batch: ReportBatch) -> Batch:
    """The same of a batch that is a message already."""
    lines: list[Line] = []
    for report in batch.reports:
        if isinstance(report, MetricsReport):
            lines.append((report.group, Row(report.steps_completed, report.time, report.metrics)))
        else:
            lines.append(report)
    return Batch(batch.run_epoch, batch.source, batch.first, lines)


_FIELDS = operator.itemgetter("kind", "group", "steps_completed", "metrics", "time")


def _series(reports: Sequence[Any]) -> Series | None:
    """All lines at once, if all are good metrics of one group: the case that must be fast."""
    try:
        kinds, groups, steps, metrics, times = zip(*map(_FIELDS, reports))
    except (KeyError, TypeError, ValueError):
        return None
    if (
        set(kinds) == {"metrics"}
        and type(groups[0]) is str
        and groups.count(groups[0]) == len(groups)
        and set(map(type, steps)) == {int}
        and set(map(type, metrics)) == {dict}
        and set(map(type, times)) <= {float, int}
        and set(map(len, reports)) == {5}
        and 0 <= min(steps)
        and max(steps) < _MOST_STEPS
    ):
        return Series(groups[0], Rows(steps, times, metrics))
    return None


def _lines(reports: Sequence[Any], first: int) -> Iterator[Line]:
    for number, report in enumerate(reports, first):
        try:
            line = _REPORT.validate_python(report)
        except pydantic.ValidationError as error:
            raise errors.BadRequest(_what_is_wrong(error, number)) from None
        if isinstance(line, MetricsReport):
            # As it was sent: a model would take true for 1.
            if type(report["steps_completed"]) is not int or not 0 <= line.steps_completed < _MOST_STEPS:
                raise errors.BadRequest(f"line {number} is no report: steps_completed must be an integer from 0 on")
            yield line.group, Row(line.steps_completed, line.time, line.metrics)
        else:
            yield line


def _what_is_wrong(error: pydantic.ValidationError, number: int) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"line {number} is no report: {where or 'it'}: {first['msg']}"


def ingest(tx: Tx, allocation_id: str, batch: Batch | ReportBatch) -> ReportReply:
    """Take in what is new of a batch, and say how much there is now and whether to stop.

    Raises StaleRunEpoch when the attempt is over or another has taken its place, NotFound when there was none.
    """
    if isinstance(batch, ReportBatch):
        batch = from_batch(batch)
    teller = _teller(tx, allocation_id, batch)
    if teller.state is AllocationState.ASSIGNED:
        allocations.record_running(tx, allocation_id)
    acknowledged = teller.acknowledged
    # A batch from beyond what is known waits: the reply says where to begin.
    new = batch.lines[acknowledged - batch.first :] if batch.first <= acknowledged else ()
    if len(new):
        acknowledged += len(new)
        _take(tx, teller, new)
        _acknowledge(tx, teller, acknowledged)
    if teller.heard_at is None or len(new) or tx.now - teller.heard_at > _HEARD_EVERY_SECONDS:
        tx.execute(_HEARD, {"key": allocation_id, "heard_at": tx.now})
    return ReportReply(acknowledged=acknowledged, stop=_order(tx, teller))


@dataclasses.dataclass(frozen=True, slots=True)
class _Teller:
    """Who reports."""

    allocation_id: str
    run_epoch: int
    state: AllocationState
    trial_id: int | None
    experiment_id: int | None
    stop_reason: StopReason | None
    heard_at: float | None
    source: Source
    is_known: bool
    acknowledged: int


_TELLER = (
    sa.select(
        tables.allocations.c.run_epoch,
        tables.allocations.c.state,
        tables.allocations.c.trial_id,
        tables.allocations.c.experiment_id,
        tables.allocations.c.stop_reason,
        tables.allocations.c.heard_at,
        tables.spools.c.acknowledged,
    )
    .outerjoin(
        tables.spools,
        sa.and_(
            tables.spools.c.allocation_id == tables.allocations.c.id, tables.spools.c.source == sa.bindparam("source")
        ),
    )
    .where(tables.allocations.c.id == sa.bindparam("allocation"))
)
_HEARD = (
    sa.update(tables.allocations)
    .where(tables.allocations.c.id == sa.bindparam("key"))
    .values(heard_at=sa.bindparam("heard_at"))
)
_ACKNOWLEDGE = (
    sa.update(tables.spools)
    .where(tables.spools.c.allocation_id == sa.bindparam("key"), tables.spools.c.source == sa.bindparam("key_source"))
    .values(acknowledged=sa.bindparam("acknowledged"))
)


def _teller(tx: Tx, allocation_id: str, batch: Batch) -> _Teller:
    row = tx.execute(_TELLER, {"allocation": allocation_id, "source": batch.source.value}).one_or_none()
    if row is None:
        raise errors.NotFound(f"there is no allocation {allocation_id}")
    state = AllocationState(row.state)
    if state is AllocationState.ENDED or batch.run_epoch != row.run_epoch:
        raise errors.StaleRunEpoch(f"{allocation_id} is over: nothing more is taken from it")
    return _Teller(
        allocation_id,
        row.run_epoch,
        state,
        row.trial_id,
        row.experiment_id,
        StopReason(row.stop_reason) if row.stop_reason else None,
        row.heard_at,
        batch.source,
        row.acknowledged is not None,
        row.acknowledged or 0,
    )


def _acknowledge(tx: Tx, teller: _Teller, lines: int) -> None:
    if teller.is_known:
        tx.execute(
            _ACKNOWLEDGE,
            {"key": teller.allocation_id, "key_source": teller.source.value, "acknowledged": lines},
        )
    else:
        tx.execute(
            sa.insert(tables.spools),
            {"allocation_id": teller.allocation_id, "source": teller.source.value, "acknowledged": lines},
        )


def _order(tx: Tx, teller: _Teller) -> StopOrder | None:
    if teller.stop_reason is None:
        return None
    allocation = allocation_rows.require(tx, teller.allocation_id)
    return StopOrder(reason=teller.stop_reason, grace_seconds=grace_seconds(tx, allocation))


# What the lines say.


def _take(tx: Tx, teller: _Teller, lines: Series | Sequence[Line]) -> None:
    trial_id = teller.trial_id
    told = _Told()
    if trial_id is None:
        for line in () if isinstance(lines, Series) else lines:
            if isinstance(line, CheckpointReport):
                checkpoints.record(tx, allocation_rows.require(tx, teller.allocation_id), line)
        return
    for run in [lines] if isinstance(lines, Series) else _runs(lines):
        match run:
            case Series(group=group, rows=rows):
                _take_metrics(tx, teller, trial_id, group, rows, told)
            case CheckpointReport():
                checkpoints.record(tx, allocation_rows.require(tx, teller.allocation_id), run)
            case CheckpointGoneReport():
                checkpoints.record_gone(tx, allocation_rows.require(tx, teller.allocation_id), run.uuid)
            case ProgressReport():
                told.progress = run
            case StatusReport():
                told.values["status"] = run.status
            case MetadataReport():
                told.values["metadata"] = run.metadata
            case EarlyExitReport():
                trials.record_early_exit(tx, teller.allocation_id, run.reason, run.message)
    told.write(tx, teller, trial_id)


def _runs(lines: Iterable[Line]) -> Iterator[Any]:
    """Metrics that follow each other together, by group; other lines one by one. Usage counts as metrics."""
    run: dict[str, list[Row]] = {}
    for line in lines:
        if isinstance(line, tuple):
            run.setdefault(line[0], []).append(line[1])
        elif isinstance(line, UsageReport):
            run.setdefault(metric_rows.USAGE, []).append(_usage(line))
        else:
            for group, rows in run.items():
                yield Series(group, Rows.of(rows))
            run = {}
            yield line
    for group, rows in run.items():
        yield Series(group, Rows.of(rows))


def _usage(report: UsageReport) -> Row:
    usage: dict[str, float] = report.usage
    if report.node_rank:
        usage = {f"node_{report.node_rank}.{name}": value for name, value in usage.items()}
    return Row(int(report.time * 1000), report.time, usage)


@dataclasses.dataclass(slots=True)
class _Told:
    """What is to be written into a trial's row at the end of a batch."""

    steps: int = -1
    summaries: dict[str, Any] = dataclasses.field(default_factory=dict)
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    progress: ProgressReport | None = None

    def write(self, tx: Tx, teller: _Teller, trial_id: int) -> None:
        if self.steps >= 0 or self.values:
            steps, summaries = tx.execute(_TRIAL, {"trial": trial_id}).one()
            if self.steps > steps:
                self.values["steps_completed"] = self.steps
            if self.summaries:
                self.values["summary_metrics"] = {**summaries, **self.summaries}
            trial_rows.update(tx, trial_id, **self.values)
            shown = {name: self.values[name] for name in ("steps_completed", "status") if name in self.values}
            tx.changed("trial", trial_id, teller.experiment_id, **(shown or {"steps_completed": steps}))
        if self.progress is not None:
            trials.record_progress(tx, trial_id, self.progress.progress, self.progress.steps_completed)


_TRIAL = sa.select(tables.trials.c.steps_completed, tables.trials.c.summary_metrics).where(
    tables.trials.c.id == sa.bindparam("trial")
)


def _take_metrics(tx: Tx, teller: _Teller, trial_id: int, group: str, rows: Rows, told: _Told) -> None:
    tail = metric_rows.insert_many(tx, trial_id, group, teller.run_epoch, rows)
    if group != metric_rows.USAGE:
        told.summaries[group] = tail.summary()
        told.steps = max(told.steps, tail.steps)
    if group == VALIDATION:
        # The search hears of validations once they are stored, in the order in which they were reported.
        trial = trial_rows.require(tx, trial_id)
        for steps, metrics in zip(rows.steps, rows.metrics):
            trial = trials.feed_validation(tx, trial, metrics, steps)
