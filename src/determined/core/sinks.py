"""Where metric rows go: the seam, JSON lines in the run folder, and TensorBoard event files."""

from __future__ import annotations

import json
import math
import os
import pathlib
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from determined.core.line_file import FULL, LineFile
from determined.core.run_folder import RunFolder

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Row(NamedTuple):
    """One report: plain values only."""

    group: str
    steps_completed: int
    metrics: Mapping[str, Any]
    batch_metrics: list[Mapping[str, Any]] | None
    time: float


class MetricSink(Protocol):
    """Takes rows, in order, on one thread of its own.

    It never drops a validation row. It may take its time: nobody who trains waits for it, save in ``flush``.
    """

    def report(self, rows: list[Row]) -> None:
        """Take some rows. What it raises is raised again by the next report of the one who trains."""

    def flush(self) -> None:
        """Make durable what was reported."""

    def close(self) -> None:
        """Flush and let go; no report follows."""


class JsonLines:
    """Appends one JSON object per row to the run's metrics file.

    A full disk does not end training: see LineFile. NaN and infinities are written as ``NaN`` and ``Infinity``, which
    ``json.loads`` reads.
    """

    def __init__(self, run: RunFolder, warn: Callable[[str], None]) -> None:
        self._run = run
        self._file = LineFile(lambda: run.metrics, warn, "metric rows")

    def report(self, rows: list[Row]) -> None:
        epoch = self._run.run_epoch
        self._file.append([encode_row(row, epoch) for row in rows])

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def encode_row(row: Row, run_epoch: int) -> bytes:
    """One line. The steps stand first: see RunFolder.rewind."""
    content: dict[str, Any] = {
        "steps_completed": row.steps_completed,
        "group": row.group,
        "metrics": row.metrics,
        "time": row.time,
        "run_epoch": run_epoch,
    }
    if row.batch_metrics:
        content["batch_metrics"] = row.batch_metrics
    return _encode(content).encode() + b"\n"


class TensorBoardEvents:
    """Writes scalars as a TensorBoard event file.

    The format is two small messages in a checksummed frame; writing it here spares the import of the tensorboard
    package, which takes longer than many a test run.
    """

    def __init__(self, folder: Callable[[], pathlib.Path], first_step: Callable[[], int] = lambda: 0) -> None:
        self._folder = folder
        self._first_step = first_step
        self._file: Any | None = None

    def report(self, rows: list[Row]) -> None:
        for row in rows:
            values = b"".join(
                _field(1, _field(1, tag.encode("utf-8", "replace")) + b"\x15" + _float(value))
                for tag, value in scalars(row.metrics, "val_" if row.group == "validation" else "")
            )
            if values:
                self._write(_event(row.time, row.steps_completed, _field(5, values)))

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, event: bytes) -> None:
        try:
            if self._file is None:
                self._open()
            assert self._file is not None
            self._file.write(_frame(event))
        except OSError as error:
            # Curves are a convenience and can be made again from the metrics file; that one does the complaining.
            if error.errno not in FULL:
                raise

    def _open(self) -> None:
        folder = self._folder()
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now)}.{os.uname().nodename}.{os.getpid()}.{os.urandom(2).hex()}"
        self._file = open(folder / name, "wb")
        self._file.write(_frame(_event(now, 0, _field(3, b"brain.Event:2"))))
        first_step = self._first_step()
        if first_step:
            # "Started here": TensorBoard forgets what an earlier start wrote past this step.
            self._file.write(_frame(_event(now, first_step, _field(7, b"\x08\x01"))))


def scalars(metrics: Mapping[str, Any], prefix: str, path: str = "") -> Iterator[tuple[str, float]]:
    """The numbers among some metrics, under the names TensorBoard has always shown them by."""
    for name, value in metrics.items():
        name = f"{path}{name}"
        if isinstance(value, Mapping):
            yield from scalars(value, prefix, f"{name}/")
        elif isinstance(value, (int, float)):
            shown = name if name.startswith("val") else prefix + name
            try:
                yield f"Determined/{shown}", float(value)
            except OverflowError:
                yield f"Determined/{shown}", math.inf if value > 0 else -math.inf


def _float(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def _event(wall_time: float, step: int, rest: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step & (1 << 64) - 1) + rest


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _masked_crc(data: bytes) -> bytes:
    table = _crc_table or _make_crc_table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


_crc_table: list[int] = []


def _make_crc_table() -> list[int]:
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        _crc_table.append(byte)
    return _crc_table
