"""Series of numbers that are thinned while they come in, so that a page with any number of points is drawn at once.

Of every numeric metric of a trial's group there is a pyramid: a bucket of level k stands for 8**k reports and keeps the
smallest, the largest and the last of them. Buckets are written when they are full. What is not in a full bucket yet
is the group's tail: it is remembered between transactions, written down every few hundred rows, and worked out again
from there. Numbers that are none (NaN) count, and are neither smallest nor largest.

Steps may come late or twice; the buckets that they fall into are made anew. A group in which they come very late is
given up: its rows are all there, and are read one by one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from determined.master.store import tables
from determined.master.store.database import Tx

WIDTH = 8
# The tail is written down after so many rows, and so many at most are read on top of it.
_WRITTEN_EVERY = 512
# Rows that come before so many others make the pyramid of their group not worth keeping.
_VERY_LATE = 10_000
_REMEMBERED = 4096
# So many rows are read one by one before buckets are better.
_ROWS_READ = 4000
# How many buckets are read for each point that is asked for, at most: they are joined.
_READ_PER_POINT = 3

NAN = float("nan")

_buckets = tables.series_buckets
_tails = tables.series_tails
_metrics = tables.metrics


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """One metric over steps. Each point stands for one report or for several: the last, the smallest, the largest."""

    total: int
    steps: list[int]
    last: list[float]
    min: list[float]
    max: list[float]
    time: list[float]


@dataclasses.dataclass(slots=True)
class Bucket:
    """Some reports in a row. None stands for no number."""

    first_step: int
    last_step: int
    min: float | None
    max: float | None
    last: float | None
    time: float

    def add(self, other: Bucket) -> None:
        """Take in what comes after it."""
        self.last_step, self.last, self.time = other.last_step, other.last, other.time
        if other.min is not None and (self.min is None or other.min < self.min):
            self.min = other.min
        if other.max is not None and (self.max is None or other.max > self.max):
            self.max = other.max

    def copy(self) -> Bucket:
        return Bucket(self.first_step, self.last_step, self.min, self.max, self.last, self.time)


@dataclasses.dataclass(slots=True)
class Open:
    """What of one metric is in no full bucket: up to seven reports, and up to seven buckets of each level in one."""

    count: int = 0  # of all its reports
    steps: list[int] = dataclasses.field(default_factory=list)
    values: list[float] = dataclasses.field(default_factory=list)
    times: list[float] = dataclasses.field(default_factory=list)
    levels: list[Bucket | None] = dataclasses.field(default_factory=list)  # of level 2 and on

    def extend(self, steps: Sequence[int], values: Sequence[float], times: Sequence[float], close: _Close) -> None:
        """Reports that come after all it has; ``close`` is told of every bucket that they fill."""
        number = self.count // WIDTH
        self.count += len(values)
        self.steps.extend(steps)
        self.values.extend(values)
        self.times.extend(times)
        full = len(self.values) - len(self.values) % WIDTH
        if not full:
            return
        steps, values, times = self.steps, self.values, self.times
        self.steps, self.values, self.times = steps[full:], values[full:], times[full:]
        # A sum shows at once whether all are numbers.
        is_plain = math.isfinite(sum(values))
        for at in range(0, full, WIDTH):
            part = values[at : at + WIDTH]
            end = at + WIDTH - 1
            if is_plain:
                bucket = Bucket(steps[at], steps[end], min(part), max(part), part[-1], times[end])
            else:
                bucket = _bucket(steps[at : end + 1], part, times[at : end + 1])
            close(1, number, bucket)
            self._climb(number, bucket, close)
            number += 1

    def _climb(self, number: int, bucket: Bucket, close: _Close) -> None:
        at = 0
        while True:
            if at == len(self.levels):
                self.levels.append(None)
            above = self.levels[at]
            if above is None:
                self.levels[at] = above = bucket.copy() if at == 0 else bucket
            else:
                above.add(bucket)
            if (number + 1) % WIDTH:
                return
            number //= WIDTH
            close(at + 2, number, above)
            self.levels[at] = None
            bucket = above
            at += 1

    def whole(self, below: int | None = None) -> Bucket | None:
        """All of it as one bucket; ``below`` a level: only what is in no full bucket of that level."""
        levels = self.levels if below is None else self.levels[: max(below - 1, 0)]
        parts = [level for level in reversed(levels) if level is not None]
        if self.values and (below is None or below >= 1):
            parts.append(_bucket(self.steps, self.values, self.times))
        if not parts:
            return None
        whole = parts[0].copy()
        for part in parts[1:]:
            whole.add(part)
        return whole


_Close = Callable[[int, int, Bucket], None]


@dataclasses.dataclass(slots=True)
class Tail:
    """The tails of all metrics of a group. ``steps`` is the last that it has seen, ``rows`` how many rows there are."""

    steps: int = -1
    rows: int = 0
    is_loose: bool = False
    names: dict[str, Open] = dataclasses.field(default_factory=dict)
    unwritten: int = 0  # rows since it was written down

    def summary(self) -> dict[str, dict[str, Any]]:
        """Count, smallest, largest and last of each metric."""
        summary = {}
        for name, found in self.names.items():
            whole = found.whole()
            if whole is not None:
                summary[name] = {"count": found.count, "min": whole.min, "max": whole.max, "last": _number(whole.last)}
        return summary


class Row(NamedTuple):
    """One row of a group, as series see it."""

    steps: int
    time: float
    metrics: Mapping[str, Any]


class Rows(NamedTuple):
    """Many rows, column by column: the same things done to each are done faster so."""

    steps: Sequence[int]
    times: Sequence[float]
    metrics: Sequence[Mapping[str, Any]]

    @staticmethod
    def of(rows: Iterable[Row]) -> Rows:
        """Rows as columns."""
        columns = [*zip(*rows)] or [(), (), ()]
        return Rows(columns[0], columns[1], columns[2])

    def cut(self, first: int, end: int | None = None) -> Rows:
        """Some of them, by their place."""
        return Rows(self.steps[first:end], self.times[first:end], self.metrics[first:end])


# Writing. All of it happens on the write thread.


def append(tx: Tx, trial_id: int, group: str, rows: Rows) -> Tail:
    """Take in rows that are in the table already, or will be in this transaction, and come after all before."""
    tail = tail_of(tx, trial_id, group)
    is_new = not tail.rows
    tail.rows += len(rows.steps)
    tail.unwritten += len(rows.steps)
    tail.steps = rows.steps[-1]
    if not tail.is_loose:
        closed: list[tuple[Any, ...]] = []
        for name, steps, values, times in _columns(rows):
            opened = tail.names.get(name)
            if opened is None:
                opened = tail.names[name] = Open()
            opened.extend(steps, values, times, _closing(closed, trial_id, group, name))
        tx.insert_many(_buckets, closed)
    if is_new or tail.unwritten >= _WRITTEN_EVERY:
        _write(tx, trial_id, group, tail)
    return tail


def replace(tx: Tx, trial_id: int, group: str, steps: int, insert: Callable[[], int]) -> Tail:
    """Make the series anew from ``steps`` on: ``insert`` adds and changes rows there and tells how many are more."""
    tail = tail_of(tx, trial_id, group)
    is_very_late = tail.is_loose or _rows_from(tx, trial_id, group, steps) > _VERY_LATE
    if is_very_late and not tail.is_loose:
        tx.execute(sa.delete(_buckets).where(_buckets.c.trial_id == trial_id, _buckets.c.group == group))
        tail.is_loose = True
        tail.names.clear()
    if not is_very_late:
        _cut(tx, trial_id, group, tail, steps - 1)
    tail.rows += insert()
    if is_very_late:
        tail.steps = _last_step(tx, trial_id, group)
    else:
        again = read_rows(tx, trial_id, group, steps - 1)
        tail.rows -= len(again)
        append(tx, trial_id, group, Rows.of(again))
    _write(tx, trial_id, group, tail)
    return tail


def rewind(tx: Tx, trial_id: int, group: str, steps: int) -> Tail:
    """Delete what comes after ``steps`` of one group: its rows, and what they made of its series."""
    tail = tail_of(tx, trial_id, group)
    if tail.steps <= steps:
        return tail
    if not tail.is_loose:
        _cut(tx, trial_id, group, tail, steps)
    tail.rows -= tx.execute(
        sa.delete(_metrics).where(
            _metrics.c.trial_id == trial_id, _metrics.c.group == group, _metrics.c.steps_completed > steps
        )
    ).rowcount
    tail.steps = _last_step(tx, trial_id, group)
    _write(tx, trial_id, group, tail)
    return tail


def delete(tx: Tx, trial_id: int) -> None:
    """Delete all series of a trial."""
    for group in groups(tx, trial_id):
        _forget(tx, trial_id, group)
    tx.execute(sa.delete(_buckets).where(_buckets.c.trial_id == trial_id))
    tx.execute(sa.delete(_tails).where(_tails.c.trial_id == trial_id))


def tail_of(tx: Tx, trial_id: int, group: str) -> Tail:
    """The tail of a group as it is now; what is done to it is forgotten if this change does not happen."""
    remembered: dict[tuple[int, str], Tail] = tx.memory.setdefault("tails of series", {})
    key = (trial_id, group)
    tail = remembered.pop(key, None)
    if tail is None:
        tail = load_tail(tx, trial_id, group)
        while len(remembered) >= _REMEMBERED:
            del remembered[next(iter(remembered))]
    remembered[key] = tail  # the last to be used is the last to be dropped
    tx.undo(functools.partial(remembered.pop, key, None))
    return tail


def _forget(tx: Tx, trial_id: int, group: str) -> None:
    tx.memory.get("tails of series", {}).pop((trial_id, group), None)


def _write(tx: Tx, trial_id: int, group: str, tail: Tail) -> None:
    values = {"steps_completed": tail.steps, "state": _dumped(tail)}
    key = {"key_trial_id": trial_id, "key_group": group}
    if not tx.execute(_UPDATE_TAIL, {**values, **key}).rowcount:
        tx.execute(sa.insert(_tails), {"trial_id": trial_id, "group": group, **values})
    tail.unwritten = 0


_UPDATE_TAIL = (
    sa.update(_tails)
    .where(_tails.c.trial_id == sa.bindparam("key_trial_id"), _tails.c.group == sa.bindparam("key_group"))
    .values(steps_completed=sa.bindparam("steps_completed"), state=sa.bindparam("state"))
)


def _closing(closed: list[tuple[Any, ...]], trial_id: int, group: str, name: str) -> _Close:
    def close(level: int, number: int, bucket: Bucket) -> None:
        closed.append(
            (
                trial_id,
                group,
                name,
                level,
                number,
                bucket.first_step,
                bucket.last_step,
                bucket.min,
                bucket.max,
                bucket.last,
                bucket.time,
            )
        )

    return close


def _cut(tx: Tx, trial_id: int, group: str, tail: Tail, steps: int) -> None:
    """Take what comes after ``steps`` out of the pyramids; the rows are still all there."""
    for name, opened in [*tail.names.items()]:
        whole = opened.whole()
        if whole is None or whole.last_step <= steps:
            continue
        if opened.steps and opened.steps[0] <= steps:
            kept = sum(1 for step in opened.steps if step <= steps)
            _keep(opened, kept)
        else:
            _keep(opened, 0)
            _cut_buckets(tx, (trial_id, group, name), opened, steps)
        if not opened.count:
            del tail.names[name]


def _keep(opened: Open, kept: int) -> None:
    opened.count -= len(opened.values) - kept
    del opened.steps[kept:], opened.values[kept:], opened.times[kept:]


def _cut_buckets(tx: Tx, key: _Key, opened: Open, steps: int) -> None:
    """``opened`` has no single reports, only full buckets of level 1."""
    number = _first_ending_after(tx, key, opened.count, steps)
    if number == opened.count // WIDTH:
        return
    trial_id, group, name = key
    [cut] = _read_buckets(tx, key, 1, number, number)
    of_series = (_buckets.c.trial_id == trial_id, _buckets.c.group == group, _buckets.c.name == name)
    left = number
    for level in range(1, _height(opened.count) + 1):
        tx.execute(sa.delete(_buckets).where(*of_series, _buckets.c.level == level, _buckets.c.bucket >= left))
        left //= WIDTH
    opened.count = number * WIDTH
    opened.levels = []
    below = number
    while below:
        # The full ones that are in no full one of the level above make the open one there.
        level = len(opened.levels) + 1
        above = below // WIDTH
        opened.levels.append(_joined(_read_buckets(tx, key, level, above * WIDTH, below - 1)))
        below = above
    for row in read_rows(tx, trial_id, group, cut.first_step - 1, steps):
        for found, value in _numbers(row.metrics):
            if found == name:
                opened.steps.append(row.steps)
                opened.values.append(value)
                opened.times.append(row.time)
                opened.count += 1


# Reading, on any thread.


def groups(tx: Tx, trial_id: int) -> list[str]:
    """The groups in which a trial has reported."""
    return [
        *tx.execute(sa.select(_tails.c.group).where(_tails.c.trial_id == trial_id).order_by(_tails.c.group)).scalars()
    ]


def names(tx: Tx, trial_id: int) -> dict[str, list[str]]:
    """The numeric metrics of each group of a trial."""
    found = {}
    for group in groups(tx, trial_id):
        tail = load_tail(tx, trial_id, group)
        if tail.is_loose:
            sample = read_rows(tx, trial_id, group, -1, limit=_WRITTEN_EVERY)
            found[group] = sorted({name for row in sample for name, _ in _numbers(row.metrics)})
        else:
            found[group] = sorted(tail.names)
    return found


def summary(tx: Tx, trial_id: int) -> dict[str, dict[str, Any]]:
    """Count, smallest, largest and last of each metric, by group."""
    return {group: load_tail(tx, trial_id, group).summary() for group in groups(tx, trial_id)}


def series(
    tx: Tx,
    trial_id: int,
    group: str,
    name: str,
    points: int = 1000,
    first: int | None = None,
    last: int | None = None,
) -> Series:
    """A metric from step ``first`` to ``last`` in about so many points, at most; every spike is in one of them."""
    points = max(points, 1)
    low, high = -1 if first is None else first - 1, last
    tail = load_tail(tx, trial_id, group)
    opened = tail.names.get(name)
    if tail.is_loose or opened is None:
        found = _read_singly(tx, trial_id, group, name, low, high) if tail.is_loose else []
        return _series(len(found), found, points)
    key = (trial_id, group, name)
    # Reports by their number in the series: from begin to, and without, end.
    begin = 0 if first is None else WIDTH * _first_ending_after(tx, key, opened.count, low)
    end = opened.count
    if last is not None:
        end = min(end, WIDTH * (_first_ending_after(tx, key, opened.count, last) + 1))
    level = 0
    while (end - begin) / WIDTH**level > _READ_PER_POINT * points:
        level += 1
    if level == 0 and (end - begin) * tail.rows <= _ROWS_READ * opened.count:
        return _series(opened.count, _read_singly(tx, trial_id, group, name, low, high), points)
    level = max(level, 1)
    width = WIDTH**level
    full = opened.count // width
    found = _read(tx, key, level, begin // width, min(full, -(-end // width)) - 1)
    rest = opened.whole(level)
    if rest is not None and end > full * width:
        found.append(_values(rest))
    while found and found[0][1] <= low:
        del found[0]
    while found and high is not None and found[-1][0] > high:
        del found[-1]
    return _series(opened.count, found, points)


def load_tail(tx: Tx, trial_id: int, group: str) -> Tail:
    """The tail as it was written down, and what came after."""
    written = tx.execute(_SELECT_TAIL, {"trial_id": trial_id, "group": group}).one_or_none()
    tail = Tail() if written is None else _loaded(written.steps_completed, written.state)
    rows = read_rows(tx, trial_id, group, tail.steps)
    if rows:
        tail.steps = rows[-1].steps
        tail.rows += len(rows)
        tail.unwritten = len(rows)
        if not tail.is_loose:
            for name, steps, values, times in _columns(Rows.of(rows)):
                # The buckets that they fill are in the table: they were written with the rows.
                tail.names.setdefault(name, Open()).extend(steps, values, times, _drop)
    return tail


def _drop(level: int, number: int, bucket: Bucket) -> None:
    return None


def read_rows(
    tx: Tx, trial_id: int, group: str, after_steps: int, to_steps: int | None = None, limit: int | None = None
) -> list[Row]:
    """The rows of a group after some step, in order."""
    statement = _SELECT_ROWS if to_steps is None else _SELECT_ROWS_BETWEEN
    if limit is not None:
        statement = statement.limit(limit)
    values = {"trial_id": trial_id, "group": group, "after": after_steps}
    if to_steps is not None:
        values["to"] = to_steps
    found: Iterable[Any] = tx.execute(statement, values).all()
    return [Row(steps, time, tables.decode(metrics)) for steps, time, metrics in found]


_SELECT_TAIL = sa.select(_tails.c.steps_completed, _tails.c.state).where(
    _tails.c.trial_id == sa.bindparam("trial_id"), _tails.c.group == sa.bindparam("group")
)
_SELECT_ROWS = (
    sa.select(_metrics.c.steps_completed, _metrics.c.time, _metrics.c.metrics)
    .where(
        _metrics.c.trial_id == sa.bindparam("trial_id"),
        _metrics.c.group == sa.bindparam("group"),
        _metrics.c.steps_completed > sa.bindparam("after"),
    )
    .order_by(_metrics.c.steps_completed)
)
_SELECT_ROWS_BETWEEN = _SELECT_ROWS.where(_metrics.c.steps_completed <= sa.bindparam("to"))
_SELECT_BUCKETS = (
    sa.select(
        _buckets.c.first_step, _buckets.c.last_step, _buckets.c.min, _buckets.c.max, _buckets.c.last, _buckets.c.time
    )
    .where(
        _buckets.c.trial_id == sa.bindparam("trial_id"),
        _buckets.c.group == sa.bindparam("group"),
        _buckets.c.name == sa.bindparam("name"),
        _buckets.c.level == sa.bindparam("level"),
        _buckets.c.bucket >= sa.bindparam("low"),
        _buckets.c.bucket <= sa.bindparam("high"),
    )
    .order_by(_buckets.c.bucket)
)

_Key = tuple[int, str, str]


# A bucket as it is read: its fields, in their order.
_Read = tuple[int, int, float | None, float | None, float | None, float]


def _read(tx: Tx, key: _Key, level: int, low: int, high: int) -> list[_Read]:
    if high < low:
        return []
    trial_id, group, name = key
    values = {"trial_id": trial_id, "group": group, "name": name, "level": level, "low": low, "high": high}
    found: list[Any] = [*tx.execute(_SELECT_BUCKETS, values).all()]
    return found


def _read_buckets(tx: Tx, key: _Key, level: int, low: int, high: int) -> list[Bucket]:
    return [Bucket(*found) for found in _read(tx, key, level, low, high)]


def _first_ending_after(tx: Tx, key: _Key, count: int, steps: int) -> int:
    """The number of the first bucket of level 1 that ends after a step; how many there are if none does."""
    low = 0
    for level in range(_height(count), 0, -1):
        full = count // WIDTH**level
        number = low
        for bucket in _read_buckets(tx, key, level, low, min(low + WIDTH, full) - 1):
            if bucket.last_step > steps:
                break
            number += 1
        if level == 1:
            return number
        low = number * WIDTH
    return 0


def _height(count: int) -> int:
    """The highest level that has a full bucket."""
    height = 0
    while count >= WIDTH:
        count //= WIDTH
        height += 1
    return height


def _read_singly(tx: Tx, trial_id: int, group: str, name: str, low: int, high: int | None) -> list[_Read]:
    found: list[_Read] = []
    for row in read_rows(tx, trial_id, group, low, high):
        value = row.metrics.get(name)
        if type(value) is not float:
            value = dict(_numbers(row.metrics)).get(name)
            if value is None:
                continue
        found.append((row.steps, row.steps, value, value, value, row.time))
    return found


def _series(total: int, found: Sequence[_Read], points: int) -> Series:
    """Join neighbours until there are few enough."""
    if not found:
        return Series(total, [], [], [], [], [])
    _, steps, low, high, last, time = [[*column] for column in zip(*found)]
    if len(found) > points:
        width = -(-len(found) // points)
        low, high = _extremes(low, width, min), _extremes(high, width, max)
        ends = slice(width - 1, None, width)
        steps, last, time = (
            column[ends] + (column[-1:] if len(column) % width else []) for column in (steps, last, time)
        )
    return Series(total, steps, [*map(_number, last)], [*map(_number, low)], [*map(_number, high)], time)


def _extremes(values: list[Any], width: int, which: Callable[[Iterable[Any]], Any]) -> list[Any]:
    """The smallest, or largest, of each so many values."""
    parts = (values[at : at + width] for at in range(0, len(values), width))
    # Looked for once rather than in every part; NaN is not equal to itself.
    if None not in values and all(value == value for value in values):
        return [which(part) for part in parts]
    return [which([value for value in part if value is not None and value == value] or [None]) for part in parts]


def _joined(buckets: Sequence[Bucket]) -> Bucket | None:
    if not buckets:
        return None
    lows = [bucket.min for bucket in buckets if bucket.min is not None and bucket.min == bucket.min]
    highs = [bucket.max for bucket in buckets if bucket.max is not None and bucket.max == bucket.max]
    end = buckets[-1]
    return Bucket(
        buckets[0].first_step,
        end.last_step,
        min(lows) if lows else None,
        max(highs) if highs else None,
        end.last,
        end.time,
    )


def _bucket(steps: Sequence[int], values: Sequence[float], times: Sequence[float]) -> Bucket:
    numbers = [value for value in values if value == value]
    last = values[-1]
    return Bucket(
        steps[0],
        steps[-1],
        min(numbers) if numbers else None,
        max(numbers) if numbers else None,
        last if last == last else None,
        times[-1],
    )


def _number(value: float | None) -> float:
    return NAN if value is None else value


def _last_step(tx: Tx, trial_id: int, group: str) -> int:
    found = tx.execute(
        sa.select(sa.func.max(_metrics.c.steps_completed)).where(
            _metrics.c.trial_id == trial_id, _metrics.c.group == group
        )
    ).scalar()
    return -1 if found is None else int(found)


def _rows_from(tx: Tx, trial_id: int, group: str, steps: int) -> int:
    some = (
        sa.select(_metrics.c.steps_completed)
        .where(_metrics.c.trial_id == trial_id, _metrics.c.group == group, _metrics.c.steps_completed >= steps)
        .limit(_VERY_LATE + 1)
    )
    return int(tx.execute(sa.select(sa.func.count()).select_from(some.subquery())).scalar_one())


# Rows into columns.


def _columns(rows: Rows) -> Iterable[tuple[str, Sequence[int], Sequence[float], Sequence[float]]]:
    """The numbers in some rows, metric by metric: steps, values, times."""
    steps, times, documents = rows
    names = [*documents[0]]
    columns = _alike(names, documents)
    if columns is not None:
        mixed = []
        for name, values in zip(names, columns):
            if set(map(type, values)) == {float}:
                yield name, steps, values, times
            else:
                mixed.append(name)
        if not mixed:
            return
        documents = [{name: document[name] for name in mixed} for document in documents]
    found: dict[str, tuple[list[int], list[float], list[float]]] = {}
    for step, time, document in zip(steps, times, documents):
        for name, value in _numbers(document):
            column = found.get(name)
            if column is None:
                column = found[name] = ([], [], [])
            column[0].append(step)
            column[1].append(value)
            column[2].append(time)
    for name, column in found.items():
        yield name, *column


def _alike(names: Sequence[str], documents: Sequence[Mapping[str, Any]]) -> list[list[Any]] | None:
    """What is in these documents under each of these names; None if one of them has other names."""
    if set(map(len, documents)) != {len(names)}:
        return None
    try:
        return [[*map(operator.itemgetter(name), documents)] for name in names]
    except KeyError:
        return None


def _numbers(document: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, float]]:
    """The numbers of a document; those of a map in it under both names, with a dot between."""
    for name, value in document.items():
        kind = type(value)
        if kind is float:
            yield prefix + name, value
        elif kind is int:
            try:
                yield prefix + name, float(value)
            except OverflowError:
                yield prefix + name, math.inf if value > 0 else -math.inf
        elif kind is dict:
            yield from _numbers(value, f"{prefix}{name}.")


# Tails as documents. What is no number is null there.


def _dumped(tail: Tail) -> dict[str, Any]:
    return {
        "rows": tail.rows,
        "loose": tail.is_loose,
        "names": {
            name: [
                opened.count,
                opened.steps,
                [value if value == value else None for value in opened.values],
                opened.times,
                [level and _values(level) for level in opened.levels],
            ]
            for name, opened in tail.names.items()
        },
    }


_values = operator.attrgetter(*(field.name for field in dataclasses.fields(Bucket)))


def _loaded(steps: int, state: Mapping[str, Any]) -> Tail:
    return Tail(
        steps,
        state["rows"],
        state["loose"],
        {
            name: Open(count, steps, [*map(_number, values)], times, [level and Bucket(*level) for level in levels])
            for name, (count, steps, values, times, levels) in state["names"].items()
        },
    )
