"""One trial of a search on this machine: its run folder, its attempts, and what they report."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from determined.search.method import Create
from determined.wire.allocation_folder import AllocationFolder
from determined.wire.node_spec import ContextSpec, MasterSpec, NodeSpec, TrialSpec
from determined.wire.outcome import Ending, Outcome

RUNNING, QUEUED, WAITING = "running", "queued", "waiting"


@dataclasses.dataclass(frozen=True)
class Ground:
    """What all trials of a search have in common."""

    search_id: str
    name: str
    folder: pathlib.Path
    runs_dir: pathlib.Path
    config: dict[str, Any]
    entrypoint: list[str]
    ranks: int | None
    slots: int
    context: ContextSpec | None
    code_folder: pathlib.Path
    storage: dict[str, Any]
    variables: dict[str, str]
    requirements: str | None
    grace_seconds: float
    unit: Any


@dataclasses.dataclass
class Saved:
    """A checkpoint of a trial."""

    uuid: str
    steps: int
    time: float


@dataclasses.dataclass
class LocalTrial:
    """A trial, as far as the search's journal knows it; and the process that trains it now, if any."""

    number: int
    hparams: dict[str, Any]
    seed: int
    target: float | None  # how far the search wants it to train
    copy_of: int | None
    copy_from: int = -1  # of which steps the checkpoint must be that a copy begins with, or of later ones
    state: str = QUEUED
    run_epoch: int = 0
    told: float | None = None  # the target of the present or last attempt
    restarts: int = 0
    is_stopped: bool = False  # the search has enough of it
    fed: int = -1  # steps of the last validation the search was told
    validations: dict[int, float] = dataclasses.field(default_factory=dict)  # the metric by steps
    counters: dict[str, float] = dataclasses.field(default_factory=dict)
    checkpoints: dict[str, Saved] = dataclasses.field(default_factory=dict)
    progress: float = 0.0
    steps: int = 0
    error: str = ""
    is_invalid: bool = False
    process: subprocess.Popen[bytes] | None = None
    slots: tuple[int, ...] = ()
    _read: int = 0  # bytes of the present attempt's spool

    @classmethod
    def of(cls, create: Create) -> LocalTrial:
        return cls(create.trial, dict(create.hparams), create.seed, create.target, create.copy_of)

    def run_folder(self, ground: Ground) -> pathlib.Path:
        return ground.runs_dir / f"{ground.name}-{ground.search_id}-{self.number}"

    def attempt(self, ground: Ground) -> AllocationFolder:
        """The folder of the present or last attempt."""
        return AllocationFolder(ground.folder / "attempts" / f"{self.number}.{self.run_epoch}")

    @property
    def latest(self) -> Saved | None:
        return max(self.checkpoints.values(), key=lambda saved: (saved.steps, saved.time), default=None)

    def best(self, smaller_is_better: bool) -> float | None:
        known = [value for value in self.validations.values() if value == value]
        return (min if smaller_is_better else max)(known, default=None)

    def has_reached_target(self, unit: str | None) -> bool:
        """Whether its last attempt went as far as it was told, rather than ended by itself before."""
        return self.told is not None and self.counters.get(unit or "batches", 0.0) >= self.told

    def rest(self) -> None:
        """It has reached its target; the search may have set it a further one meanwhile."""
        self.state = WAITING if self.target == self.told else QUEUED

    def start(self, ground: Ground, slots: tuple[int, ...], gpus: list[str], beginning: Saved | None) -> None:
        """Start the next attempt: from the latest checkpoint, else from ``beginning``, else from nothing."""
        self.run_epoch += 1
        self.told = self.target
        self._read, self.slots, self.state, self.error = 0, slots, RUNNING, ""
        own = self.latest
        attempt = self.attempt(ground)
        attempt.path.mkdir(mode=0o700, parents=True)
        environment = dict(ground.variables)
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[slot] for slot in slots)
        elif "OMP_NUM_THREADS" not in os.environ:
            environment.setdefault("OMP_NUM_THREADS", str(max(len(slots), 1) if ground.ranks != 1 else 1))
        task_id = f"{ground.search_id}-{self.number}"
        spec = NodeSpec(
            name=ground.name,
            run_id=task_id,
            run_folder=self.run_folder(ground),
            code_folder=attempt.code if ground.context is not None else ground.code_folder,
            entrypoint=ground.entrypoint,
            config=ground.config,
            trial=TrialSpec(
                trial_id=self.number,
                seed=self.seed,
                hparams=self.hparams,
                steps_completed=own.steps if own is not None else 0,
                target=self.target,
                target_unit=ground.unit if self.target is not None else None,
            ),
            latest_checkpoint=own.uuid if own is not None else beginning.uuid if beginning is not None else None,
            # No master has an address here: the node process tells nobody, and leaves all in its folder for us.
            master=MasterSpec(
                url="",
                session_token="",
                allocation_id=f"{task_id}.{self.run_epoch}",
                run_epoch=self.run_epoch,
                task_id=task_id,
                slot_ids=list(slots),
            ),
            context=ground.context,
            allocation_folder=attempt.path,
            checkpoint_storage=ground.storage,
            requirements=ground.requirements,
            log_file=ground.folder / "logs" / f"{self.number}.{self.run_epoch}.jsonl",
            slots=max(ground.slots, 1),
            ranks=ground.ranks,
            environment=environment,
            grace_seconds=ground.grace_seconds,
        )
        assert spec.log_file is not None
        spec.log_file.parent.mkdir(parents=True, exist_ok=True)
        spec.write(attempt.spec)
        from determined.worker import processes

        with open(attempt.output, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "determined.worker", str(attempt.spec)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A Ctrl-C in the terminal is ours to pass on, once.
                start_new_session=True,
                # Without us nobody would read what it reports, or stop it.
                preexec_fn=processes.dying_with_parent(),
            )

    def stop(self, ground: Ground, grace_seconds: float) -> None:
        """Ask it to save and leave."""
        if self.process is not None and self.process.poll() is None:
            self.attempt(ground).write_stop(grace_seconds)
            self.process.send_signal(signal.SIGTERM)

    def reports(self, ground: Ground) -> Iterator[Mapping[str, Any]]:
        """What its present attempt has reported since this was asked last."""
        try:
            with open(self.attempt(ground).chief_spool, "rb") as file:
                file.seek(self._read)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read += len(line)
                    yield json.loads(line)
        except FileNotFoundError:
            return

    def ending(self, ground: Ground) -> Ending:
        """How its last attempt ended."""
        attempt = self.attempt(ground)
        try:
            return Ending.read(attempt.outcome)
        except (OSError, ValueError):
            try:
                said = attempt.output.read_text(errors="replace")[-4000:]
            except OSError:
                said = ""
            return Ending(outcome=Outcome.LOST, exit_code=1, reason="its processes were killed", detail=said)
