"""Times a contender in chunks, each followed by the bare loop's chunk, inside one process and one long run of both."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass
class Timing:
    """Seconds of each chunk, by the wall and by the processor (all threads of the process).

    The bare loop's are the mean of its chunk before and its chunk after: a machine that slows down or speeds up
    meanwhile does so to both.
    """

    batches: int  # in a chunk
    ours: list[float]
    bare: list[float]
    ours_cpu: list[float]
    bare_cpu: list[float]

    @property
    def ratio(self) -> float:
        """Median over the chunks: what a step costs."""
        return statistics.median(a / b for a, b in zip(self.ours, self.bare))

    @property
    def total_ratio(self) -> float:
        """All of it over all of the bare loop: what happens seldom counts too, but so does the neighbours' noise."""
        return sum(self.ours) / sum(self.bare)

    @property
    def cpu_ratio(self) -> float:
        return sum(self.ours_cpu) / sum(self.bare_cpu)

    @property
    def bare_microseconds(self) -> float:
        """A step of the bare loop."""
        return statistics.median(self.bare) / self.batches * 1e6

    @property
    def ours_microseconds(self) -> float:
        """A step of the contender."""
        return statistics.median(self.ours) / self.batches * 1e6

    @property
    def added_microseconds(self) -> float:
        """What the contender adds to a step."""
        return statistics.median(a - b for a, b in zip(self.ours, self.bare)) / self.batches * 1e6

    def to_json(self) -> dict[str, Any]:
        return {
            "ratio": self.ratio,
            "total_ratio": self.total_ratio,
            "cpu_ratio": self.cpu_ratio,
            "bare_microseconds": self.bare_microseconds,
            "ours_microseconds": self.ours_microseconds,
            "added_microseconds": self.added_microseconds,
            **dataclasses.asdict(self),
        }


class Pace:
    """Whoever trains calls ``mark()`` before every batch whose number is a multiple of ``chunk``, and nothing else.

    From one mark to the next is one chunk with all that belongs to it: loading, reporting, validating. The bare loop's
    chunk runs inside ``mark()``, off the contender's clock. The first chunks are not counted.

    ``start_bare`` makes the bare loop, at the first mark: the contender has made what both share, such as the process
    group, by then. ``check`` is called at the last mark, when both have trained the same batches.
    """

    def __init__(
        self,
        chunk: int,
        chunks: int,
        start_bare: Callable[[], Callable[[], None]],
        check: Callable[[], None],
        warm: int = 2,
    ) -> None:
        # One batch more than there are chunks: the last mark comes before it.
        self.batches = (warm + chunks) * chunk + 1
        self._chunk = chunk
        self._chunks = warm + chunks
        self._warm = warm
        self._start_bare = start_bare
        self._check = check
        self._bare: Callable[[], None] | None = None
        self._ours: list[tuple[float, float]] = []
        self._theirs: list[tuple[float, float]] = []
        self._since: tuple[float, float] = (0.0, 0.0)

    def mark(self) -> None:
        now = _now()
        if self._bare is None:
            self._bare = self._start_bare()
        else:
            self._ours.append(_passed(self._since, now))
            since = _now()
            self._bare()
            self._theirs.append(_passed(since, _now()))
        if len(self._ours) == self._chunks:
            self._check()
        self._since = _now()

    def timing(self) -> Timing:
        """What was measured, once the contender is done."""
        if len(self._ours) != self._chunks:
            raise AssertionError(f"the contender trained {len(self._ours)} chunks instead of {self._chunks}")
        ours, bare = self._ours[self._warm :], self._theirs[self._warm - 1 :]
        return Timing(
            self._chunk,
            ours=[wall for wall, _ in ours],
            bare=_between([wall for wall, _ in bare]),
            ours_cpu=[cpu for _, cpu in ours],
            bare_cpu=_between([cpu for _, cpu in bare]),
        )


class Stretch:
    """Times a contender in one stretch without a break, between two stretches of the bare loop as long as that.

    Chunks in turn with the bare loop's leave out what happens seldom, and let threads in the background work in the
    bare loop's time. A stretch has all of it, and more of the machine's noise.
    """

    def __init__(self, chunk: int, chunks: int, start_bare: Callable[[], Callable[[], None]], warm: int = 2) -> None:
        self.batches = (warm + chunks) * chunk + 1
        self._chunks = chunks
        self._warm = warm
        self._start_bare = start_bare
        self._bare: Callable[[], None] | None = None
        self._marks = 0
        self._since = 0.0
        self._seconds: float | None = None
        self._bare_seconds: list[float] = []

    def mark(self) -> None:
        now = time.perf_counter()
        if self._marks == self._warm + self._chunks:
            self._seconds = now - self._since
            self._run_bare()
        elif self._marks == self._warm:
            self._bare = self._start_bare()
            self._bare()
            self._run_bare()
            self._since = time.perf_counter()
        self._marks += 1

    def ratio(self) -> float:
        """The contender's stretch over the mean of the bare ones."""
        if self._seconds is None:
            raise AssertionError(f"the contender trained {self._marks} chunks instead of {self._warm + self._chunks}")
        return self._seconds / (sum(self._bare_seconds) / len(self._bare_seconds))

    def _run_bare(self) -> None:
        assert self._bare is not None
        since = time.perf_counter()
        for _ in range(self._chunks):
            self._bare()
        self._bare_seconds.append(time.perf_counter() - since)


def _between(times: list[float]) -> list[float]:
    return [(before + after) / 2 for before, after in itertools.pairwise(times)]


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _passed(since: tuple[float, float], now: tuple[float, float]) -> tuple[float, float]:
    return now[0] - since[0], now[1] - since[1]
