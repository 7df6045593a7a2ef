"""The way up: what a managed process reports goes into a file at once, and from there to the master, once and in order.

The training process only writes its spool, so it never waits for the network; a Shipper, in the node process that
started it, sends the lines as they are and forgets none until the master has them.
"""

from __future__ import annotations

import json
import os
import pathlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from determined import errors
from determined.core.line_file import LineFile
from determined.core.sinks import Row

if TYPE_CHECKING:
    from determined.client.transport import Session
    from determined.wire.reports import StopOrder

CHIEF, NODE = "chief", "node"  # the names of wire.reports.Source, without the import
MOST_LINES = 1000
MOST_BYTES = 1 << 20
HEARTBEAT_SECONDS = 5.0
_WATCH_SECONDS = 0.03
_FIRST_WORD_SECONDS = 0.1
_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 5.0
_TIMEOUT_SECONDS = 10.0
_GZIP_FROM = 2048
_FAILED_PAUSE_SECONDS = 1.0

encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


class Spool:
    """A file of reports, one JSON object a line; the number of a line, from 0, is its sequence number.

    Any thread may append. Opened again, it goes on after the last whole line.
    """

    def __init__(
        self, path: Union[pathlib.Path, Callable[[], pathlib.Path]], warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file = LineFile(self._ready_path, warn, "reports to the master", mode=0o600)

    @property
    def path(self) -> pathlib.Path:
        return self._path if isinstance(self._path, pathlib.Path) else self._path()

    def _ready_path(self) -> pathlib.Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.path

    def append(self, *reports: Mapping[str, Any], durable: bool = False) -> None:
        """Add reports (in the shape of wire.reports); with ``durable`` they are on the disk when this returns."""
        self.append_lines([encode(report).encode() + b"\n" for report in reports], durable=durable)

    def append_lines(self, lines: Sequence[bytes], *, durable: bool = False) -> None:
        with self._lock:
            self._file.append(lines)
            if durable:
                self._file.flush()

    def flush(self) -> None:
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()


def count_lines(path: pathlib.Path) -> int:
    """How many whole lines a spool has; 0 when there is no such file."""
    count = 0
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                count += chunk.count(b"\n")
    except FileNotFoundError:
        pass
    return count


class SpoolSink:
    """Metric rows as reports in a spool."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def report(self, rows: list[Row]) -> None:
        self._spool.append_lines([encode_metrics(row) for row in rows])

    def flush(self) -> None:
        self._spool.flush()

    def close(self) -> None:
        self._spool.close()


def encode_metrics(row: Row) -> bytes:
    """A row as the line of a MetricsReport. NaN and infinities are written as ``NaN`` and ``Infinity``."""
    report = {
        "kind": "metrics",
        "group": row.group,
        "steps_completed": row.steps_completed,
        "metrics": row.metrics,
        "time": row.time,
    }
    return encode(report).encode() + b"\n"


class Shipper:
    """Sends spools to the master, on a thread of its own, until it is closed.

    Lines go in order, each until the master has acknowledged it; a master that is away is waited for. Without news a
    heartbeat is sent. ``on_stop`` is called, on that thread, with every new StopOrder; ``on_fenced``, once, when the
    master takes nothing of this allocation any more: another has taken its place. ``on_problem`` hears of lines that
    the master refuses for what is in them. With a ``cluster_id`` a refusal counts only from the master of that id:
    another one may listen at its address while it is away.
    """

    def __init__(
        self,
        session: Session,
        allocation_id: str,
        run_epoch: int,
        spools: Mapping[str, pathlib.Path],
        *,
        on_stop: Callable[[StopOrder], None] = lambda order: None,
        on_fenced: Callable[[str], None] = lambda why: None,
        on_problem: Callable[[str], None] = lambda text: None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        watch_seconds: float = _WATCH_SECONDS,
        cluster_id: str = "",
    ) -> None:
        self._session = session
        self._cluster_id = cluster_id
        self._is_refused = False  # by our master, as far as we know
        self._path = f"/allocations/{allocation_id}/reports"
        self._run_epoch = run_epoch
        self._tails = [_Tail(source, path) for source, path in spools.items()]
        self._on_stop, self._on_fenced, self._on_problem = on_stop, on_fenced, on_problem
        self._heartbeat_seconds = heartbeat_seconds
        self._watch_seconds = watch_seconds
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._closed = False
        self._is_draining = False
        self._fenced = False
        self._stop: Any = None
        self._thread: threading.Thread | None = None

    @property
    def is_fenced(self) -> bool:
        """Whether the master has said that this allocation is over."""
        return self._fenced

    def start(self) -> Shipper:
        """Begin. After this, do not fork."""
        self._thread = threading.Thread(target=self._run, name="uplink", daemon=True)
        self._thread.start()
        return self

    def acknowledged(self) -> dict[str, int]:
        """How many lines of each spool the master has for good."""
        with self._lock:
            return {tail.source: tail.acknowledged for tail in self._tails}

    def drain(self, seconds: float) -> bool:
        """Wait until the master has every line that is there now, but no longer than this; whether it has."""
        wanted = {tail.source: count_lines(tail.path) for tail in self._tails}
        deadline = time.monotonic() + seconds
        self._is_draining = True
        self._wake.set()
        with self._changed:
            while any(tail.acknowledged < wanted[tail.source] for tail in self._tails):
                left = deadline - time.monotonic()
                if left <= 0 or self._fenced or self._closed:
                    return False
                self._changed.wait(left)
        return True

    def close(self) -> None:
        """End the thread; what is not shipped stays in the spools."""
        self._closed = True
        self._wake.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)  # it may be waiting for a master that does not answer: it ends with the process

    def _run(self) -> None:
        try:
            while not self._closed and not self._fenced:
                try:
                    self._ship()
                except Exception as error:  # a spool that cannot be read just now, or whoever is told of orders
                    self._on_problem(f"reports cannot be sent just now: {type(error).__name__}: {error}")
                    self._pause(_FAILED_PAUSE_SECONDS)
        finally:
            self._session.close()
            for tail in self._tails:
                tail.close()

    def _ship(self) -> None:
        retry_seconds = 0.0
        # Whoever has something to say at once says with it that it is there.
        spoke_at = time.monotonic() - self._heartbeat_seconds + min(_FIRST_WORD_SECONDS, self._heartbeat_seconds)
        while not self._closed:
            began = time.monotonic()
            batch = next((batch for tail in self._tails if (batch := tail.next_batch()) is not None), None)
            if batch is None:
                if began - spoke_at < self._heartbeat_seconds:
                    self._pause(self._watch_seconds)
                    continue
                batch = self._tails[0].empty_batch()
            is_taken = self._send(batch)
            if self._fenced:
                return
            spoke_at = time.monotonic()
            if is_taken:
                retry_seconds = 0.0
                # A master that takes its time has much to do: it is left alone for as long as it took.
                self._pause(min(spoke_at - began, 1.0))
                continue
            longest = 0.2 if self._is_draining else _LAST_RETRY_SECONDS
            retry_seconds = min(max(retry_seconds * 2, _FIRST_RETRY_SECONDS), longest)
            # Thousands wait for the same master: they must not all come back in the same moment.
            self._pause(retry_seconds * (0.7 + 0.3 * (hash((id(self), retry_seconds, began)) % 997 / 997)))

    def _pause(self, seconds: float) -> None:
        if self._wake.wait(seconds):
            self._wake.clear()

    def _send(self, batch: _Batch) -> bool:
        """Whether to go on at once; if not, the same is sent again after a while."""
        body, headers = batch_body(self._run_epoch, batch.tail.source, batch.first, batch.lines)
        try:
            answer = self._session.call(
                "POST", self._path, data=body, headers=headers, timeout=_TIMEOUT_SECONDS, attempts=1
            )
            reply = answer.json()
            acknowledged = int(reply["acknowledged"])
        except (errors.StaleRunEpoch, errors.Unauthenticated) as error:
            if not self._is_final():
                return False
            self._fenced = True
            with self._changed:
                self._changed.notify_all()
            self._on_fenced(str(error))
            return False
        except errors.DeterminedError as error:
            return self._isolate(batch, error)
        except (ValueError, TypeError, KeyError):
            return False  # not the answer of a master: something stands between us
        self._take(batch.tail, acknowledged, reply.get("stop"))
        return True

    def _is_final(self) -> bool:
        """Whether who refuses us is who ordered this, and not a stranger at the same address."""
        if not self._cluster_id:
            return True
        # What was said by a stranger, perhaps one who has just left, is not asked of them again.
        self._session.close()
        was_refused, self._is_refused = self._is_refused, self._is_our_master()
        if not (was_refused and self._is_refused):
            return False
        return True

    def _is_our_master(self) -> bool:
        asking = self._session.with_token(None)
        try:
            answer = asking.call("GET", "/master", timeout=_TIMEOUT_SECONDS, attempts=1).json()
            return bool(answer["cluster_id"] == self._cluster_id)
        except (errors.DeterminedError, ValueError, TypeError, KeyError):
            return False
        finally:
            asking.close()

    def _take(self, tail: _Tail, acknowledged: int, stop: Any) -> None:
        self._is_refused = False
        with self._changed:
            tail.acknowledge(acknowledged)
            self._changed.notify_all()
        if stop is not None and stop != self._stop:
            from determined.wire.reports import StopOrder

            self._on_stop(StopOrder.model_validate(stop))
        self._stop = stop

    def _isolate(self, batch: _Batch, error: errors.DeterminedError) -> bool:
        """A line that cannot be taken for what is in it must not hold up the others: it is found by halves."""
        if not isinstance(error, (errors.BadRequest, errors.InvalidConfigurationException)) or not batch.lines:
            return False
        if not self._is_final():
            return False
        if len(batch.lines) > 1:
            batch.tail.most_lines = len(batch.lines) // 2
        else:
            # Its number must be used up by something.
            report = {"kind": "status", "status": f"a report was refused by the master: {error}"[:500]}
            batch.tail.replaced[batch.first] = encode(report).encode()
            self._on_problem(f"the master refused report {batch.first}: {error}; it is left out")
        return True


class _Batch:
    """Lines of one spool that follow each other."""

    def __init__(self, tail: _Tail, first: int, lines: list[bytes]) -> None:
        self.tail = tail
        self.first = first
        self.lines = lines


def batch_body(run_epoch: int, source: str, first: int, lines: Sequence[bytes]) -> tuple[bytes, dict[str, str]]:
    """A ReportBatch of these lines as the body of a request, and its headers."""
    # The lines are JSON already: they are not read, only put together.
    head = f'{{"run_epoch":{run_epoch},"source":"{source}","first":{first},"reports":['
    body = head.encode() + b",".join(lines) + b"]}"
    headers = {"Content-Type": "application/json"}
    if len(body) >= _GZIP_FROM:
        import gzip  # here, because those who only write spools need not wait for it

        body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
    return body, headers


class _Tail:
    """Reads a spool that somebody else appends to, from the first line that is not acknowledged."""

    def __init__(self, source: str, path: pathlib.Path) -> None:
        self.source = getattr(source, "value", source)
        self.path = path
        self.acknowledged = 0
        self.most_lines = MOST_LINES
        self.replaced: dict[int, bytes] = {}
        self._descriptor = -1
        self._offset = 0  # of the first line that is not acknowledged

    def next_batch(self) -> _Batch | None:
        """The whole lines that come next, a request's worth; None when there are none."""
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        if os.fstat(self._descriptor).st_size <= self._offset:
            return None
        lines = self._lines(MOST_BYTES)
        if not lines:
            return None
        lines = [self.replaced.get(self.acknowledged + i, line) for i, line in enumerate(lines[: self.most_lines])]
        return _Batch(self, self.acknowledged, lines)

    def empty_batch(self) -> _Batch:
        """What a heartbeat carries."""
        return _Batch(self, self.acknowledged, [])

    def acknowledge(self, count: int) -> None:
        """Go on after so many lines of the whole spool; a master that has fewer than it said gets them again."""
        if count == self.acknowledged:
            return
        if count < self.acknowledged:
            self.acknowledged = self._offset = 0
        while self.acknowledged < count:
            lines = self._lines(MOST_BYTES) if self._descriptor >= 0 else []
            if not lines:
                return  # the master has lines that are not on this disk: what comes is behind them
            taken = lines[: count - self.acknowledged]
            self._offset += sum(len(line) + 1 for line in taken)
            self.acknowledged += len(taken)
        self.most_lines = min(max(self.most_lines * 2, 2), MOST_LINES)
        self.replaced = {number: line for number, line in self.replaced.items() if number >= self.acknowledged}

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _lines(self, most_bytes: int) -> list[bytes]:
        """The whole lines from here on, within so many bytes, but at least one."""
        data = os.pread(self._descriptor, most_bytes, self._offset)
        end = data.rfind(b"\n")
        while end < 0 and len(data) == most_bytes:  # one line that is larger than a batch
            most_bytes *= 2
            data = os.pread(self._descriptor, most_bytes, self._offset)
            end = data.find(b"\n")
        return data[:end].split(b"\n") if end >= 0 else []
