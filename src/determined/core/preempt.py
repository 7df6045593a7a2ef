"""PreemptContext: how a wish to stop reaches training, whoever has it: a signal, another rank, or whoever runs it."""

from __future__ import annotations

import enum
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import IO, Any

from determined.core.orders import Orders, StopLine
from determined.core.ranks import DistributedContext

__all__ = ["PreemptContext", "PreemptMode", "StopLine"]

# A terminal's Ctrl-C reaches ranks twice when their launcher passes it on; people are slower than that.
_ONE_PRESS_SECONDS = 0.3


class PreemptMode(enum.Enum):
    """Who calls ``should_preempt()``, and what decides the answer.

    WorkersAskChief: all ranks, together; the chief's view is everybody's. ChiefOnly: the chief alone.
    WorkersAskMaster: any rank, whenever it likes; ranks may learn of a stop at different moments.
    """

    WorkersAskMaster = "WORKERS_ASK_MASTER"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskChief = "WORKERS_ASK_CHIEF"


class PreemptContext:
    """Tells training when to stop, and where all ranks can stop together."""

    def __init__(
        self,
        distributed: DistributedContext | None = None,
        preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    ) -> None:
        self._distributed = distributed or DistributedContext()
        self._mode = preempt_mode
        self._started = False
        self._reason = ""
        self._acknowledged = False
        self._signals: _Signals | None = None
        place = self._distributed
        self._orders = Orders(place.rank, place.size, place.orders, self._announce)

    def start(self) -> PreemptContext:
        """Begin to listen to the other ranks."""
        self._started = True
        self._orders.start()
        return self

    def close(self) -> None:
        """Stop listening, without making other ranks wait, and give the signals back."""
        if self._signals is not None:
            self._signals.restore()
            self._signals = None
        self._orders.close()

    def __enter__(self) -> PreemptContext:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Whether to save a checkpoint and leave now. The first True is acknowledged unless ``auto_ack`` is False."""
        self._require_started("should_preempt()")
        place = self._distributed
        if self._mode is PreemptMode.ChiefOnly and place.rank != 0:
            raise RuntimeError(
                f"should_preempt() was called on rank {place.rank}, but with PreemptMode.ChiefOnly only the chief may "
                "call it; call it on rank 0 or use PreemptMode.WorkersAskChief"
            )
        asked = self._orders.asked
        if self._mode is PreemptMode.WorkersAskChief and place.size > 1:
            asked = bool(place.broadcast(asked))
        if asked and auto_ack:
            self.acknowledge_preemption_signal()
        return asked

    def acknowledge_preemption_signal(self) -> None:
        """Say that this process is about to leave because it was asked to, and is not done."""
        self._require_started("acknowledge_preemption_signal()")
        self._acknowledged = True

    def ask(self, reason: str = "") -> None:
        """Ask all ranks to stop. Callable on any rank, from any thread and from a signal handler."""
        self._reason = self._reason or reason
        self._orders.ask()

    @property
    def asked(self) -> bool:
        """Whether a wish to stop has reached this rank. Ranks learn of it at different moments."""
        return self._orders.asked

    @property
    def acknowledged(self) -> bool:
        """Whether training took the wish to stop to heart, so that its end does not mean it is done."""
        return self._acknowledged

    def stop_line(self, batches_done: Callable[[], int]) -> StopLine:
        """Where training will stop, if anybody asks; all ranks draw one before they begin to train."""
        self._require_started("stop_line()")
        return self._orders.line(batches_done)

    def install_signals(self, stacks: str | None = None) -> bool:
        """SIGTERM and SIGINT ask to stop, a second SIGINT stops at once, SIGUSR1 writes all stacks to a file.

        ``stacks`` is that file's path, standard error without one. Only the main thread can take signals: elsewhere
        nothing is done, and the answer is False.
        """
        if threading.current_thread() is not threading.main_thread() or self._signals is not None:
            return False
        self._signals = _Signals(self, stacks)
        return True

    def _require_started(self, what: str) -> None:
        if not self._started:
            raise RuntimeError(f"{what} was called before start(); use core.init() or call start() first")

    def _announce(self, rank: int) -> None:
        # May run inside a signal handler, so no buffered stream: the main thread may be in the middle of using it.
        if self._distributed.rank == 0:
            why = self._reason or (f"asked on rank {rank}")
            hint = "; Ctrl-C again stops at once" if self._signals is not None else ""
            _write(f"stopping at the next batch, with a checkpoint ({why}){hint}\n")


class _Signals:
    """The handlers in place of those that were there; they set flags and nothing else."""

    def __init__(self, preempt: PreemptContext, stacks: str | None) -> None:
        self._preempt = preempt
        self._pid = os.getpid()
        self._asked_at: float | None = None
        self._before: dict[int, Any] = {
            number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)
        }
        self._stacks: IO[str] | None = None
        if hasattr(signal, "SIGUSR1"):
            self._stacks = open(stacks, "a") if stacks else None
            faulthandler.register(signal.SIGUSR1, file=self._stacks or _stderr(), all_threads=True)

    def restore(self) -> None:
        if self._pid != os.getpid() or threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if hasattr(signal, "SIGUSR1"):
            faulthandler.unregister(signal.SIGUSR1)
        if self._stacks is not None:
            self._stacks.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return self._handle_in_fork(number)
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            self._preempt.ask(signal.Signals(number).name)
        elif number == signal.SIGINT and now - self._asked_at > _ONE_PRESS_SECONDS:
            raise KeyboardInterrupt

    def _handle_in_fork(self, number: int) -> None:
        # A data-loading worker inherits these handlers. Ctrl-C is its parent's to decide about, which still needs it
        # for the batch in flight; whoever terminates the worker itself means it.
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _stderr() -> int:
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return 2  # Replaced by something that has none, as notebooks and tests do.


def _write(text: str) -> None:
    try:
        os.write(2, text.encode())
    except OSError:
        pass  # Nobody is there to read it.
