"""The database: one writer, many readers.

Every change is a plain function of a transaction. Whoever wants one hands it to the one write thread, which runs as
many as are waiting and commits them together: full durability costs one sync for all of them. A change that raises
takes back what it did and nothing else. Reads have connections of their own and never wait for the writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import pathlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Concatenate, TypeVar

import sqlalchemy as sa
from typing_extensions import ParamSpec, Unpack

from determined import errors
from determined.master.store import tables

P = ParamSpec("P")
T = TypeVar("T")

# So many changes at most are committed together: nobody waits long for the first of them.
_GROUP = 500

# What the queue is made of, and what of it makes no difference to who runs.
_MOVING = {"experiment", "trial", "task", "allocation", "job", "agent"}
_MEASURES = {"progress", "steps_completed", "status", "best_metric", "best_trial_id"}


class Tx:
    """A transaction. ``now`` is the time of everything that happens in it.

    ``memory`` holds what a change wants to find again without reading it, as long as the database is open; only the
    write thread has one that lasts. Whoever changes what it holds says in ``undo`` how to take that back, or forget it.
    """

    def __init__(self, connection: sa.Connection, now: float, memory: dict[Any, Any] | None = None) -> None:
        self.connection = connection
        self.now = now
        self.memory: dict[Any, Any] = {} if memory is None else memory
        self.has_changes = False
        self.has_moves = False  # whether something may start, or must stop, because of it
        self._undo: list[Callable[[], object]] = []

    def undo(self, action: Callable[[], object]) -> None:
        """Call this, on the write thread, if this change turns out not to have happened."""
        self._undo.append(action)

    def undone(self) -> None:
        """It has not happened: take back what is not in the database, the last first."""
        while self._undo:
            self._undo.pop()()

    def execute(self, statement: sa.Executable, parameters: Any = None) -> sa.CursorResult[Unpack[tuple[Any, ...]]]:
        """Run one statement."""
        return self.connection.execute(statement, parameters)

    def insert_many(self, table: sa.Table, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert many rows, given as tuples of all columns in the table's order, as fast as the database can."""
        if not rows:
            return
        if self.connection.dialect.name == "sqlite":
            self.connection.exec_driver_sql(_insert_statement(table), [*rows])
        else:
            names = [column.name for column in table.columns]
            self.connection.execute(sa.insert(table), [dict(zip(names, row)) for row in rows])

    def changed(self, noun: str, id: object, experiment_id: int | None = None, **fields: Any) -> None:
        """Tell whoever watches that something is different now; part of the transaction."""
        self.has_changes = True
        self.has_moves = self.has_moves or (noun in _MOVING and not (fields and fields.keys() <= _MEASURES))
        self.connection.execute(
            sa.insert(tables.changes),
            {"time": self.now, "noun": noun, "id": str(id), "experiment_id": experiment_id, "fields": fields},
        )


