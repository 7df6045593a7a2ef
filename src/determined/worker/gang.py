"""The ranks of one machine: started with torchrun's environment, read, and ended as one."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Protocol

from determined import errors
from determined.worker import logs, processes
from determined.worker.log_file import LogFile

# How a rank sounds that fails only because another one went away. Matched against the end of its output.
_CONSEQUENCE = re.compile(
    r"Connection (closed|reset) by (remote )?peer|Connection refused|Broken pipe|lost the connection to rank"
    r"|PeerLost|ConnectionResetError|remote process exited|NCCL (communicator was aborted|error: remote)"
    r"|ncclRemoteError|Socket closed|recvValue failed|sendBytes failed|failed to recv|DistNetworkError"
    r"|Timed out waiting .* recv|Application timeout caused pair closure"
)
_OUT_OF_MEMORY = re.compile(
    r"\bOutOfMemoryError\b|CUDA out of memory|^MemoryError\b|DefaultCPUAllocator: can't allocate", re.M
)

# How a process may end that has raised: torch's threads do not always survive their own taking down.
_AFTER_EXCEPTION = (-signal.SIGABRT, -signal.SIGSEGV)
_RECENT_SECONDS = 30.0


class Process(Protocol):
    """A process that was started, by whatever means: what a Popen is, as far as it matters here."""

    @property
    def pid(self) -> int: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...


class Start(Protocol):
    """Starts one rank, in a session of its own, to die with this process."""

    def __call__(self, command: Sequence[str], environment: Mapping[str, str], folder: pathlib.Path) -> Process: ...


class Record(Protocol):
    """Keeps what a rank prints."""

    def write(self, lines: Sequence[bytes], *, is_error: bool) -> None: ...

    def close(self) -> None: ...


class RankFile:
    """A file of its own for each rank."""

    def __init__(self, path: pathlib.Path) -> None:
        self._file = open(path, "ab", buffering=0)

    def write(self, lines: Sequence[bytes], *, is_error: bool) -> None:
        try:
            self._file.write(b"".join(line + b"\n" for line in lines))
        except (OSError, ValueError):
            pass  # The disk is full, or we are at the end: what is shown is shown.

    def close(self) -> None:
        self._file.close()


class RankLines:
    """A rank's lines in the log of the allocation."""

    def __init__(self, log: LogFile, rank: int, on_lines: Callable[[Sequence[bytes]], None]) -> None:
        self._log = log
        self._rank = rank
        self._on_lines = on_lines

    def write(self, lines: Sequence[bytes], *, is_error: bool) -> None:
        self._log.write(lines, rank=self._rank, stdtype="stderr" if is_error else "stdout")
        self._on_lines(lines)

    def close(self) -> None:
        pass  # The log is everybody's.


@dataclasses.dataclass
class Stream:
    """One of a rank's two outputs."""

    file: IO[bytes]
    outlet: logs.Sink
    is_error: bool
    lines: logs.Lines = dataclasses.field(default_factory=logs.Lines)
    ended: bool = False


