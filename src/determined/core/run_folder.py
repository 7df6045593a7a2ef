"""The folder of a run: everything one trial leaves behind, whoever started it.

<name>-<id>/  run.json  config.json  hparams.json  environment.json  target.json  metrics.jsonl  checkpoints.jsonl
              checkpoints/  code/  logs/  tensorboard/
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import re
import shutil
import time
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from determined import errors

TARGET = "target.json"  # the metric by which its checkpoints are rated
_LABEL = "run.json"
_METRICS = "metrics.jsonl"
_STEPS_AT = len('{"steps_completed":')


class RunLabel(NamedTuple):
    """What ``run.json`` says: which run this is, and how often it has been started."""

    id: str
    name: str
    run_epoch: int = 0
    storage: str | None = None
    state: str = "new"
    started: float = 0.0


class RunFolder:
    """One run's folder. Every rank may look; the chief alone ``open``s it and writes."""

    def __init__(self, path: pathlib.Path, label: RunLabel) -> None:
        self.path = path
        self.label = label
        self._lock: _Lock | None = None

    @classmethod
    def create(cls, runs_dir: pathlib.Path, name: str) -> RunFolder:
        """Make a new folder with a fresh id; raises DeterminedError when that cannot be done."""
        name = safe_name(name)
        while True:
            run_id = os.urandom(3).hex()
            try:
                (runs_dir / f"{name}-{run_id}").mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise errors.DeterminedError(
                    f"the folder of this run cannot be made in {runs_dir}: {error.strerror}; "
                    "name another place with DET_RUNS_DIR"
                ) from error
            return cls(runs_dir / f"{name}-{run_id}", RunLabel(run_id, name))

    @classmethod
    def at(cls, path: pathlib.Path) -> RunFolder | None:
        """The run in a folder, or None when the folder is not a run's."""
        try:
            content = json.loads((path / _LABEL).read_bytes())
            known = {field: content[field] for field in RunLabel._fields if field in content}
            return cls(path, RunLabel(**known))
        except (OSError, ValueError, TypeError):
            return None

    @property
    def id(self) -> str:
        return self.label.id

    @property
    def name(self) -> str:
        return self.label.name

    @property
    def run_epoch(self) -> int:
        """Which start of the run this is, from 1; every row carries it."""
        return self.label.run_epoch

    @property
    def checkpoints(self) -> pathlib.Path:
        """The root of the run's checkpoint storage, unless that is elsewhere by request."""
        return pathlib.Path(self.label.storage) if self.label.storage else self.path / "checkpoints"

    @property
    def metrics(self) -> pathlib.Path:
        return self.path / _METRICS

    @property
    def journal(self) -> pathlib.Path:
        return self.path / "checkpoints.jsonl"

    @property
    def logs(self) -> pathlib.Path:
        return self.path / "logs"

    @property
    def code(self) -> pathlib.Path:
        return self.path / "code"

    @property
    def tensorboard(self) -> pathlib.Path:
        return self.path / "tensorboard"

    def open(self, storage: str | None = None) -> None:
        """Become the one process that writes here, under the next run epoch.

        Raises DeterminedError when another process does so already.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _Lock(self.path / ".lock", f"run {self.name} ({self.path})")
            latest = RunFolder.at(self.path)
            epoch = latest.label.run_epoch if latest else 0
            self.label = self.label._replace(
                run_epoch=epoch + 1, storage=storage or self.label.storage, state="running", started=time.time()
            )
            self._write_label()
        except OSError as error:
            raise errors.DeterminedError(
                f"the run cannot write into {self.path}: {error.strerror}; make room or name another place with "
                "DET_RUNS_DIR"
            ) from error

    def is_being_written(self) -> bool:
        """Whether a process that is alive has it open."""
        try:
            descriptor = os.open(self.path / ".lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass  # a file system without locks: it cannot be known
        finally:
            os.close(descriptor)
        return False

    def finish(self, state: str) -> None:
        """Say how it ended and let go of the folder."""
        if self._lock is None:
            return
        self.label = self.label._replace(state=state)
        try:
            self._write_label()
        except OSError:
            pass  # A full disk has been complained about already, and the state is for display alone.
        self._lock.release()
        self._lock = None

    def become(self, other: RunFolder) -> None:
        """Continue in another run's folder, leaving no trace of this one: for a run that has not begun."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        if self.label.run_epoch <= 1 and not self.metrics.exists():
            if self.logs.is_dir():
                # The node process that started us is writing there: it is no run any more, but its logs are.
                for name in (_LABEL, "config.json", ".lock"):
                    (self.path / name).unlink(missing_ok=True)
            else:
                shutil.rmtree(self.path, ignore_errors=True)
        self.path, self.label = other.path, other.label

    def write(self, name: str, content: Any) -> None:
        """Write a small JSON document into the folder, whole or not at all."""
        replace_file(self.path / name, json.dumps(content, indent=2, default=str).encode() + b"\n")

    def read(self, name: str) -> Any:
        """A JSON document of the folder; None when there is none."""
        try:
            return json.loads((self.path / name).read_bytes())
        except (OSError, ValueError):
            return None

    def rewind(self, steps_completed: int) -> int:
        """Drop the metric rows past a cut, all at once, and return how many those were. The chief calls this."""
        if not self.metrics.exists():
            return 0
        temporary = self.path / f".{_METRICS}.rewound"
        dropped = 0
        with open(self.metrics, "rb") as rows, open(temporary, "wb") as kept:
            for row in rows:
                if row.endswith(b"\n") and _steps_of(row) <= steps_completed:
                    kept.write(row)
                else:  # past the cut, or torn by a crash
                    dropped += 1
            kept.flush()
            os.fsync(kept.fileno())
        if dropped:
            os.replace(temporary, self.metrics)
            sync_folder(self.path)
        else:
            temporary.unlink()
        return dropped

    def rows(self, group: str | None = None) -> Iterator[dict[str, Any]]:
        """The metric rows in the order they were reported, of one group or of all."""
        wanted = None if group is None else f'"group":{json.dumps(group)}'.encode()
        try:
            with open(self.metrics, "rb") as rows:
                for row in rows:
                    if row.endswith(b"\n") and (wanted is None or wanted in row[:400]):
                        content = json.loads(row)
                        if group is None or content["group"] == group:
                            yield content
        except FileNotFoundError:
            return

    def _write_label(self) -> None:
        self.write(_LABEL, self.label._asdict())


