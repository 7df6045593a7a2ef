"""Orders: carries a wish to stop from any rank to all of them, and lets them agree on the batch to stop at.

Costs nothing per batch: the loop compares one number, ``StopLine.at``. Nobody waits for a rank that trains, because
each rank's own thread answers for it: with the batch in flight, it will have done at most one more.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

NEVER = sys.maxsize

ASK, STOP, HOLD, FINAL = range(1, 5)
FRAME = struct.Struct("<BIIq")


class Order(NamedTuple):
    """ASK and HOLD go to the chief, STOP and FINAL come from it. ``rank`` is who asked or answered."""

    kind: int
    rank: int
    line: int = 0
    batch: int = 0


class StopLine:
    """The batch at which training stops: ``at`` is far away until someone asks.

    Once someone does, ``at`` is first the batch this rank must wait at, and after the agreement the batch at which
    all ranks stop. ``batches_done`` must count a batch before the loop compares ``at`` for the next one.
    """

    def __init__(self, number: int, batches_done: Callable[[], int], orders: Orders) -> None:
        self.at: int = NEVER
        self.number = number
        self.batches_done = batches_done
        self._orders = orders
        self._agreed = threading.Event()

    def settle(self) -> int:
        """Wait until all ranks agree, and return the batch they stop at: the same on all, and none is past it.

        Returns at once, with a number no loop reaches, while nobody has asked.
        """
        if self.at == NEVER:
            return NEVER
        if self._orders.alone:
            self.at = max(self.at, self.batches_done())
        else:
            self._agreed.wait()
        return self.at

    def reached(self) -> bool:
        """Whether this is the batch to stop at.

        The question to ask outside the innermost loop: there, ``at`` may still be this rank's own proposal.
        """
        done = self.batches_done()
        return done >= self.at and done >= self.settle()

    def finish(self) -> None:
        """Training is over on this rank, stopped or not: its count does not change any more."""
        self._orders.finish(self)

    @property
    def is_agreed(self) -> bool:
        return self._agreed.is_set()

    def hold(self) -> int:
        """Keep a rank that trains from going further than is said here, until all ranks have said."""
        # The loop may begin a batch between our reading its count and its seeing the line. So the line stands only
        # if the count read after drawing it says that the batch in flight ends there or before.
        line = self.batches_done() + 1
        while True:
            self.at = line
            least = self.batches_done() + 1
            if least <= line:
                return line
            line = least

    def agree(self, at: int) -> None:
        """The ranks have agreed. The first word is the last."""
        if not self._agreed.is_set():
            self.at = at
            self._agreed.set()


class Council:
    """The chief's record of who said what. No clock, no I/O: each order heard returns the orders to give to all."""

    def __init__(self, size: int) -> None:
        self.present = set(range(size))
        self._asked = False
        self._holds: dict[int, dict[int, int]] = {}
        self._final: set[int] = set()

    def hear(self, order: Order) -> list[Order]:
        if order.kind == ASK:
            if self._asked:
                return []
            self._asked = True
            return [Order(STOP, order.rank)]
        self._holds.setdefault(order.line, {})[order.rank] = order.batch
        return self._conclude(order.line)

    def lose(self, rank: int) -> list[Order]:
        """A rank has left or died: nothing may wait for it. What it had said still counts."""
        self.present.discard(rank)
        return [final for line in list(self._holds) for final in self._conclude(line)]

    @property
    def is_waiting(self) -> bool:
        return len(self._final) < len(self._holds)

    def _conclude(self, line: int) -> list[Order]:
        holds = self._holds[line]
        if line in self._final or not self.present <= holds.keys():
            return []
        self._final.add(line)
        return [Order(FINAL, 0, line, max(holds.values()))]