class Database:
    """An open database. Use ``open_database``."""

    def __init__(
        self, engine: sa.Engine, clock: Callable[[], float] = time.time, readers: int = 4, on_change: Any = None
    ) -> None:
        self.engine = engine
        self.clock = clock
        self._watchers: list[Callable[[], None]] = [on_change] if on_change else []
        self._move_watchers: list[Callable[[], None]] = []
        self._queue: queue.SimpleQueue[tuple[Callable[[Tx], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(readers, thread_name_prefix="read")
        self._memory: dict[Any, Any] = {}
        self._writer = threading.Thread(target=self._write_all, name="write", daemon=True)
        self._writer.start()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call this, on the write thread, after every commit in which ``Tx.changed`` was called."""
        self._watchers.append(watcher)

    def watch_moves(self, watcher: Callable[[], None]) -> None:
        """The same, only when something may start or must stop because of what changed."""
        self._move_watchers.append(watcher)

    # Changes.

    def submit(self, change: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Hand in a change; the future has its result once it is durable."""
        future: Future[T] = Future()
        self._queue.put((lambda tx: change(tx, *args, **kwargs), future))
        return future

    async def write(self, change: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a change, from the event loop; returns when it is durable."""
        return await asyncio.wrap_future(self.submit(change, *args, **kwargs))

    def write_now(self, change: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same from a thread that may wait."""
        return self.submit(change, *args, **kwargs).result()

    # Reads.

    async def read(self, look: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Look something up, from the event loop: all of one look sees one moment."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, lambda: self.read_now(look, *args, **kwargs))

    def read_now(self, look: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same from a thread that may wait."""
        with self.engine.connect() as connection, connection.begin():
            return look(Tx(connection, self.clock()), *args, **kwargs)

    def close(self) -> None:
        """Finish what was handed in, and let go of the file."""
        self._queue.put(None)
        self._writer.join()
        self._readers.shutdown()
        self.engine.dispose()

    # The write thread.

    def _write_all(self) -> None:
        while True:
            first = self._queue.get()
            if first is None:
                return
            group = [first]
            is_last = False
            with contextlib.suppress(queue.Empty):
                while len(group) < _GROUP:
                    item = self._queue.get_nowait()
                    if item is None:
                        is_last = True
                        break
                    group.append(item)
            self._write_group(group)
            if is_last:
                return

    def _write_group(self, group: list[tuple[Callable[[Tx], Any], Future[Any]]]) -> None:
        results: list[tuple[Future[Any], Any, BaseException | None]] = []
        transactions: list[Tx] = []
        has_changes = has_moves = False
        try:
            with self.engine.connect() as connection, connection.begin() as whole:
                is_alone = len(group) == 1
                for change, future in group:
                    if not future.set_running_or_notify_cancel():
                        continue
                    tx = Tx(connection, self.clock(), self._memory)
                    transactions.append(tx)
                    try:
                        with contextlib.nullcontext() if is_alone else _part(connection):
                            results.append((future, change(tx), None))
                            has_changes = has_changes or tx.has_changes
                        has_moves = has_moves or tx.has_moves
                    except sa.exc.OperationalError:
                        raise  # the database itself: nothing of the group can be relied on
                    except BaseException as error:
                        tx.undone()
                        results.append((future, None, error))
                        if is_alone:
                            whole.rollback()
        except BaseException as error:
            for tx in reversed(transactions):
                tx.undone()
            problem = _explain(error)
            for _, future in group:
                if not future.done():
                    future.set_exception(problem)
            return
        for future, result, failure in results:
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)
        for watcher in (*(self._watchers if has_changes else ()), *(self._move_watchers if has_moves else ())):
            watcher()


@contextlib.contextmanager
def _part(connection: sa.Connection) -> Iterator[None]:
    """What fails in here is taken back, and nothing else of the transaction."""
    # Not begin_nested: it compiles two statements anew each time, which costs as much as a small change.
    connection.exec_driver_sql("SAVEPOINT part")
    try:
        yield
    except sa.exc.OperationalError:
        raise  # all of it is taken back
    except BaseException:
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT part")
        connection.exec_driver_sql("RELEASE SAVEPOINT part")
        raise
    connection.exec_driver_sql("RELEASE SAVEPOINT part")


class StoreUnavailable(errors.DeterminedError):
    """The database cannot be written now; nothing of what was asked has happened."""

    code = "store_unavailable"


def open_database(url: str, clock: Callable[[], float] = time.time) -> Database:
    """Open the database at an SQLAlchemy URL, or a path to an SQLite file, as it is; ``migrate`` it first."""
    return Database(make_engine(url), clock)


def make_engine(url: str) -> sa.Engine:
    """The engine for a URL or a path. SQLite: write-ahead log, every commit synced, foreign keys checked."""
    if "://" not in url:
        pathlib.Path(url).parent.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{url}"
    if not url.startswith("sqlite"):
        return sa.create_engine(url, pool_size=8, max_overflow=4, pool_pre_ping=True)
    engine = sa.create_engine(
        url, pool_size=8, max_overflow=4, connect_args={"timeout": 30, "check_same_thread": False}
    )

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        # Transactions are begun by us, below: the driver would begin them late, and savepoints need them early.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            "busy_timeout = 30000",
            "temp_store = MEMORY",
            "cache_size = -16384",
            "journal_size_limit = 67108864",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


@contextlib.contextmanager
def temporary_database(url: str, clock: Callable[[], float] = time.time) -> Iterator[Database]:
    """An empty database with all tables, for tests and simulations."""
    engine = make_engine(url)
    tables.metadata.create_all(engine)
    database = Database(engine, clock)
    try:
        yield database
    finally:
        database.close()


@functools.cache
def _insert_statement(table: sa.Table) -> str:
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    return f'INSERT INTO "{table.name}" ({names}) VALUES ({", ".join("?" * len(table.columns))})'


def _explain(error: BaseException) -> BaseException:
    if isinstance(error, sa.exc.OperationalError):
        return StoreUnavailable(
            f"the database cannot be written: {error.orig}; nothing of this request has happened. If the disk is full, "
            "free some space and try again"
        )
    return error