def runs_in(runs_dir: pathlib.Path, name: str | None = None) -> Iterator[RunFolder]:
    """Every run below a folder, or those of one name."""
    prefix = "" if name is None else f"{safe_name(name)}-"
    try:
        entries = list(os.scandir(runs_dir))
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(prefix):
            run = RunFolder.at(pathlib.Path(entry.path))
            if run is not None and (name is None or run.name == safe_name(name)):
                yield run


def safe_name(name: str) -> str:
    """A name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "run"


def replace_file(path: pathlib.Path, content: bytes) -> None:
    """Put a file in the place of another at once."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(path: pathlib.Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _steps_of(row: bytes) -> int:
    # The number stands first in every row: a million rows are cut in a second, not parsed in ten.
    return int(row[_STEPS_AT : row.index(b",", _STEPS_AT)])


class _Lock:
    """A lock on a file that ends with this process, whatever its children do."""

    def __init__(self, path: pathlib.Path, what: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 40).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise errors.DeterminedError(
                f"{what} is being written by process {holder or 'unknown'}; wait for it or stop it, "
                "or start a new run (without a checkpoint to resume)"
            ) from None
        except OSError:
            pass  # A file system without locks: nothing to hold, as before there were any.
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, str(os.getpid()).encode())
        _held.add(self)

    def release(self) -> None:
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """Close the descriptor without unlocking: what a forked child does with its copy."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_held: weakref.WeakSet[_Lock] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A data loader's worker that outlives a killed trainer must not keep the run locked.
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_forget_in_child)
