"""The node process: starts this machine's ranks, pumps what they print, watches them, and ends them as one.

It has one thread and one loop. Whoever is killed, nothing it started stays behind (see ``processes``).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import selectors
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from determined import errors
from determined.core import beats, connect
from determined.core.run_folder import RunFolder
from determined.wire.node_spec import NodeSpec
from determined.wire.outcome import Ending, Outcome
from determined.worker import gang, logs, ports, processes, sweeper, watchdog
from determined.worker.gang import Rank
from determined.worker.log_file import LogFile
from determined.worker.log_policies import LogPolicies

# How long the other ranks have to write down what they know, once one has failed.
_LAST_WORDS_SECONDS = 0.5
_TICK_SECONDS = 0.1
# A tick that took longer than this was not spent watching: we were stopped, or the machine was asleep.
_LONGEST_TICK_SECONDS = 0.5
_HOUSEKEEPING_SECONDS = 2.0
_ONE_PRESS_SECONDS = 0.3
_SWEEP_SECONDS = 2.0
_LONGEST_DETAIL = 8 << 10
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP)


def run(
    spec: NodeSpec, command: Sequence[str], *, max_restarts: int = 0, environ: Mapping[str, str] | None = None
) -> int:
    """Run one machine's share of an allocation to its end, and return the exit code that tells how it went.

    0 when every rank ended well, 128 + n when signal n ended one, else what the first rank to fail returned. The same,
    in words, is in the run folder: ``logs/outcome.json``.
    """
    environ = os.environ if environ is None else environ
    with contextlib.ExitStack() as stack:
        node = Node(spec, command, environ, max_restarts)
        # Signals are given back last: an impatient Ctrl-C must not interrupt the cleaning up.
        stack.enter_context(node.taking_signals())
        stack.callback(node.leave)
        ending = node.run()
    return ending.exit_code


class Node:
    """One run of the node process: attempts, until one ends well or no restart is left.

    With a ``log``, what is printed goes there and nowhere else, and whoever made the node keeps the ending. ``lock``
    is a descriptor that must stay open until everything is swept; ``sweepers`` are services to use. ``on_start`` is
    called when the ranks have been started: from then on there may be threads.
    """

    def __init__(
        self,
        spec: NodeSpec,
        command: Sequence[str],
        environ: Mapping[str, str],
        max_restarts: int = 0,
        *,
        log: LogFile | None = None,
        logs_folder: pathlib.Path | None = None,
        scratch: pathlib.Path | None = None,
        lock: int | None = None,
        sweepers: Sequence[str] = (),
        start_rank: gang.Start = gang.start_cold,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        self.spec = spec
        self.command = list(command)
        self.is_shell = False
        self.folder = spec.code_folder  # where the ranks start
        self.environ = dict(environ)
        self.hook_environment: dict[str, str] = {}  # what a startup hook has exported
        self.max_restarts = max_restarts
        self.log = log
        # Whoever reads endings decides what a policy leads to.
        self.policies = LogPolicies(((spec.config or {}).get("log_policies") or ()) if log is not None else ())
        self.start_rank = start_rank
        self.on_start = on_start
        self.logs_folder = logs_folder or spec.run_folder / "logs"
        self.logs_folder.mkdir(parents=True, exist_ok=True)
        if scratch is not None:
            scratch.mkdir(mode=0o700, exist_ok=True)
        self.scratch = scratch or pathlib.Path(tempfile.mkdtemp(prefix="resolute-"))
        self.marker = _marker(spec, environ)
        self.household = processes.Household(self.marker, self.scratch, lock, sweepers)
        self.outlets: list[logs.Sink] = (
            [logs.Outlet(1), logs.Outlet(2)] if log is None else [logs.Silence(), logs.Silence()]
        )
        self.stop = Stop(spec.grace_seconds)
        self._suffix = f"-node-{spec.node_rank}" if spec.nodes > 1 else ""

    @contextlib.contextmanager
    def taking_signals(self) -> Iterator[None]:
        """Take this process's signals while the ranks run. Only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        sys.stdout.flush()
        sys.stderr.flush()
        before: dict[int, Any] = {}
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and job control say what to ignore.
                before[number] = signal.signal(number, self.stop.take)
        try:
            yield
        finally:
            for taken, handler in before.items():
                signal.signal(taken, handler if handler is not None else signal.SIG_DFL)

    def run(self) -> Ending:
        attempt = 0
        while True:
            try:
                with ports.reserved(self.spec.master_port) if self._hosts_meeting else _given(self.spec) as port:
                    ending = Attempt(self, attempt, port).run()
            except errors.DeterminedError as error:
                self._write(Ending(outcome=Outcome.FAILED, exit_code=1, reason=str(error), restarts=attempt))
                raise
            again = ending.outcome in (Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.LOST)
            if not again or attempt >= self.max_restarts or self.stop.is_asked:
                break
            attempt += 1
            self.say(f"starting again, restart {attempt} of {self.max_restarts}")
        ending = ending.model_copy(update={"restarts": attempt})
        self._write(ending)
        for outlet in self.outlets:
            outlet.flush(float("inf"))
        return ending

    def leave(self) -> None:
        """Take everything down: nothing of ours may outlive us."""
        self.household.sweep(_SWEEP_SECONDS)
        self.household.dissolve()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def carry_marker(self, environment: dict[str, str]) -> None:
        """Let whatever gets this environment be found when we end."""
        environment[sweeper.VARIABLE] = self.marker

    def record(self, rank: int) -> gang.Record:
        """Where the lines of a rank are kept."""
        if self.log is not None:
            return gang.RankLines(self.log, rank, self._look_at)
        return gang.RankFile(self.logs_folder / f"rank-{rank}.log")

    def say(self, text: str) -> None:
        """A line of our own, after what the ranks printed so far."""
        if self.log is not None:
            self.log.write(text.encode().split(b"\n"), rank=None, stdtype="stderr", source="node")
            return
        self.outlets[1].write(f"{text}\n".encode())
        with contextlib.suppress(OSError), open(self.logs_folder / f"node{self._suffix}.log", "a") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n")

    def _look_at(self, lines: Sequence[bytes]) -> None:
        for said in self.policies.look(lines):
            self.say(said)

    def _write(self, ending: Ending) -> None:
        if self.log is not None:
            return
        with contextlib.suppress(OSError):  # A full disk has been complained about by whoever filled it.
            ending.write(self.logs_folder / f"outcome{self._suffix}.json")

    @property
    def _hosts_meeting(self) -> bool:
        return self.spec.node_rank == 0


