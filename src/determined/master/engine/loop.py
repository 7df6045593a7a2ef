"""The engine: compares what is wanted with what is there, and does what is missing.

Each pool has a lane of its own, one thread that goes round and round: look at the pool, record what has ended, plan,
record what is to start and stop, and then, after that is committed, start and stop it. Starting and stopping twice is
once, so that whatever a crash interrupts is done by the next round; a master that has just been started does nothing
but its rounds.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future

from determined import errors
from determined.master.engine import launching
from determined.master.engine.launching import Site
from determined.master.engine.machines import Machines
from determined.master.engine.retention import Retention
from determined.master.lifecycle import allocations, queue, reports
from determined.master.lifecycle.patience import grace_seconds
from determined.master.pools.base import EngineOutOfReach, Exited, Pool, Sighting
from determined.master.records import Allocation, AllocationState
from determined.master.scheduling import (
    Node,
    Placement,
    Policy,
    Priority,
    Request,
    Reservation,
    Stop,
    Why,
    build_policy,
    plan,
)
from determined.master.settings import Settings
from determined.master.store import allocations as allocation_rows
from determined.master.store.database import Database, StoreUnavailable, Tx
from determined.wire.outcome import Ending, Outcome
from determined.wire.reports import Source, StopReason

_log = logging.getLogger("determined.master")

# How often a lane looks at its pool though nothing has told it to.
TICK_SECONDS = 1.0
# After an engine, or the database, did not answer.
_RETRY_SECONDS = 2.0
# Of a lane's time rounds take so much at most, however often they are asked for.
_SHARE = 0.25
# A gang that is still there so long after its grace is ended again, and again.
_OVERDUE_SECONDS = 10.0
_INSIST_SECONDS = 5.0
# A run that no master started counts as lost when it has not been heard for so long.
SILENCE_SECONDS = 600.0


class Engine:
    """All lanes. ``wake`` is cheap, may be called from any thread, and leads to a round within milliseconds."""

    def __init__(
        self,
        database: Database,
        pools: Mapping[str, Pool],
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        *,
        url: str = "",
        cluster_id: str = "",
    ) -> None:
        self.database = database
        self.pools = pools
        self.site = Site(settings, url or settings.url or "", cluster_id)
        self.machines = Machines(database)
        self.lanes = {
            name: Lane(database, pool, self.site, _policy(settings, name), self.machines, clock)
            for name, pool in pools.items()
        }
        self.retention = Retention(database, self.site)
        self._chores = [
            Chore("silent runs", Silence(database, clock).look, 15.0),
            Chore("removing files", self.retention.remove, 1.0),
            Chore("removing what is old", self.retention.expire, 300.0),
        ]

    def wake(self) -> None:
        """Something has changed that may let something start, or must let something stop."""
        for lane in self.lanes.values():
            lane.wake()

    def look(self) -> None:
        """A gang may have ended: look at the pools too."""
        for lane in self.lanes.values():
            lane.look()

    def round(self) -> None:
        """One whole round of every lane, now, on this thread: for whoever does not ``run`` the engine."""
        for lane in self.lanes.values():
            lane.round()

    async def run(self) -> None:
        """Go round until cancelled. What runs in the pools runs on."""
        self.database.watch_moves(self.wake)
        threads = [
            threading.Thread(target=lane.run, name=f"lane {name}", daemon=True) for name, lane in self.lanes.items()
        ]
        closing = threading.Event()
        threads.append(threading.Thread(target=self._do_chores, args=(closing,), name="chores", daemon=True))
        for thread in threads:
            thread.start()
        try:
            await asyncio.Event().wait()
        finally:
            closing.set()
            for lane in self.lanes.values():
                lane.close()
            for thread in threads:
                await asyncio.to_thread(thread.join)

    @property
    def why(self) -> Mapping[str, Why]:
        """Why what is queued does not run, as of the last round, by request."""
        # They are not copied: each reason is written when it is read, and there may be thousands.
        return collections.ChainMap(*(lane.why for lane in self.lanes.values()))  # type: ignore[arg-type]

    def why_of(self, request_id: str) -> Why | None:
        """Why one request does not run; None if it does, or no round has seen it."""
        for lane in self.lanes.values():
            with contextlib.suppress(KeyError):
                return lane.why[request_id]
        return None

    def nodes(self, pool: str) -> Sequence[Node]:
        """The machines of a pool, as it was last seen."""
        return self.lanes[pool].nodes

    def _do_chores(self, closing: threading.Event) -> None:
        due = {chore.name: time.monotonic() + chore.every_seconds for chore in self._chores}
        while not closing.wait(1.0):
            for chore in self._chores:
                if time.monotonic() < due[chore.name] or closing.is_set():
                    continue
                try:
                    chore.do()
                except StoreUnavailable as error:
                    _log.warning("%s: %s", chore.name, error)
                except Exception:
                    _log.exception("%s went wrong", chore.name)
                due[chore.name] = time.monotonic() + chore.every_seconds


@dataclasses.dataclass(frozen=True)
class Chore:
    """Something to be done every so often."""

    name: str
    do: Callable[[], None]
    every_seconds: float


@dataclasses.dataclass
class _Order:
    """What a pool was last told about a gang that is to stop."""

    reason: StopReason | None
    at: float
    grace_seconds: float


class Lane:
    """The rounds of one pool. Everything but ``wake``, ``look`` and ``close`` happens on one thread."""

    def __init__(
        self,
        database: Database,
        pool: Pool,
        site: Site,
        policy: Policy,
        machines: Machines,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = pool
        self.why: Mapping[str, Why] = {}
        self.nodes: Sequence[Node] = ()
        self._database = database
        self._site = site
        self._policy = policy
        self._machines = machines
        self._clock = clock
        self._woken = threading.Event()
        self._look_wanted = False
        self._is_closed = False
        self._is_in_reach = True
        self._reservation: Reservation | None = None
        self._orders: dict[str, _Order] = {}
        self._started: dict[str, float] = {}
        self._there: set[str] = set()  # what the pool has, as far as we know
        watch = getattr(pool, "watch", None)
        if watch is not None:
            watch(self.look)

    # From any thread.

    def wake(self) -> None:
        self._woken.set()

    def look(self) -> None:
        self._look_wanted = True
        self._woken.set()

    def close(self) -> None:
        self._is_closed = True
        self._woken.set()

    # The thread.

    def run(self) -> None:
        """Rounds until closed: at once when woken, and now and then anyway."""
        next_look = self._clock()
        while not self._is_closed:
            self._woken.wait(max(next_look - self._clock(), 0.0))
            self._woken.clear()
            if self._is_closed:
                return
            began = self._clock()
            looks = self._look_wanted or began >= next_look
            self._look_wanted = False
            pause = 0.0
            try:
                if looks:
                    next_look = began + TICK_SECONDS
                    self.observe()
                self.act()
            except EngineOutOfReach as error:
                self._out_of_reach(error)
                pause = _RETRY_SECONDS
            except StoreUnavailable as error:
                _log.error("%s", error)
                pause = _RETRY_SECONDS
            except Exception:
                _log.exception("a round of pool %s went wrong", self.pool.name)
                pause = _RETRY_SECONDS
            took = self._clock() - began
            # Many changes in a row must not make rounds of all the time there is.
            self._rest(max(pause, took / _SHARE - took if took > 0.004 else 0.0))

    def round(self) -> None:
        """Look at the pool, and do what is to be done."""
        try:
            self.observe()
            self.act()
        except EngineOutOfReach as error:
            self._out_of_reach(error)

    def _rest(self, seconds: float) -> None:
        deadline = self._clock() + min(seconds, _RETRY_SECONDS)
        while not self._is_closed and (left := deadline - self._clock()) > 0:
            time.sleep(min(left, 0.05))

    def _out_of_reach(self, error: EngineOutOfReach) -> None:
        if self._is_in_reach:
            self._is_in_reach = False
            _log.warning("pool %s is out of reach, its gangs are not lost: %s", self.pool.name, error)

    # Looking.

    def observe(self) -> None:
        """Record what the pool says: what runs, what has ended, what is gone."""
        seen = self.pool.poll()
        self.nodes = [*self.pool.capacity()]
        if not self._is_in_reach:
            self._is_in_reach = True
            _log.info("pool %s answers again", self.pool.name)
        self._there = {*seen}
        live = self._database.read_now(allocation_rows.live, self.pool.name)
        for allocation in live:
            self._reconcile(allocation, seen.get(allocation.id))
        self._sweep(seen, {allocation.id for allocation in live})

    def _reconcile(self, allocation: Allocation, sighting: Sighting | None) -> None:
        match sighting:
            case Exited(ending=ending):
                self._end(allocation, ending)
            case None if allocation.state is AllocationState.ASSIGNED:
                pass  # it was never started, or we do not know: started again below, which does no harm
            case None if allocation.started_at is None and allocation.id not in self._started:
                # It was to stop before it was ever started.
                self._end(allocation, Ending(outcome=Outcome.STOPPED, exit_code=0, reason="stopped before it began"))
            case None:
                self._end(
                    allocation,
                    Ending(outcome=Outcome.LOST, exit_code=0, reason="its processes are gone without a trace"),
                )
            case _ if allocation.started_at is None and sighting.has_begun:
                self._database.write_now(allocations.record_running, allocation.id)

    def _end(self, allocation: Allocation, ending: Ending) -> None:
        self._take_the_rest(allocation)
        machines = [node.id for node in self.nodes]
        ended = self._database.write_now(allocations.record_exit, allocation.id, ending, machines)
        _log.info("%s ended: %s%s", allocation.id, ending.outcome.value, f" ({ending.reason})" if ending.reason else "")
        self._judge(ended, ending)
        self._orders.pop(allocation.id, None)
        self._started.pop(allocation.id, None)
        self.pool.forget(allocation.id)

    def _take_the_rest(self, allocation: Allocation) -> None:
        """What its nodes wrote down and could not ship."""
        unshipped = getattr(self.pool, "unshipped", None)
        if unshipped is None:
            return
        known = self._database.read_now(allocation_rows.acknowledged, allocation.id)
        try:
            for batch in unshipped(allocation.id, {Source(source): lines for source, lines in known.items()}):
                self._database.write_now(reports.ingest, allocation.id, batch)
        except (EngineOutOfReach, StoreUnavailable):
            raise
        except errors.DeterminedError as error:
            _log.warning("%s: some of its last reports are no use: %s", allocation.id, error)
        except Exception:
            _log.exception("%s: some of its last reports could not be taken", allocation.id)

    def _judge(self, allocation: Allocation, ending: Ending) -> None:
        """Whether the machines are to blame for the end, or have done well."""
        nodes = [*allocation.placement]
        if ending.outcome is not Outcome.LOST:
            self._machines.praise(self.pool.name, nodes)
        elif allocation.stop_reason is None and not self._was_heard(allocation):
            self._blame(nodes, ending.reason or "it was lost", self._started.get(allocation.id, float("-inf")))

    def _was_heard(self, allocation: Allocation) -> bool:
        return bool(self._database.read_now(allocation_rows.acknowledged, allocation.id).get(Source.CHIEF.value))

    def _blame(self, nodes: Sequence[str], why: str, started_at: float) -> None:
        is_only = len(self.nodes) == 1
        for node in self._machines.blame(self.pool.name, nodes, why, started_at, self._clock(), is_only):
            _log.error(
                "machine %s of pool %s gets no more work until it is enabled again: %s", node, self.pool.name, why
            )

    def _sweep(self, seen: Mapping[str, Sighting], live: set[str]) -> None:
        """Gangs that the rows know nothing of, or to have ended, must not run on."""
        for allocation_id, sighting in seen.items():
            if allocation_id in live:
                continue
            if isinstance(sighting, Exited):
                self.pool.forget(allocation_id)
            else:
                _log.warning("%s is over, and still runs: it is ended", allocation_id)
                self.pool.stop(allocation_id, 0.0)

    # Acting.

    def act(self) -> None:
        """Plan, record what is to start and to stop, and then start and stop it."""
        requests, live = self._database.read_now(self._state)
        unproven = collections.Counter(
            node for allocation in live if allocation.heard_at is None for node in allocation.placement
        )
        nodes = self._machines.usable(self.pool.name, self.nodes, self._clock(), unproven)
        decided = plan(requests, nodes, self._policy, now=self._clock(), reservation=self._reservation)
        self._reservation = decided.reservation
        self.why = decided.waiting
        assigned = [
            self._database.submit(allocations.assign, start.id, start.placement, self.pool.name)
            for start in decided.starts
            if self._is_trusted(start.placement, unproven)
        ]
        by_task = {allocation.task_id: allocation for allocation in live}
        stopped = []
        for stop in (*decided.stops, *self._evicted(live)):
            if stop.id in by_task:
                _log.info("%s makes room: %s", stop.id, stop.reason)
                allocation_id = by_task[stop.id].id
                stopped.append(self._database.submit(allocations.ask_stop, allocation_id, StopReason.PREEMPTED))
        new = [*_results(assigned)]
        live = [*_merged(live, [*new, *_results(stopped)])]
        for allocation in live:
            if allocation.state is AllocationState.STOPPING:
                self._stop(allocation)
            elif allocation.state is AllocationState.ASSIGNED:
                self._start(allocation)
        if decided.is_partial or len(new) < len(assigned):
            self._woken.set()

    def _state(self, tx: Tx) -> tuple[Sequence[Request], list[Allocation]]:
        return queue.requests(tx, self.pool.name, self._site.settings.default_pool_name), allocation_rows.live(
            tx, self.pool.name
        )

    def _is_trusted(self, placement: Placement, unproven: collections.Counter[str]) -> bool:
        """Whether these machines may be given one more gang; a machine that has just failed is given few at a time."""
        for node in placement:
            allowance = self._machines.allowance(self.pool.name, node, unproven[node])
            if allowance is not None and allowance <= 0:
                return False
        unproven.update([*placement])
        return True

    def _evicted(self, live: Iterable[Allocation]) -> list[Stop]:
        closed = {*self._machines.closed(self.pool.name, self.nodes)}
        return [
            Stop(allocation.task_id, "its machine was switched off")
            for allocation in live
            if closed & set(allocation.placement) and allocation.stop_reason is None
        ]

    def _start(self, allocation: Allocation) -> None:
        if allocation.id in self._there:
            return
        try:
            gang = self._database.write_now(launching.prepare, allocation.id, self._site, self.pool.device)
            if gang is None:
                return  # it is to stop by now
            gang = launching.with_requirements(gang)
        except (StoreUnavailable, EngineOutOfReach):
            raise
        except Exception as error:
            if not isinstance(error, errors.DeterminedError):
                _log.exception("%s cannot be started", allocation.id)
            self._end(allocation, Ending(outcome=Outcome.FAILED, exit_code=1, reason=f"it cannot be started: {error}"))
            self._woken.set()
            return
        try:
            self.pool.start(gang)
        except EngineOutOfReach:
            raise
        except Exception as error:
            _log.exception("%s could not be started", allocation.id)
            reason = f"it could not be started: {error}"
            self._database.write_now(allocations.record_lost, allocation.id, reason)
            self._blame([*allocation.placement], reason, self._clock())
            self._woken.set()
            return
        self._started[allocation.id] = self._clock()
        self._there.add(allocation.id)

    def _stop(self, allocation: Allocation) -> None:
        """Ask, with what is left of the grace, and insist when it is over."""
        order, now = self._orders.get(allocation.id), self._clock()
        if order is None or order.reason is not allocation.stop_reason:
            grace = self._database.read_now(grace_seconds, allocation)
            if order is not None:
                grace = min(grace, max(order.at + order.grace_seconds - now, 0.0))
        elif now > order.at + order.grace_seconds + (_OVERDUE_SECONDS if order.grace_seconds else _INSIST_SECONDS):
            grace = 0.0
        else:
            return
        self.pool.stop(allocation.id, grace)
        self._orders[allocation.id] = _Order(allocation.stop_reason, now, grace)


class Silence:
    """Runs that no master started are lost when they have been silent for long, by this master's own clock."""

    def __init__(self, database: Database, clock: Callable[[], float], seconds: float = SILENCE_SECONDS) -> None:
        self._database = database
        self._clock = clock
        self._seconds = seconds
        self._last: dict[str, tuple[float | None, float]] = {}

    def look(self) -> None:
        """Record those that are lost. Time in which there was no master does not count."""
        now = self._clock()
        live = self._database.read_now(allocation_rows.live, "")
        last, self._last = self._last, {}
        for allocation in live:
            heard_at, since = last.get(allocation.id, (None, now))
            if heard_at != allocation.heard_at:
                since = now
            if now - since > self._seconds:
                reason = f"nothing was heard of it for {self._seconds:g} s"
                self._database.write_now(allocations.record_lost, allocation.id, reason)
            else:
                self._last[allocation.id] = (allocation.heard_at, since)


def _policy(settings: Settings, pool: str) -> Policy:
    if pool not in settings.pools:
        return Priority()
    chosen = settings.pools[pool]
    return build_policy(chosen.scheduler, chosen.scheduler_options)


def _results(futures: Sequence[Future[Allocation]] | Sequence[Future[Allocation | None]]) -> Iterator[Allocation]:
    """What became of changes that were handed in together; what was refused is no longer wanted."""
    for future in futures:
        try:
            found = future.result()
        except errors.NotFound:
            continue
        if found is not None:
            yield found


def _merged(live: Iterable[Allocation], newer: Iterable[Allocation]) -> Iterable[Allocation]:
    return {allocation.id: allocation for allocation in (*live, *newer)}.values()
