"""Searches played through disasters: a whole master in one thread, driven by a seed.

The database is real and in memory, the pool imaginary, time a number. What can go wrong does: the master dies before or
after any commit and any call of its pool; reports come late, twice and in pieces, or their acknowledgements are lost;
machines and processes vanish, and some that were given up go on reporting; trials fail. Everything that was promised
is checked as it happens. The same seed is the same disaster.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import random
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import sqlalchemy as sa

from determined import config as configs
from determined import errors
from determined.master.engine.loop import Engine
from determined.master.lifecycle import experiments, reports
from determined.master.pools.base import Gang
from determined.master.records import AllocationState
from determined.master.scheduling import Node
from determined.master.settings import Settings
from determined.master.states import TrialState
from determined.master.store import allocations as allocation_rows
from determined.master.store import experiments as experiment_rows
from determined.master.store import metrics as metric_rows
from determined.master.store import searches as search_rows
from determined.master.store import tables
from determined.master.store import trials as trial_rows
from determined.master.store.database import Database, Tx
from determined.testing.fake_pool import FakeGang, FakePool
from determined.wire.outcome import Ending, Outcome
from determined.wire.reports import CheckpointReport, MetricsReport, ReportReply, Source
from tests.unit.master.engine.scenes import prepare

NODES = (Node("one", (0, 1)), Node("two", (0, 1)))
# So many events at most before it must be over, and how many of them may be disasters.
_MOST_EVENTS = 4000
_DISASTERS = 150


class Crash(BaseException):
    """The master dies here."""


class InlineDatabase(Database):
    """A database whose changes happen where they are handed in, one at a time; ``peril`` may end the master."""

    def __init__(self, connection: sa.Connection, clock: Callable[[], float], peril: Callable[[], None]) -> None:
        self.engine = connection.engine
        self.clock = clock
        self._connection = connection
        self._peril = peril
        self._memory: dict[Any, Any] = {}

    def submit(self, change: Any, *args: Any, **kwargs: Any) -> Any:
        future: Future[Any] = Future()
        tx = Tx(self._connection, self.clock(), self._memory)
        transaction = self._connection.begin()
        try:
            result = change(tx, *args, **kwargs)
            self._peril()
        except Exception as error:
            transaction.rollback()
            tx.undone()
            future.set_exception(error)
            return future
        except BaseException:
            transaction.rollback()
            raise
        transaction.commit()
        self._peril()
        future.set_result(result)
        return future

    def read_now(self, look: Any, *args: Any, **kwargs: Any) -> Any:
        with self._connection.begin():
            return look(Tx(self._connection, self.clock()), *args, **kwargs)

    def watch(self, watcher: Callable[[], None]) -> None:
        pass

    watch_moves = watch


class PerilousPool(FakePool):
    """A pool whose caller may die before and after each call."""

    def __init__(self, nodes: Sequence[Node], peril: Callable[[], None]) -> None:
        super().__init__(nodes)
        self._peril = peril

    def start(self, gang: Gang) -> None:
        self._peril()
        super().start(gang)
        self._peril()

    def stop(self, allocation_id: str, grace_seconds: float) -> None:
        self._peril()
        super().stop(allocation_id, grace_seconds)
        self._peril()

    def forget(self, allocation_id: str) -> None:
        self._peril()
        super().forget(allocation_id)
        self._peril()


@dataclasses.dataclass
class Process:
    """The training that a gang is: it goes on by one report at a time, and ships what it wrote."""

    gang: FakeGang
    step: int
    end: int
    every: int
    shipped: int = 0  # as far as it knows

    @property
    def id(self) -> str:
        return self.gang.gang.allocation_id

    @property
    def trial_id(self) -> int:
        spec = self.gang.gang.specs[0]
        assert spec.trial is not None
        return spec.trial.trial_id


class Play:
    """One search from its beginning to its end."""

    def __init__(
        self, folder: pathlib.Path, config: Mapping[str, Any], seed: int, *, is_calm: bool = False, length: int = 4
    ) -> None:
        self.draw = random.Random(seed)
        self.is_calm = is_calm
        self.length = length
        self.now = 1_000_000.0
        self.disasters = 0
        self.crashes = 0
        self.violations: list[str] = []
        self.acknowledged: dict[int, dict[tuple[str, int], float]] = defaultdict(dict)
        self.processes: dict[str, Process] = {}
        self.ghosts: list[Process] = []
        self.settings = Settings(dir=folder)
        self._is_armed = False
        self.connection = _empty_database().connect()
        self.pool = PerilousPool(NODES, self.peril)
        self.pool.on_start = self._begin
        self._new_master()
        new = experiments.NewExperiment(config=_loaded(config))
        self.experiment_id = self.database.write_now(experiments.create, new).id

    def close(self) -> None:
        self.connection.close()

    def run(self) -> None:
        """Play until the experiment has ended; raises AssertionError if it does not."""
        for _ in range(_MOST_EVENTS):
            self._event()
            if self.pool.faults or self.violations:
                break
            if not self.pool.gangs and self._has_ended():
                break
        else:
            raise AssertionError(f"it is stuck: {self.describe()}")
        assert not self.pool.faults, self.pool.faults
        assert not self.violations, self.violations
        self._check_the_end()

    def result(self, only_decisions: bool = False) -> Any:
        """What is to be the same however it was reached: which trials there were, and what came of them."""
        trials = self.database.read_now(trial_rows.of_experiment, self.experiment_id)
        experiment = self.database.read_now(experiment_rows.require, self.experiment_id)
        created = [(trial.number, trial.state.value, trial.hparams, trial.seed) for trial in trials]
        if only_decisions:
            return experiment.state.value, created
        return experiment.state.value, created, experiment.best_metric, [trial.best_metric for trial in trials]

    def describe(self) -> str:
        trials = self.database.read_now(trial_rows.of_experiment, self.experiment_id)
        states = [(trial.id, trial.state.value, trial.run_epoch, trial.target) for trial in trials]
        return f"{states}, {self.pool.poll()}, {self.disasters} disasters, {self.crashes} crashes"

    # The master.

    def peril(self) -> None:
        """The master may die here."""
        if self._is_armed and self._strikes(0.03):
            raise Crash

    def _strikes(self, chance: float) -> bool:
        if self.is_calm or self.disasters >= _DISASTERS or self.draw.random() >= chance:
            return False
        self.disasters += 1
        return True

    def _new_master(self) -> None:
        self.database = InlineDatabase(self.connection, lambda: self.now, self.peril)
        if not hasattr(self, "engine"):
            self.database.write_now(prepare)
        self.engine = Engine(self.database, {"default": self.pool}, self.settings, lambda: self.now)

    def _as_master(self, do: Callable[[], Any]) -> Any:
        """Let the master do something; if it dies of it, the next one begins with nothing but the rows."""
        self._is_armed = True
        try:
            return do()
        except Crash:
            self.crashes += 1
            self._new_master()
            self._check_acknowledged()
            return None
        finally:
            self._is_armed = False

    # The world.

    def _event(self) -> None:
        self.now += self.draw.random()
        running = [process for process in self.processes.values() if process.gang.is_running]
        kind = self.draw.random()
        if kind < 0.3 or not running:
            if self._strikes(0.02):
                self.pool.is_out_of_reach = not self.pool.is_out_of_reach
            elif self.pool.is_out_of_reach and self.draw.random() < 0.5:
                self.pool.is_out_of_reach = False
            self._as_master(self.engine.round)
            self._collect_ghosts()
        elif self._strikes(0.05):
            self._mishap(self.draw.choice(running))
        else:
            self._go_on(self.draw.choice(running))
        if self.ghosts:
            self._haunt(self.draw.choice(self.ghosts))

    def _begin(self, gang: FakeGang) -> None:
        spec = gang.gang.specs[0]
        assert spec.trial is not None
        end = self.length if spec.trial.target is None else min(int(spec.trial.target), self.length)
        self.processes[gang.gang.allocation_id] = Process(gang, spec.trial.steps_completed, end, 2)
        # What comes after the cut has not happened.
        known = self.acknowledged[spec.trial.trial_id]
        for key in [key for key in known if key[1] > spec.trial.steps_completed]:
            del known[key]

    def _go_on(self, process: Process) -> None:
        """One thing that a training does: leave as it was told to, report, or send what it wrote."""
        gang = process.gang
        if gang.grace_seconds is not None:
            self._end(process, Outcome.STOPPED)
            return
        if self.draw.random() < 0.5:
            self._ship(process)
            return
        if process.step < process.end:
            process.step += process.every
            self._report(process)
        if process.step >= process.end and self.draw.random() < 0.8:
            self._end(process, Outcome.COMPLETED)

    def _report(self, process: Process) -> None:
        spec = process.gang.gang.specs[0]
        assert spec.trial is not None
        value = loss(spec.trial.hparams, process.step)
        for group in ("training", "validation"):
            metrics = {"loss": value}
            process.gang.report(
                MetricsReport(group=group, steps_completed=process.step, metrics=metrics, time=self.now)
            )
        if self.draw.random() < 0.7 or process.step >= process.end:
            uuid = f"{process.id}-{process.step}"
            process.gang.report(CheckpointReport(uuid=uuid, steps_completed=process.step, time=self.now))

    def _ship(self, process: Process) -> None:
        """Send some lines: what is next, or, where a reply was lost or came late, what was sent before."""
        gang = process.gang
        lines = len(gang.spools[Source.CHIEF])
        first = process.shipped
        if first and self._strikes(0.2):
            first = self.draw.randrange(first)
        elif self._strikes(0.05):
            first = min(first + self.draw.randrange(1, 4), lines)
        batch = gang.batch(Source.CHIEF, first, self.draw.choice((1, 2, 5, 100)))
        reply = self._as_master(lambda: self.database.write_now(reports.ingest, process.id, batch))
        if not isinstance(reply, ReportReply):
            return
        self._remember(process, reply.acknowledged)
        if reply.acknowledged > lines:
            self.violations.append(f"{process.id}: {reply.acknowledged} of {lines} lines are acknowledged")
        if not self._strikes(0.1):  # else the reply is lost
            process.shipped = reply.acknowledged
            if reply.stop is not None and gang.grace_seconds is None:
                gang.grace_seconds = reply.stop.grace_seconds

    def _remember(self, process: Process, acknowledged: int) -> None:
        for line in process.gang.spools[Source.CHIEF][:acknowledged]:
            if isinstance(line, MetricsReport):
                self.acknowledged[process.trial_id][(line.group, line.steps_completed)] = line.metrics["loss"]

    def _end(self, process: Process, outcome: Outcome) -> None:
        failed = outcome in (Outcome.FAILED, Outcome.OUT_OF_MEMORY)
        self.pool.end(process.id, Ending(outcome=outcome, exit_code=int(failed), reason=outcome.value))

    def _mishap(self, process: Process) -> None:
        kind = self.draw.random()
        if kind < 0.4:
            self._end(process, self.draw.choice((Outcome.FAILED, Outcome.OUT_OF_MEMORY)))
        elif kind < 0.7:
            self._end(process, Outcome.LOST)
        else:
            # A machine is out of sight; what ran there may not know that it has been given up.
            node = next(iter(process.gang.gang.placement))
            self.pool.lose(node, without_trace=self.draw.random() < 0.5)

    def _collect_ghosts(self) -> None:
        for allocation_id in [*self.processes.keys() - self.pool.gangs.keys()]:
            allocation = self.database.read_now(allocation_rows.require, allocation_id)
            if allocation.state is AllocationState.ENDED:
                self.ghosts.append(self.processes.pop(allocation_id))

    def _haunt(self, ghost: Process) -> None:
        """What has been replaced must not be able to change anything."""
        batch = ghost.gang.batch(Source.CHIEF, self.draw.randrange(len(ghost.gang.spools[Source.CHIEF]) + 1))
        try:
            self.database.write_now(reports.ingest, ghost.id, batch)
        except errors.StaleRunEpoch:
            return
        self.violations.append(f"{ghost.id} is over, and its reports are taken")

    # What is checked.

    def _has_ended(self) -> bool:
        return bool(self.database.read_now(experiment_rows.require, self.experiment_id).state.has_ended)

    def _check_acknowledged(self) -> None:
        """All that was ever acknowledged, and not gone back on, is stored."""
        for trial_id, known in self.acknowledged.items():
            stored = {
                (row.group, row.steps_completed): row.metrics["loss"]
                for row in self.database.read_now(metric_rows.rows, trial_id)
            }
            for key, value in known.items():
                trial = self.database.read_now(trial_rows.require, trial_id)
                is_gone_back_on = trial.state.has_allocation and key[1] > _cut(self.database, trial_id)
                if stored.get(key) != value and not is_gone_back_on:
                    self.violations.append(f"trial {trial_id}: {key} was acknowledged, and is {stored.get(key)}")

    def _check_the_end(self) -> None:
        self._check_acknowledged()
        for trial in self.database.read_now(trial_rows.of_experiment, self.experiment_id):
            rows = self.database.read_now(metric_rows.rows, trial.id, "validation")
            steps = [row.steps_completed for row in rows]
            assert steps == [*range(2, max(steps, default=0) + 1, 2)], (trial.id, steps)
            assert all(row.metrics["loss"] == loss(trial.hparams, row.steps_completed) for row in rows)
            assert all(row.run_epoch <= trial.run_epoch for row in rows)
            assert trial.state.has_ended
        live = self.database.read_now(allocation_rows.live)
        assert live == [], live
        self._check_moves()

    def _check_moves(self) -> None:
        """States only went where they may, and nothing came after an end."""
        statement = sa.select(tables.changes.c.noun, tables.changes.c.id, tables.changes.c.fields).order_by(
            tables.changes.c.seq
        )
        states: dict[tuple[str, str], str] = {}
        found: list[Any] = self.database.read_now(lambda tx: [*tx.execute(statement)])
        for noun, id_, fields in found:
            if noun not in ("trial", "allocation") or "state" not in fields:
                continue
            before, after = states.get((noun, id_)), fields["state"]
            if before is not None and after != before and after not in _MOVES[noun].get(before, ()):
                raise AssertionError(f"{noun} {id_} went from {before} to {after}")
            states[(noun, id_)] = after

    def check_decisions(self) -> None:
        """The search's history, told to a new method, gives the decisions that were made."""
        from determined.master.lifecycle import searching

        experiment = self.database.read_now(experiment_rows.require, self.experiment_id)
        events = self.database.read_now(search_rows.events, self.experiment_id)
        _, answers = searching.replay(events, configs.load(experiment.config), experiment.seed)
        assert answers == [searching.answered(event) for event in events]


