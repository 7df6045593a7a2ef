"""What a person sees of a run: on a terminal one line that lives and one that stays per validation; plain lines else.

Written by hand rather than with Rich: one line redrawn twice a second needs 0.01 % of a core and no import at start-up.
"""

from __future__ import annotations

import collections
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from determined.core.sinks import Row

REDRAW_SECONDS = 0.5
_CLEAR = "\r\x1b[2K"
_BAR_WIDTH = 24


class Console:
    """Talks on one stream, by default standard error, so that a script's own output stays clean.

    ``is_live`` says whether the stream is a terminal to draw on. ``count`` gives the batches done so far, read at each
    redraw, so that the bar moves between reports. ``speaker`` is put before what ranks other than the chief must say.
    """

    unit = "step"

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        is_live: bool = False,
        speaker: str = "",
        count: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_live = is_live and not speaker
        self._stream = stream if stream is not None else sys.stderr
        self._speaker = speaker
        self._count = count
        self._clock = clock
        self._lock = threading.RLock()
        self._drawn = False
        self._paused = False
        self._wrapped: _Redirection | None = None
        self._fraction: float | None = None
        self._total: float | None = None
        self._status = ""
        self._latest: Mapping[str, Any] = {}
        self._steps = 0
        self._started = clock()
        self._line_due = 0.0
        self._pace: collections.deque[tuple[float, int, float | None]] = collections.deque(maxlen=60)

    def info(self, text: str) -> None:
        """One line that stays; the chief's only."""
        if not self._speaker:
            self._print(text)

    def warn(self, text: str) -> None:
        """One line about something that is not as it should be, on any rank."""
        self._print(f"{self._speaker}warning: {text}")

    def progress(self, fraction: float) -> None:
        """How much of the run is done, from 0 to 1."""
        self._fraction = min(max(fraction, 0.0), 1.0)
        count = self._count()
        self._total = count / fraction if count and fraction > 0 else None

    def status(self, text: str) -> None:
        """What is going on just now; empty for plain training."""
        self._status = text

    def report(self, rows: list[Row]) -> None:
        """Show metric rows: every validation, and of the others the latest, now and then."""
        for row in rows:
            self._steps = max(self._steps, row.steps_completed) if row.group == "training" else self._steps
            if row.group == "validation":
                self.info(f"{self._at(row.steps_completed)}  {describe(row.metrics)}")
                continue
            if row.group == "training":
                self._latest = row.metrics
            now = self._clock()
            if not self.is_live and now >= self._line_due:
                # Often enough to see life, seldom enough to keep the log of a week readable.
                self._line_due = now + min(30.0, max(5.0, (now - self._started) / 60))
                label = "" if row.group == "training" else f"{row.group}: "
                self.tick()
                outlook = "  ".join(self._outlook())
                self.info(f"{self._at(row.steps_completed)}  {label}{describe(row.metrics)}  {outlook}".rstrip())
        # A line taken away comes back at once; otherwise no oftener than a clock would redraw it.
        if self.is_live and (not self._drawn or self._clock() >= self._pace[-1][0] + REDRAW_SECONDS):
            self.tick()

    def flush(self) -> None:
        """Nothing is kept back."""

    def tick(self) -> None:
        """Measure the pace and, on a terminal, redraw the line; called twice a second."""
        self._pace.append((self._clock(), self._count() or self._steps, self._now_at()))
        if self.is_live and not self._paused and (self._latest or self._fraction is not None):
            with self._lock:
                if self._wrapped is None:
                    self._wrapped = _Redirection(self)
                if not self._wrapped.is_mid_line():
                    width = shutil.get_terminal_size().columns - 1
                    self._emit(_CLEAR + self._line(width)[:width])
                    self._drawn = True

    def pause(self) -> None:
        """Stop drawing for good: a debugger wants the terminal."""
        with self._lock:
            self._paused = True
            self.clear()

    def close(self) -> None:
        """Take the live line away and give the streams back."""
        with self._lock:
            self._paused = True
            self.clear()
            if self._wrapped is not None:
                self._wrapped.undo()
                self._wrapped = None

    def clear(self) -> None:
        """Take the live line off the screen until the next redraw."""
        if self._drawn:
            self._drawn = False
            self._emit(_CLEAR)

    def hold(self) -> threading.RLock:
        """The lock under which the screen is written."""
        return self._lock

    def _print(self, text: str) -> None:
        with self._lock:
            self.clear()
            self._emit(text + "\n")

    def _emit(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._paused = True  # nobody is looking any more: the terminal or the pipe is closed

    def _at(self, steps: int) -> str:
        return f"{self.unit} {steps}"

    def _now_at(self) -> float | None:
        count = self._count()
        if self._total and count:  # 0 as well when training has ended, which is not to look like its beginning
            return min(count / self._total, 1.0)
        return self._fraction

    def _line(self, width: int) -> str:
        done = self._now_at()
        parts = [] if done is None else [f"{done:4.0%} {_bar(done, min(_BAR_WIDTH, width // 4))}"]
        count = self._count() or self._steps
        parts.append(f"{count:,}/{round(self._total):,}" if self._total else f"{self.unit} {count:,}")
        parts.extend([self._status, describe(self._latest, most=4), *self._outlook()[0 if done is None else 1 :]])
        parts = [part for part in parts if part]
        while len(parts) > 1 and sum(map(len, parts)) + 2 * len(parts) > width:
            parts.pop()  # half a number misleads
        return "  ".join(parts)

    def _outlook(self) -> list[str]:
        """How far, how fast, and how long still."""
        done = self._now_at()
        parts = [] if done is None else [f"{done:.0%}"]
        if len(self._pace) > 1:
            (since, count, fraction), (now, new_count, new_fraction) = self._pace[0], self._pace[-1]
            seconds = now - since
            if seconds > 0.2 and new_count > count:
                parts.append(f"{_short((new_count - count) / seconds)} {_plural(self.unit)}/s")
            # Progress may have begun to be reported later than metrics.
            since, fraction = next(((at, done) for at, _, done in self._pace if done is not None), (since, None))
            seconds = now - since
            if seconds > 0.2 and new_fraction is not None and fraction is not None and new_fraction > fraction:
                parts.append(f"{duration(round((1 - new_fraction) * seconds / (new_fraction - fraction)))} left")
        return parts


def describe(metrics: Mapping[str, Any], most: int = 12) -> str:
    """Metrics on a line, a nested one as ``outer.inner``."""
    shown: list[str] = []
    _collect(metrics, "", shown)
    rest = f"  … {len(shown) - most} more" if len(shown) > most else ""
    return "  ".join(shown[:most]) + rest


def duration(seconds: float) -> str:
    """A length of time in its two largest units."""
    seconds = int(seconds)
    for size, unit, smaller, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // smaller:02}{small}"
    return f"{seconds}s"


def _collect(metrics: Mapping[str, Any], prefix: str, shown: list[str]) -> None:
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            _collect(value, f"{prefix}{name}.", shown)
        elif isinstance(value, float):
            shown.append(f"{prefix}{name} {value:.4g}")
        elif isinstance(value, int) or (isinstance(value, str) and len(value) < 40 and value.isprintable()):
            shown.append(f"{prefix}{name} {value}"[:80])


def _bar(fraction: float, width: int) -> str:
    full = int(fraction * width)
    return "━" * full + ("╺" + "─" * (width - full - 1) if full < width else "")


def _short(number: float) -> str:
    return f"{number / 1000:.1f}k" if number >= 10_000 else f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def _plural(unit: str) -> str:
    return unit + ("es" if unit.endswith("h") else "s")


class _Redirection:
    """While the line lives, what the script writes to the same terminal goes above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._streams: list[tuple[str, Any, _Above]] = []
        self._handlers: list[tuple[Any, Any]] = []
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            # A pipe or a file is left alone: nothing drawn on the terminal gets into it.
            if stream is not None and stream.isatty():
                above = _Above(stream, console)
                self._streams.append((name, stream, above))
                setattr(sys, name, above)
        if "logging" in sys.modules:
            for handler in sys.modules["logging"].getLogger().handlers:
                for _, stream, above in self._streams:
                    if getattr(handler, "stream", None) is stream:
                        handler.setStream(above)
                        self._handlers.append((handler, stream))
        self._breakpointhook = sys.breakpointhook
        sys.breakpointhook = self._stop_and_break

    def is_mid_line(self) -> bool:
        return any(above.is_mid_line for _, _, above in self._streams)

    def undo(self) -> None:
        for name, stream, above in self._streams:
            if getattr(sys, name) is above:
                setattr(sys, name, stream)
        for handler, stream in self._handlers:
            handler.setStream(stream)
        if sys.breakpointhook == self._stop_and_break:
            sys.breakpointhook = self._breakpointhook

    def _stop_and_break(self, *args: Any, **kwargs: Any) -> Any:
        self._console.pause()
        return self._breakpointhook(*args, **kwargs)


class _Above:
    """A stream that takes the live line away before it writes."""

    def __init__(self, stream: TextIO, console: Console) -> None:
        self._stream = stream
        self._console = console
        self._owner = os.getpid()
        self.is_mid_line = False

    def write(self, text: str) -> int:
        if os.getpid() != self._owner:
            return self._stream.write(text)  # a forked worker: the lock may be held by a thread it does not have
        with self._console.hold():
            self._console.clear()
            if text:
                self.is_mid_line = not text.endswith("\n")
            return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
