"""The one thread between those who report and the sinks: rows go in order, and nobody who trains waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Union

from determined import errors
from determined.core.sinks import MetricSink, Row

# Long enough to write many rows at once, short enough for a person to call it immediate.
GATHER_SECONDS = 0.2
_REMEMBERED = 4096


class _Barrier:
    """Reached when everything put before it is durable."""

    def __init__(self) -> None:
        self.reached = threading.Event()


class _Errand(NamedTuple):
    """Something to do after the rows put before it; a later one of the same key takes its place."""

    key: str
    act: Callable[[], None]


class Reporter:
    """Hands rows to sinks in the background.

    A sink that fails does not stop the others; its error is raised by the next call here, once.
    """

    def __init__(
        self,
        sinks: Sequence[MetricSink],
        *,
        tick: Callable[[], None] | None = None,
        tick_seconds: float | None = None,
    ) -> None:
        self._sinks = list(sinks)
        self._tick = tick
        self._tick_seconds = tick_seconds
        self._queue: queue.SimpleQueue[Union[Row, _Barrier, _Errand, None]] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        # What was reported lately, so that the same report twice is once.
        self._recent: dict[tuple[str, int], dict[str, object]] = {}
        # What an earlier start of this run reported at the cut it resumed from; saying it anew is no contradiction.
        self._earlier: dict[tuple[str, int], dict[str, object]] = {}

    def expect_again(self, rows: Iterable[Row]) -> None:
        """Rows that are written already and may be reported once more."""
        self._earlier = {(row.group, row.steps_completed): dict(row.metrics) for row in rows}

    def put(self, row: Row) -> None:
        """Take a row. Raises what a sink raised since the last call."""
        if self._failure is not None:
            self._raise()
        if self._thread is None:
            self._start()
        self._queue.put(row)

    def run_soon(self, key: str, act: Callable[[], None]) -> None:
        """Do something after the rows so far, on the thread that hands them over; not if another of the same key
        comes soon after. What it raises is raised by the next report."""
        if self._closed:
            act()
            return
        if self._thread is None:
            self._start()
        self._queue.put(_Errand(key, act))

    def flush(self) -> None:
        """Return once every row so far is durable; raises what a sink raised."""
        self._flush()
        self._raise()

    def settle(self) -> None:
        """Return once every row so far is durable, leaving errors for the next report."""
        self._flush()

    def close(self) -> None:
        """Flush, end the thread, close the sinks; raises what a sink raised."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._hurry.set()
            self._thread.join()
        for sink in self._sinks:
            self._guard(sink.close)
        self._raise()

    def start(self) -> None:
        """Begin to tick, even while nothing is reported."""
        if self._thread is None and not self._closed:
            self._start()

    def _start(self) -> None:
        if self._closed:
            raise errors.InternalException("nothing can be reported after the context is closed; report inside `with`")
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def _flush(self) -> None:
        if self._thread is None or self._closed:
            return
        barrier = _Barrier()
        self._queue.put(barrier)
        self._hurry.set()  # after the barrier: before it, the thread might have hurried for nothing
        barrier.reached.wait()

    def _raise(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self) -> None:
        is_over = False
        while not is_over:
            try:
                item = self._queue.get(timeout=self._tick_seconds)
            except queue.Empty:
                if self._tick is not None:
                    self._guard(self._tick)
                continue
            rows: list[Row] = []
            barriers: list[_Barrier] = []
            errands: dict[str, _Errand] = {}
            self._hurry.wait(GATHER_SECONDS)
            self._hurry.clear()
            while True:
                if item is None:
                    is_over = True
                elif isinstance(item, _Barrier):
                    barriers.append(item)
                elif isinstance(item, _Errand):
                    errands.pop(item.key, None)
                    errands[item.key] = item
                else:
                    self._add(item, rows)
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            if rows:
                for sink in self._sinks:
                    self._guard(sink.report, rows)
            for errand in errands.values():
                self._guard(errand.act)
            if barriers or is_over:
                for sink in self._sinks:
                    self._guard(sink.flush)
            for barrier in barriers:
                barrier.reached.set()

    def _add(self, row: Row, rows: list[Row]) -> None:
        """Take a row unless it has been taken already; a contradiction is a failure."""
        key = (row.group, row.steps_completed)
        if repr(self._earlier.pop(key, None)) == repr(dict(row.metrics)):
            return
        known = self._recent.get(key)
        if known is None:
            self._recent[key] = dict(row.metrics)
            if len(self._recent) > _REMEMBERED:
                del self._recent[next(iter(self._recent))]
            rows.append(row)
            return
        fresh = {}
        for name, value in row.metrics.items():
            if name not in known:
                fresh[name] = known[name] = value
            elif repr(known[name]) != repr(value):
                self._failure = self._failure or errors.InvalidExperimentException(
                    f"metric {name!r} of group {row.group!r} was reported twice for step {row.steps_completed}, as "
                    f"{known[name]!r} and as {value!r}; report each metric once per step"
                )
        if fresh:
            rows.append(row._replace(metrics=fresh))

    def _guard(self, call: Callable[..., None], *args: object) -> None:
        try:
            call(*args)
        except Exception as error:
            self._failure = self._failure or error
