"""LocalPool: gangs on this machine. Its node processes outlive the master, and are found again by their folders."""

from __future__ import annotations

import contextlib
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import pydantic

from determined.master.pools.base import EngineOutOfReach, Exited, Gang, Running, Sighting
from determined.master.pools.starter_client import Starters
from determined.master.scheduling import Node
from determined.wire.allocation_folder import AllocationFolder
from determined.wire.node_spec import NodeSpec
from determined.wire.outcome import Ending, Outcome
from determined.wire.reports import ReportBatch, Source

NODE = "local"
_BATCH_LINES = 1000
_LOG_BYTES = 4096
_LOOK_AGAIN_SECONDS = (0.1, 0.4, 1.5)
# A node process that does not obey for so long after the grace is over is ended from outside; its sweepers do the rest.
_OBEDIENCE_SECONDS = 10.0


class LocalPool:
    """Runs gangs as processes of this machine; slots are its GPUs, else shares of its CPU cores.

    ``folder`` is the master's state folder. ``environ`` is what tasks find around them, our own by default. With
    ``warm`` python entrypoints are forked from a process that has imported torch already, where that is possible.
    """

    queues_itself = False

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        name: str = "default",
        slots: int | None = None,
        python: str = sys.executable,
        environ: Mapping[str, str] | None = None,
        warm: bool = True,
    ) -> None:
        self.name = name
        self._folder = folder.absolute()
        self._allocations = self._folder / "allocations"
        self._python = python
        self._environ = dict(os.environ if environ is None else environ)
        self._gpus = _gpus(self._environ)
        self.device = "cuda" if self._gpus else "cpu"
        self._slots = slots if slots is not None else len(self._gpus) or _cores()
        self._starters = Starters(self._folder / "starter", self._environ) if warm else None
        self._watch: _Watch | None = None
        self._stops: dict[str, float] = {}  # when a node process that was asked to stop is ended from outside

    def prepare(self) -> None:
        """Get ready to fork from a process with torch in it, at once rather than when the first gang comes."""
        if self._starters is not None:
            self._starters.prepare(self._python)

    def capacity(self) -> Sequence[Node]:
        return [Node(NODE, tuple(range(self._slots)))]

    def start(self, gang: Gang) -> None:
        folder = self._at(gang.allocation_id)
        self._allocations.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.path.mkdir(mode=0o700, exist_ok=True)
        lock = folder.take_lock()
        if lock is None:
            return
        try:
            if folder.started.exists():
                return
            spec = self._complete(gang, folder)
            spec.write(folder.spec)
            folder.started.touch()
            try:
                pid = self._launch(spec, folder, lock)
            except OSError as error:
                folder.started.unlink()
                raise EngineOutOfReach(f"the node process cannot be started: {error}") from error
            if self._watch is not None:
                self._watch.add(gang.allocation_id, pid)
        finally:
            os.close(lock)

    def poll(self) -> Mapping[str, Sighting]:
        found: dict[str, Sighting] = {}
        try:
            names = os.listdir(self._allocations)
        except FileNotFoundError:
            return found
        for name in names:
            folder = self._at(name)
            if folder.started.exists():
                found[name] = self._look(name, folder)
        return found

    def stop(self, allocation_id: str, grace_seconds: float) -> None:
        folder = self._at(allocation_id)
        if not folder.started.exists() or not folder.is_locked():
            return
        folder.write_stop(grace_seconds)
        self._stops[allocation_id] = time.monotonic() + grace_seconds + _OBEDIENCE_SECONDS
        pid = folder.read_pid()
        if pid is not None:
            _signal(pid, signal.SIGTERM)
            # A stopped process takes no order.
            _signal(pid, signal.SIGCONT)

    def unshipped(self, allocation_id: str, acknowledged: Mapping[Source, int]) -> Sequence[ReportBatch]:
        folder = self._at(allocation_id)
        run_epoch = int(allocation_id.rpartition(".")[2])
        spools = {Source.CHIEF: folder.chief_spool, Source.NODE: folder.node_spool}
        return [
            batch
            for source, path in spools.items()
            for batch in _batches(path, source, run_epoch, acknowledged.get(source, 0))
        ]

    def engine_log(self, allocation_id: str) -> str:
        return _tail(self._at(allocation_id).output)

    def forget(self, allocation_id: str) -> None:
        folder = self._at(allocation_id)
        self._stops.pop(allocation_id, None)
        if folder.is_locked():
            if not folder.outcome.exists():
                return  # It runs: only what has ended is forgotten.
            pid = folder.read_pid()
            if pid is not None:
                _signal(pid, signal.SIGKILL)  # It has nothing to do any more but to look for us.
        shutil.rmtree(folder.path, ignore_errors=True)

    def watch(self, callback: Callable[[], None]) -> None:
        """From now on call this, from a thread of the pool's, whenever a gang may have ended."""
        if self._watch is None:
            self._watch = _Watch(callback)
            if self._starters is not None:
                self._starters.prepare()
            for name, sighting in self.poll().items():
                pid = self._at(name).read_pid()
                if isinstance(sighting, Running) and pid is not None:
                    self._watch.add(name, pid)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._starters is not None:
            self._starters.close()

    def _at(self, allocation_id: str) -> AllocationFolder:
        if allocation_id.startswith(".") or "/" in allocation_id or "\0" in allocation_id:
            raise ValueError(f"{allocation_id!r} is not the id of an allocation")
        return AllocationFolder(self._allocations / allocation_id)

    def _complete(self, gang: Gang, folder: AllocationFolder) -> NodeSpec:
        """The spec with what only this machine knows."""
        (spec,) = gang.specs
        task_id = spec.master.task_id if spec.master is not None else gang.allocation_id.rpartition(".")[0]
        slots = gang.placement.get(NODE, ())
        environment = dict(spec.environment)
        if self._gpus:
            environment.setdefault("CUDA_VISIBLE_DEVICES", ",".join(self._gpus[slot] for slot in slots))
        elif "OMP_NUM_THREADS" not in self._environ and (spec.ranks is None or spec.slots <= 1):
            # Each rank gets its share: with more threads than cores all would wait for each other.
            environment.setdefault("OMP_NUM_THREADS", str(max(_cores() // max(self._slots, 1), 1)))
        log_file = self._folder / "logs" / task_id / f"{gang.allocation_id}.jsonl"
        return spec.model_copy(
            update={
                "allocation_folder": folder.path,
                "code_folder": folder.code if spec.context is not None else spec.code_folder,
                "log_file": spec.log_file or log_file,
                "environments_folder": spec.environments_folder or self._folder / "environments",
                "environment": environment,
            }
        )

    def _launch(self, spec: NodeSpec, folder: AllocationFolder, lock: int) -> int:
        python = spec.python or self._python
        if self._starters is not None:
            warm = spec.requirements is None
            pid = self._starters.start(python if warm else None, folder.spec, folder.output, lock)
            if pid is not None:
                return pid
        with open(os.open(folder.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
            process = subprocess.Popen(
                [self._python, "-m", "determined.worker", str(folder.spec), "--lock", str(lock)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environ,
                cwd=folder.path,
                start_new_session=True,
                pass_fds=[lock],
            )
        _Child(process).start()
        return process.pid

    def _look(self, allocation_id: str, folder: AllocationFolder) -> Sighting:
        ending = _read_ending(folder)
        if ending is None and folder.is_locked():
            self._insist(allocation_id, folder)
            return Running(has_begun=folder.pid.exists())
        # It may have written its note between the two looks.
        ending = ending or _read_ending(folder)
        if ending is None:
            ending = Ending(
                outcome=Outcome.LOST,
                exit_code=1,
                reason="its node process was killed, or the machine went down",
                detail=_tail(folder.output),
            )
        self._stops.pop(allocation_id, None)
        return Exited(ending)

    def _insist(self, allocation_id: str, folder: AllocationFolder) -> None:
        deadline = self._stops.get(allocation_id)
        if deadline is None and folder.stop.exists():  # asked by the master before this one
            deadline = self._stops[allocation_id] = time.monotonic() + (folder.read_stop() or 0.0) + _OBEDIENCE_SECONDS
        pid = folder.read_pid()
        if deadline is None or pid is None:
            return
        if time.monotonic() >= deadline:
            _signal(pid, signal.SIGKILL)


class _Child(threading.Thread):
    """Waits for a node process that is our own child, so that it does not stay a zombie."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(name="node-process", daemon=True)
        self._process = process

    def run(self) -> None:
        self._process.wait()


class _Watch:
    """A thread that waits for the end of processes."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._new: list[int] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="local-pool", daemon=True)
        self._thread.start()

    def add(self, allocation_id: str, pid: int) -> None:
        """Wait for this one too."""
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            self._callback()  # It has ended already.
            return
        with self._lock:
            self._new.append(descriptor)
        with contextlib.suppress(OSError):
            os.write(self._waker, b".")

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            os.write(self._waker, b".")
        self._thread.join()

    def _run(self) -> None:
        due: list[float] = []
        while not self._closed:
            ended = False
            now = time.monotonic()
            for key, _ in self._selector.select(max(due[0] - now, 0.0) if due else None):
                if key.fd == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                    continue
                ended = True
                self._selector.unregister(key.fd)
                os.close(key.fd)
            with self._lock:
                new, self._new = self._new, []
            for descriptor in new:
                self._selector.register(descriptor, selectors.EVENT_READ)
            now = time.monotonic()
            if ended:
                # Of one that was killed the sweepers may still be busy: it is over a little later.
                due = [now, *(now + after for after in _LOOK_AGAIN_SECONDS)]
            if due and due[0] <= now and not self._closed:
                due = [each for each in due if each > now]
                self._callback()
        for descriptor in [*(key.fd for key in self._selector.get_map().values()), self._waker]:
            os.close(descriptor)
        self._selector.close()


def _batches(path: pathlib.Path, source: Source, run_epoch: int, first: int) -> list[ReportBatch]:
    """The whole lines of a spool from ``first`` on; up to one that cannot be read."""
    found: list[ReportBatch] = []
    try:
        with open(path, "rb") as file:
            lines = [line for number, line in enumerate(file) if number >= first and line.endswith(b"\n")]
    except FileNotFoundError:
        return found
    for start in range(0, len(lines), _BATCH_LINES):
        part = lines[start : start + _BATCH_LINES]
        head = f'{{"run_epoch":{run_epoch},"source":"{source.value}","first":{first + start},"reports":['
        try:
            found.append(ReportBatch.model_validate_json(head.encode() + b",".join(part) + b"]}"))
        except pydantic.ValidationError:
            break
    return found


def _read_ending(folder: AllocationFolder) -> Ending | None:
    try:
        return Ending.read(folder.outcome)
    except (OSError, ValueError):
        return None


def _tail(path: pathlib.Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _LOG_BYTES, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus(environ: Mapping[str, str]) -> list[str]:
    """The NVIDIA GPUs that tasks may use, by the names CUDA gives them, found without torch."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [device.strip() for device in visible.split(",") if device.strip() not in ("", "-1", "NoDevFiles")]
    try:
        return [str(number) for number in range(len(os.listdir("/proc/driver/nvidia/gpus")))]
    except OSError:
        return []