class Rank:
    """One process of the gang, with what it prints and how it ended."""

    def __init__(
        self, rank: int, process: Process, record: Record, outlets: Sequence[logs.Sink], prefix: bytes
    ) -> None:
        self.rank = rank
        self.pid = process.pid
        self.exit_code: int | None = None
        self.ended_at: float | None = None
        self.was_killed = False  # by us
        self.errors = logs.Tail()
        self.output = logs.Tail()
        self._process = process
        self._record = record
        self._prefix = prefix
        assert process.stdout is not None and process.stderr is not None
        self.streams = [
            Stream(process.stdout, outlets[0], is_error=False),
            Stream(process.stderr, outlets[1], is_error=True),
        ]
        for stream in self.streams:
            os.set_blocking(stream.file.fileno(), False)
        # Becomes readable when the process ends, where the system has such a thing.
        self.end = processes.open_end(self.pid)

    @property
    def is_alive(self) -> bool:
        return self.exit_code is None

    @property
    def has_failed(self) -> bool:
        return bool(self.exit_code) and not self.was_killed

    @property
    def raised_at(self) -> float | None:
        """When it began to print the exception that ended it, if it was one."""
        began = self.errors.traceback_at
        code = self.exit_code
        may_have_raised = self.was_killed or code is None or code > 0 or code in _AFTER_EXCEPTION
        if began is None or not may_have_raised:
            return None
        # Long before the end it was one that was only logged.
        return began if (self.ended_at or time.monotonic()) - began < _RECENT_SECONDS else None

    @property
    def sounds_like_a_consequence(self) -> bool:
        """Whether it says that it failed because of another rank."""
        return bool(_CONSEQUENCE.search(self.errors.text()))

    @property
    def sounds_out_of_memory(self) -> bool:
        return bool(_OUT_OF_MEMORY.search(self.errors.text()))

    def poll(self) -> None:
        if self.exit_code is None:
            self.exit_code = self._process.poll()
            if self.exit_code is not None:
                self.ended_at = time.monotonic()

    def kill(self) -> None:
        """End it with its process group. A rank that has ended by itself keeps its own end."""
        self.poll()
        self.was_killed = self.was_killed or self.is_alive
        processes.kill_group(self.pid)

    def read(self, stream: Stream) -> bool:
        """Pass on what there is; False if there was nothing."""
        try:
            data = os.read(stream.file.fileno(), 65536)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            stream.ended = True
            self._pass_on(stream, b"", stream.lines.finish())
            return False
        self._pass_on(stream, data, stream.lines.feed(data))
        return True

    def finish(self) -> None:
        """No more output is waited for."""
        for stream in self.streams:
            if not stream.ended:
                stream.ended = True
                self._pass_on(stream, b"", stream.lines.finish())
            stream.file.close()
        if self.end is not None:
            os.close(self.end)
            self.end = None
        self._record.close()

    @property
    def exit_status(self) -> int:
        """The exit code as a shell counts it: 128 + n for signal n."""
        if self.exit_code is None or self.was_killed or (self.exit_code in _AFTER_EXCEPTION and self.raised_at):
            return 1
        return self.exit_code if self.exit_code >= 0 else 128 - self.exit_code

    def how_it_ended(self) -> str:
        """In words: for messages."""
        if self.was_killed or self.exit_code is None or (self.exit_code in _AFTER_EXCEPTION and self.raised_at):
            return "failed"
        if self.exit_code < 0:
            try:
                name = signal.Signals(-self.exit_code).name
            except ValueError:
                name = f"signal {-self.exit_code}"
            return f"was killed by {name}"
        return f"failed with exit code {self.exit_code}"

    def _pass_on(self, stream: Stream, data: bytes, lines: list[bytes]) -> None:
        tail = self.errors if stream.is_error else self.output
        for line in lines:
            tail.add(line)
        marked = b"".join(self._prefix + line + b"\n" for line in lines)
        # A rank that is alone is passed on as it is: progress bars stay bars.
        stream.outlet.write(marked if self._prefix else data)
        self._record.write(lines, is_error=stream.is_error)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where this machine's ranks stand in the whole gang, and where all of them meet."""

    nodes: int
    node_rank: int
    slots: int
    master_addr: str
    master_port: int
    gang_id: str
    attempt: int
    max_restarts: int

    @property
    def ranks(self) -> range:
        return range(self.node_rank * self.slots, (self.node_rank + 1) * self.slots)

    def environment(self, rank: int) -> dict[str, str]:
        """What torchrun would tell this rank."""
        numbers = {
            "RANK": rank,
            "WORLD_SIZE": self.nodes * self.slots,
            "LOCAL_RANK": rank - self.ranks.start,
            "LOCAL_WORLD_SIZE": self.slots,
            "GROUP_RANK": self.node_rank,
            "GROUP_WORLD_SIZE": self.nodes,
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": self.nodes * self.slots,
            "MASTER_PORT": self.master_port,
            "TORCHELASTIC_RESTART_COUNT": self.attempt,
            "TORCHELASTIC_MAX_RESTARTS": self.max_restarts,
        }
        return {name: str(number) for name, number in numbers.items()} | {
            "MASTER_ADDR": self.master_addr,
            "DET_CHIEF_IP": self.master_addr,
            "ROLE_NAME": "default",
            "TORCHELASTIC_RUN_ID": self.gang_id,
            "USE_TORCH_DISTRIBUTED": "1",
        }


def start_cold(command: Sequence[str], environment: Mapping[str, str], folder: pathlib.Path) -> Process:
    """Start a rank as a program of its own. Raises OSError."""
    return subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=dict(environment),
        cwd=folder,
        # Its own session: a Ctrl-C in the terminal is ours to pass on, once.
        start_new_session=True,
        # This process has one thread, so running code between fork and exec is safe.
        preexec_fn=processes.dying_with_parent(),
    )


def start(
    command: Sequence[str],
    place: Place,
    environment: Mapping[str, str],
    *,
    folder: pathlib.Path,
    stacks: Mapping[int, pathlib.Path],
    outlets: Sequence[logs.Sink],
    record: Callable[[int], Record],
    start_rank: Start = start_cold,
) -> list[Rank]:
    """Start every rank of this machine. All of them or none."""
    ranks: list[Rank] = []
    try:
        for rank in place.ranks:
            own = {**environment, **place.environment(rank), "DET_STACKS": str(stacks[rank])}
            process = start_rank(command, own, folder)
            alone = place.nodes * place.slots == 1
            ranks.append(Rank(rank, process, record(rank), outlets, b"" if alone else logs.prefix_of(rank)))
    except OSError as error:
        for started in ranks:
            started.kill()
        raise errors.InternalException(f"cannot start {command[0]}: {error.strerror}; check the command") from error
    return ranks


def first_to_fail(ranks: Sequence[Rank]) -> Rank | None:
    """The rank whose failure brought the gang down, rather than one that fell over it."""

    # Failing to say goodbye takes time, so that a rank can be the first to fail and the last to end: what counts is
    # when it began to say why.
    def began(rank: Rank) -> tuple[bool, float]:
        return rank.sounds_like_a_consequence, rank.raised_at or rank.ended_at or math.inf

    candidates = [rank for rank in ranks if rank.has_failed]
    if candidates and all(rank.sounds_like_a_consequence for rank in candidates):
        # Perhaps one that was still busy ending.
        candidates += [rank for rank in ranks if rank.was_killed and rank.raised_at]
    return min(candidates, key=began, default=None)