@contextlib.contextmanager
def _given(spec: NodeSpec) -> Iterator[int]:
    yield spec.master_port


class Stop:
    """What signals and orders asked for; the loop acts on it. Whoever asks only writes things down.

    ``read_grace`` says, when there was a signal, how long the ranks may take; None: as long as they may anyway.
    """

    def __init__(self, grace_seconds: float) -> None:
        self.grace_seconds = grace_seconds
        self.read_grace: Callable[[], float | None] = lambda: None
        self.signal: int | None = None
        self.at_once = False
        self.suspend = False
        self.replaced_because = ""
        self._deadline: float | None = None
        self._asked_at = 0.0
        self._look_again = False

    @property
    def is_asked(self) -> bool:
        return self.signal is not None

    @property
    def is_overdue(self) -> bool:
        if self._look_again:
            self._look_again = False
            self._allow(self.read_grace())
        return self._deadline is not None and time.monotonic() >= self._deadline

    def take(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGTSTP:
            self.suspend = True
            return
        if self.signal is None:
            self.signal = number
            self._asked_at = now
        elif number == signal.SIGINT and now - self._asked_at > _ONE_PRESS_SECONDS:
            self.at_once = True
        self._look_again = True

    def order(self, grace_seconds: float) -> None:
        """Somebody wants the ranks to stop within so many seconds. Callable from any thread."""
        self._allow(grace_seconds)
        self.signal = self.signal or signal.SIGTERM

    def replace(self, why: str) -> None:
        """Somebody else has taken our place: the ranks must not go on. Callable from any thread."""
        self.replaced_because = why

    def _allow(self, grace_seconds: float | None) -> None:
        # An order may follow another with less patience, never with more.
        if grace_seconds is None and self._deadline is None:
            grace_seconds = self.grace_seconds
        if grace_seconds is None:
            return
        deadline = time.monotonic() + grace_seconds
        if self._deadline is None or deadline < self._deadline:
            self.grace_seconds, self._deadline = grace_seconds, deadline


class Attempt:
    """One gang, from its start to its end."""

    def __init__(self, node: Node, attempt: int, port: int) -> None:
        self._node = node
        self._spec = spec = node.spec
        self._stop = node.stop
        self._household = node.household
        self._attempt = attempt
        self._oom_kills = _oom_kills()
        self._told_to_stop: set[int] = set()
        self._hung: str = ""
        self._culprit: int | None = None
        self._killed_because = ""
        self._place = gang.Place(
            nodes=spec.nodes,
            node_rank=spec.node_rank,
            slots=spec.ranks or spec.slots,
            master_addr=spec.master_addr,
            master_port=port,
            gang_id=_gang_id(spec),
            attempt=attempt,
            max_restarts=node.max_restarts,
        )
        self._stacks = {rank: node.logs_folder / f"stacks-rank-{rank}.txt" for rank in self._place.ranks}
        for path in self._stacks.values():
            path.touch()
        self._beats = beats.make(str(node.scratch / "beats"), self._place.slots)
        self._began = time.time()
        self._ranks: list[Rank] = []

    def run(self) -> Ending:
        node = self._node
        if not self._stop.is_asked:
            self._ranks = gang.start(
                node.command,
                self._place,
                self._environment(),
                folder=node.folder,
                stacks=self._stacks,
                outlets=node.outlets,
                record=node.record,
                start_rank=node.start_rank,
            )
        self._household.watch({rank.pid for rank in self._ranks})
        node.on_start()
        with selectors.DefaultSelector() as selector:
            for rank in self._ranks:
                for stream in rank.streams:
                    selector.register(stream.file, selectors.EVENT_READ, (rank, stream))
                if rank.end is not None:
                    selector.register(rank.end, selectors.EVENT_READ, (rank, None))
            self._watch(selector)
            self._take_down(selector)
        return self._conclude()

    def _environment(self) -> dict[str, str]:
        spec = self._spec
        path = self._node.scratch / "spec.json"
        resume = spec.latest_checkpoint
        if self._attempt and _has_checkpoint(spec.run_folder):
            # By its folder: "latest" alone would mean the latest of all runs of this name.
            resume = str(spec.run_folder)
        spec.model_copy(update={"master_port": self._place.master_port, "latest_checkpoint": resume}).write(path)
        environment = {**self._node.environ, **spec.environment, **self._node.hook_environment}
        # Output is for people to follow, and must not die with a rank that is killed.
        environment.setdefault("PYTHONUNBUFFERED", "1")
        environment |= {
            "DET_NODE_SPEC": str(path),
            "DET_BEATS": str(self._node.scratch / "beats"),
        }
        self._node.carry_marker(environment)
        if resume is not None:
            environment["DET_LATEST_CHECKPOINT"] = resume
        return environment

    # The loop.

    def _watch(self, selector: selectors.BaseSelector) -> None:
        """Until every rank has ended, or the gang must be ended."""
        dog = watchdog.Watchdog(self._beats, self._spec.hang_seconds)
        failed_at: float | None = None
        last = tidied_at = time.monotonic()
        while any(rank.is_alive for rank in self._ranks):
            self._pump(selector, _TICK_SECONDS)
            for rank in self._ranks:
                rank.poll()
            now = time.monotonic()
            elapsed, last = min(now - last, _LONGEST_TICK_SECONDS), now
            self._household.tend()
            if now - tidied_at > _HOUSEKEEPING_SECONDS:
                tidied_at = now
                self._household.reap({rank.pid for rank in self._ranks})
            if self._obey_signals():
                return
            if failed_at is None and any(rank.has_failed for rank in self._ranks):
                failed_at = now
            if failed_at is not None and now - failed_at >= _LAST_WORDS_SECONDS:
                return
            stuck = dog.tick(elapsed)
            if stuck and failed_at is None:
                return self._accuse(stuck)

    def _obey_signals(self) -> bool:
        """Pass a wish to stop on to the ranks, once; whether the gang must be ended now."""
        stop = self._stop
        if stop.replaced_because:
            self._killed_because = stop.replaced_because
            return True
        if stop.suspend:
            stop.suspend = False
            self._suspend()
        if stop.at_once:
            self._killed_because = "stopped at once: it was interrupted twice"
            return True
        if stop.is_overdue:
            self._killed_because = (
                f"the ranks did not stop within {stop.grace_seconds:g} s and were killed"
                if stop.grace_seconds
                else "killed as asked"
            )
            return True
        if stop.is_asked:
            for pid in self._to_be_told() - self._told_to_stop:
                self._told_to_stop.add(pid)
                processes.signal_process(pid, signal.SIGTERM)
        return False

    def _to_be_told(self) -> set[int]:
        """Who must hear of a wish to stop, each once."""
        ranks = {rank.pid for rank in self._ranks if rank.is_alive}
        if not self._node.is_shell:
            return ranks
        # A shell would leave its children alone and die; told one by one they end, and it ends with the last.
        return {told for pid in ranks for told in processes.children_of(pid) or [pid]}

    def _suspend(self) -> None:
        """Ctrl-Z stops the ranks with us, and `fg` lets them go on."""
        for rank in self._ranks:
            _signal_group(rank.pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        for rank in self._ranks:
            _signal_group(rank.pid, signal.SIGCONT)

    def _pump(self, selector: selectors.BaseSelector, wait_seconds: float) -> bool:
        """Pass on what the ranks printed; False if there was nothing."""
        full = [outlet for outlet in self._node.outlets if outlet.is_full]
        if full:
            # Whoever reads us does not keep up: let the ranks wait, not our memory grow.
            full[0].flush(wait_seconds)
            return True
        pending = any(outlet.has_pending for outlet in self._node.outlets)
        events = selector.select(min(wait_seconds, 0.01) if pending else wait_seconds) if selector.get_map() else []
        if not events and not selector.get_map():
            time.sleep(wait_seconds)  # They closed their outputs, and live.
        for key, _ in events:
            rank, stream = key.data
            if stream is None:  # It has ended: no more than a reason to wake up.
                selector.unregister(rank.end)
                continue
            rank.read(stream)
            if stream.ended:
                selector.unregister(stream.file)
        for outlet in self._node.outlets:
            outlet.flush(0.0)
        return bool(events)

    def _accuse(self, stuck: list[int]) -> None:
        """A rank makes no progress: find out which and why, and tell."""
        alive = {rank.rank: rank.pid for rank in self._ranks if rank.is_alive}
        numbers = [self._beats[rank - self._place.ranks.start] for rank in alive]
        suspects = watchdog.investigate(alive, numbers, self._stacks)
        self._culprit, why = watchdog.culprit(suspects)
        names = ", ".join(str(self._place.ranks[at]) for at in stuck)
        self._hung = f"no progress for {self._spec.hang_seconds:g} s on rank {names}: {why}"
        self._node.say(self._hung)
        for suspect in sorted(suspects, key=lambda suspect: suspect.rank == self._culprit):
            where = suspect.main_stack or "  did not answer: its stack is not known"
            self._node.say(f"rank {suspect.rank} (state {suspect.state}, batch {suspect.batches_done}):\n{where}")
        self._node.say(f"all stacks are in {self._node.logs_folder}")

    def _take_down(self, selector: selectors.BaseSelector) -> None:
        """End every rank and all they started, and read what they still had to say."""
        for rank in self._ranks:
            rank.kill()
        left = self._household.sweep(_SWEEP_SECONDS)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            for rank in self._ranks:
                rank.poll()
            is_alive = any(rank.is_alive for rank in self._ranks)
            if not is_alive and all(stream.ended for rank in self._ranks for stream in rank.streams):
                break
            if not self._pump(selector, 0.02) and not is_alive:
                break  # What is open is open in somebody else's hands.
        for rank in self._ranks:
            rank.finish()
        if left:
            self._node.say(f"processes {', '.join(map(str, left))} cannot be killed: the system holds them")

    # What it came to.

    def _conclude(self) -> Ending:
        first = gang.first_to_fail(self._ranks)
        if self._stop.replaced_because:
            self._node.say(self._stop.replaced_because)
            return Ending(outcome=Outcome.LOST, exit_code=1, reason=self._stop.replaced_because)
        if self._stop.is_asked and (self._killed_because or not first or first.exit_code in _AS_ASKED):
            return self._stopped(first)
        if self._hung:
            return Ending(outcome=Outcome.FAILED, exit_code=1, reason=self._hung, culprit=self._culprit)
        if first is None:
            return Ending(outcome=self._word_of_the_chief() or Outcome.COMPLETED, exit_code=0)
        return self._failed(first)

    def _stopped(self, first: Rank | None) -> Ending:
        if self._killed_because:
            self._node.say(self._killed_because)
            code = 128 + (signal.SIGINT if self._stop.at_once else signal.SIGKILL)
            return Ending(outcome=Outcome.STOPPED, exit_code=code, reason=self._killed_because)
        if first is None and self._ranks:
            # It may have been done already when it was asked, and then says so.
            outcome = self._word_of_the_chief() or Outcome.STOPPED
            return Ending(outcome=outcome, exit_code=0, reason="stopped as asked")
        number = self._stop.signal or signal.SIGTERM
        return Ending(outcome=Outcome.STOPPED, exit_code=128 + number, reason="stopped as asked")

    def _failed(self, first: Rank) -> Ending:
        how = first.how_it_ended()
        reason = f"rank {first.rank} {how}"
        outcome = Outcome.FAILED
        if first.exit_code == -signal.SIGKILL and _oom_kills() > self._oom_kills:
            reason += ": the machine ran out of memory"
            outcome = Outcome.OUT_OF_MEMORY
        elif first.sounds_out_of_memory:
            outcome = Outcome.OUT_OF_MEMORY
        elif self._spec.nodes > 1 and first.sounds_like_a_consequence:
            reason += " because a rank on another machine went away: see that machine's output"
            outcome = Outcome.LOST
        text = first.errors.text() or first.output.text()
        if len(self._ranks) == 1 and self._spec.nodes == 1:
            self._node.say(reason.replace("rank 0", "the training process"))
        elif text:
            self._node.say(f"\n{reason}; its output ends:\n{text}")
        else:
            self._node.say(f"\n{reason}; it printed nothing about it")
        return Ending(
            outcome=outcome,
            exit_code=first.exit_status,
            reason=reason,
            culprit=first.rank,
            detail=_end_of(text),
        )

    def _word_of_the_chief(self) -> Outcome | None:
        """How the run says it ended: only it knows whether it was done when it left."""
        run = RunFolder.at(self._spec.run_folder)
        if run is None or run.label.started < self._began:
            return None
        return _OUTCOMES.get(run.label.state)


# How a process ends that was asked to stop and did not care to do it well; a shell says it in its own way.
_AS_ASKED = (-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT)
# What a run that ended well says of itself. One that ended as its own script asked has what it wanted.
_OUTCOMES = {
    "completed": Outcome.COMPLETED,
    "stopped": Outcome.COMPLETED,
    "interrupted": Outcome.STOPPED,
    "invalid_hp": Outcome.INVALID_HP,
}


def _marker(spec: NodeSpec, environ: Mapping[str, str]) -> str:
    """What everything started here carries, and nothing else: nested in the marker of who started us."""
    outer = environ.get(sweeper.VARIABLE) or (spec.master.allocation_id if spec.master else spec.run_id)
    return f"{outer}/{spec.node_rank}-{secrets.token_hex(4)}"


def _gang_id(spec: NodeSpec) -> str:
    """The same on all machines of this gang, and different for every other gang."""
    if spec.master is not None:
        return spec.master.allocation_id
    return spec.run_id if spec.nodes == 1 else f"{spec.master_addr}:{spec.master_port}"


def _has_checkpoint(run_folder: pathlib.Path) -> bool:
    try:
        connect.resolve_checkpoint(str(run_folder), run_folder.parent)
    except errors.DeterminedError:
        return False
    return True


def _end_of(text: str) -> str:
    """As much of a text as fits into an ending."""
    return text.encode()[-_LONGEST_DETAIL:].decode(errors="ignore")


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _oom_kills() -> int:
    """How many processes this system has killed for lack of memory so far."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0