_MOVES: dict[str, dict[str, set[str]]] = {
    "trial": {
        TrialState.QUEUED.value: {"starting", "paused", "canceled", "completed"},
        TrialState.STARTING.value: {"running", "stopping", "queued", "completed", "error", "waiting", "paused"},
        TrialState.RUNNING.value: {"stopping", "queued", "completed", "error", "waiting", "paused"},
        TrialState.STOPPING.value: {"queued", "completed", "canceled", "error", "paused", "waiting"},
        TrialState.WAITING.value: {"queued", "completed", "canceled"},
        TrialState.PAUSED.value: {"queued", "canceled", "completed"},
    },
    "allocation": {
        AllocationState.ASSIGNED.value: {"running", "stopping", "ended"},
        AllocationState.RUNNING.value: {"stopping", "ended"},
        AllocationState.STOPPING.value: {"ended"},
    },
}


def loss(hparams: Mapping[str, Any], step: int) -> float:
    """What a trial comes to after so many steps: nothing but these decides."""
    return float(abs(hparams.get("x", 0.5) - 0.3) + 1.0 / step)


def _cut(database: Database, trial_id: int) -> int:
    trial = database.read_now(trial_rows.require, trial_id)
    allocation = database.read_now(allocation_rows.live_of, f"trial-{trial_id}")
    if allocation is None or allocation.from_checkpoint is None or trial.latest_checkpoint is None:
        return 0
    uuid = allocation.from_checkpoint
    return int(uuid.rpartition("-")[2]) if uuid.startswith(f"trial-{trial_id}.") else 0


_LOADED: dict[str, configs.ExperimentConfig] = {}


def _loaded(config: Mapping[str, Any]) -> configs.ExperimentConfig:
    key = repr(config)
    if key not in _LOADED:
        _LOADED[key] = configs.load({"entrypoint": "model_def:Digits", "max_restarts": 1000, **config})
    return _LOADED[key]


@functools.cache
def _empty_database() -> sa.Engine:
    """An engine of which every connection is a database of its own, with all tables.

    It is one engine for all plays, for it remembers how statements are written.
    """
    model = sqlite3.connect(":memory:")
    first = sa.create_engine("sqlite://", creator=lambda: model, poolclass=sa.pool.StaticPool)
    with first.begin() as connection:
        tables.metadata.create_all(connection)

    def connect() -> sqlite3.Connection:
        copy = sqlite3.connect(":memory:", isolation_level=None)
        model.backup(copy)
        copy.execute("PRAGMA foreign_keys = ON")
        return copy

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.pool.NullPool)
    # What listens to the engine's events would be asked about every statement.
    engine.dialect.do_begin = lambda connection: connection.execute("BEGIN")  # type: ignore[method-assign,assignment]
    return engine