class Orders:
    """One rank's end of the orders connections, which lead from the chief to every other rank.

    ``on_asked(rank)`` is called once, on every rank, when a wish to stop has become known there.
    """

    def __init__(
        self, rank: int, size: int, connections: Mapping[int, socket.socket], on_asked: Callable[[int], None]
    ) -> None:
        self.rank = rank
        self.alone = size == 1
        self.asked = False
        self._council = Council(size) if rank == 0 else None
        self._connections = dict(connections)
        self._buffers = dict.fromkeys(connections, b"")
        self._on_asked = on_asked
        self._lines: list[StopLine] = []
        self._finished: set[int] = set()
        self._answered: set[int] = set()
        self._wish = False
        self._wish_sent = False
        self._leaving = False
        # Held for moments only, by the training thread and by ours; never by a signal handler.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._wake_reader, self._wake_writer = (-1, -1) if self.alone else os.pipe()
        if not self.alone:
            os.set_blocking(self._wake_reader, False)
            os.set_blocking(self._wake_writer, False)

    def start(self) -> None:
        """Begin to listen to the other ranks. A rank that is alone needs no thread."""
        if not self.alone and self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="orders", daemon=True)
            self._thread.start()

    def ask(self) -> None:
        """Someone wants this gang to stop. Takes no lock: callable from any thread and from a signal handler."""
        if self.alone:
            # The flag first: a line drawn at this moment by another thread is seen here, or sees the flag.
            known, self.asked = self.asked, True
            for line in self._lines:
                if line.at == NEVER and line.number not in self._finished:
                    line.at = line.batches_done()
            if not known:
                self._on_asked(self.rank)
        else:
            self._wish = True
            self._wake()

    def line(self, batches_done: Callable[[], int]) -> StopLine:
        """A new stop line. Ranks draw their lines in the same order, like any collective call."""
        with self._lock:
            line = StopLine(len(self._lines), batches_done, self)
            self._lines.append(line)
            if self.asked:
                # Nothing is in flight yet: this rank can stop where it stands.
                line.at = batches_done()
                self._answer(line, line.at)
        return line

    def finish(self, line: StopLine) -> None:
        with self._lock:
            count = line.batches_done()
            line.batches_done = lambda: count  # Lets go of what the loop worked with.
            self._finished.add(line.number)
            if self.asked:
                self._answer(line, self._end_of(line))

    def close(self) -> None:
        """Leave: whatever the others still decide does not wait for this rank."""
        if self._pid != os.getpid():
            return  # A forked child holds copies; it has no thread here and no say.
        with self._lock:
            self._finished.update(line.number for line in self._lines)
            self._leaving = True
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()
            self._decide_alone()
            if self._wake_writer >= 0:
                reader, writer, self._wake_reader, self._wake_writer = self._wake_reader, self._wake_writer, -1, -1
                os.close(writer)
                os.close(reader)

    def _wake(self) -> None:
        try:
            os.write(self._wake_writer, b"!")
        except OSError:
            pass  # Full: a wake-up is on its way already. Closed: nobody is left to be woken.

    # What one rank does. All of it under the lock.

    def _become_asked(self, asker: int) -> None:
        if not self.asked:
            self.asked = True
            self._on_asked(asker)

    def _obey(self, order: Order) -> None:
        if order.kind == STOP:
            self._become_asked(order.rank)
            for line in self._lines:
                self._answer(line, self._end_of(line) if line.number in self._finished else None)
        elif order.kind == FINAL and order.line < len(self._lines):
            self._lines[order.line].agree(order.batch)

    def _end_of(self, line: StopLine) -> int:
        # One past the end: a rank that has finished will not stop early, and those that are about to finish, too,
        # must not take its last batch for the one to stop at.
        return line.batches_done() + 1

    def _answer(self, line: StopLine, batch: int | None) -> None:
        if self.alone or line.number in self._answered:
            return
        self._answered.add(line.number)
        self._tell_chief(Order(HOLD, self.rank, line.number, line.hold() if batch is None else batch))

    def _tell_chief(self, order: Order) -> None:
        if self._council is not None:
            self._proclaim(self._council.hear(order))
        elif 0 in self._connections:
            self._send(0, order)
        else:
            self._decide_alone()

    def _proclaim(self, orders: list[Order]) -> None:
        for order in orders:
            for peer in list(self._connections):
                self._send(peer, order)
            self._obey(order)

    def _send(self, peer: int, order: Order) -> None:
        try:
            self._connections[peer].sendall(FRAME.pack(*order))
        except OSError:
            pass  # It is gone; reading from it will say so.

    def _decide_alone(self) -> None:
        """The chief is gone: what this rank proposed is what it does."""
        for line in self._lines:
            if line.at != NEVER:
                line.agree(line.at)

    # The orders thread.

    def _serve(self) -> None:
        deadline = None
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_reader, selectors.EVENT_READ)
            for peer, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, peer)
            while True:
                events = selector.select(timeout=None if deadline is None else 0.02)
                with self._lock:
                    for key, _ in events:
                        if key.data is None:
                            self._drain_wakes()
                        elif not self._receive(key.data):
                            selector.unregister(key.fileobj)
                            self._lose(key.data)
                    if self._wish and not self._wish_sent:
                        self._wish_sent = True
                        self._pass_on_wish()
                    if self._leaving:
                        # The chief sees a round through that others wait for, unless they take their time.
                        deadline = deadline or time.monotonic() + 1.0
                        waiting = self._council is not None and self._council.is_waiting and self._connections
                        if not waiting or time.monotonic() >= deadline:
                            return self._say_goodbye()

    def _drain_wakes(self) -> None:
        try:
            while os.read(self._wake_reader, 512):
                pass
        except BlockingIOError:
            pass

    def _receive(self, peer: int) -> bool:
        try:
            data = self._connections[peer].recv(4096)
        except OSError:
            data = b""
        buffer = self._buffers[peer] + data
        whole = len(buffer) // FRAME.size * FRAME.size
        self._buffers[peer] = buffer[whole:]
        for fields in FRAME.iter_unpack(buffer[:whole]):
            if self._council is not None:
                self._proclaim(self._council.hear(Order(*fields)))
            else:
                self._obey(Order(*fields))
        return bool(data)

    def _lose(self, peer: int) -> None:
        self._connections.pop(peer).close()
        if self._council is not None:
            self._proclaim(self._council.lose(peer))
        else:
            self._decide_alone()
            # The chief may have gone without reading what we asked of it.
            self._wish_sent = False

    def _pass_on_wish(self) -> None:
        if self._council is None and 0 not in self._connections:
            if not self.asked:
                self._obey(Order(STOP, self.rank))
        else:
            self._tell_chief(Order(ASK, self.rank))

    def _say_goodbye(self) -> None:
        if self.asked:
            for line in self._lines:
                self._answer(line, self._end_of(line))
        if self._council is not None:
            self._proclaim(self._council.lose(self.rank))
