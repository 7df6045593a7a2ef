"""`det experiment create --local`: a whole search on this machine, without a master.

The same search methods and the same node processes as on a master. What the search was told is in a journal: told
again, it decides again what it had decided, and so an interrupted search goes on as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from determined import errors
from determined.cli import choose, render, session
from determined.cli.live import Board, Entry
from determined.cli.local_trial import QUEUED, RUNNING, WAITING, Ground, LocalTrial, Saved
from determined.search.method import Create, Exit, Extend, Finish, Stop
from determined.wire.outcome import Ending, Outcome

if TYPE_CHECKING:
    from determined.cli.submit import Submission
    from determined.config import ExperimentConfig
    from determined.search.method import Action

INTERRUPTED = 3
_LOOK_SECONDS = 0.05
_ENDED = ("completed", "error", "canceled", "invalid")
_CLASS_TEST = "--test"


def create(wanted: Submission, config: ExperimentConfig, environ: Mapping[str, str], slots: int | None) -> int:
    """Run a new search to its end; the exit code says whether any trial completed."""
    for notice in config.notices:
        session.tell(f"note: {notice}")
    return _Search(_Folder.make(wanted, config, environ), slots).run()


def resume(name: str, environ: Mapping[str, str], slots: int | None) -> int:
    """Go on with a search that was interrupted."""
    return _Search(_Folder.find(name, environ), slots).run()


def test(wanted: Submission, config: ExperimentConfig) -> int:
    """Try one batch of one trial, here and now; the exit code says whether it went well."""
    from determined.config import hparams
    from determined.worker import node

    folder = wanted.folder or pathlib.Path.cwd()
    if not folder.is_dir():
        raise errors.BadRequest(f"the code folder {folder} does not exist")
    values, notices = hparams.first_values(config.as_dict()["hyperparameters"])
    for notice in (*config.notices, *notices):
        session.tell(f"note: {notice}")
    from determined.wire.node_spec import NodeSpec, TrialSpec
    from determined.worker import entrypoint

    words = _words(config)
    is_class = len(words) == 1
    with tempfile.TemporaryDirectory(prefix="resolute-test-") as scratch:
        spec = NodeSpec(
            name="test",
            run_id="test",
            run_folder=pathlib.Path(scratch) / "run",
            code_folder=folder.absolute(),
            config=config.as_dict(),
            trial=TrialSpec(
                seed=0, hparams=values, target=None if is_class else 1, target_unit=None if is_class else "batches"
            ),
            ranks=1,
            environment=config.environment.environment_variables.of(_device()),
        )
        command = entrypoint.understand(words, sys.executable).words
        code = node.run(spec, [*command, _CLASS_TEST] if is_class else command)
    session.tell("the test went well" if code == 0 else "the test failed; what the code said is above")
    return 0 if code == 0 else 1


@dataclasses.dataclass(frozen=True)
class _Folder:
    """The folder of a search: what it is of, what it was told, its attempts, logs and checkpoints.

    It stands among the run folders of its trials, and is named like them.
    """

    path: pathlib.Path

    @classmethod
    def make(cls, wanted: Submission, config: ExperimentConfig, environ: Mapping[str, str]) -> _Folder:
        from determined.core.connect import default_runs_dir
        from determined.core.run_folder import safe_name
        from determined.search.build import default_seed

        seed = config.reproducibility.experiment_seed
        search_id = secrets.token_hex(3)
        folder = cls(default_runs_dir(environ) / f"{safe_name(config.name)}-{search_id}")
        try:
            folder.path.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise errors.DeterminedError(
                f"the folder of the search cannot be made in {folder.path.parent}: {error.strerror}; name another "
                "place with DET_RUNS_DIR"
            ) from None
        content: dict[str, Any] = {
            "id": search_id,
            "name": safe_name(config.name),
            "config": config.as_dict(),
            "seed": default_seed(config) if seed is None else seed,
            "code_folder": str((wanted.folder or pathlib.Path.cwd()).absolute()),
            "sha256": None,
        }
        if wanted.folder is not None or wanted.includes:
            from determined.client import context

            packed = context.pack(wanted.folder, wanted.includes)
            (folder.path / "code.tar.gz").write_bytes(packed.content)
            content["sha256"] = packed.sha256
            session.tell(f"{len(packed.files)} files of code ({render.size(packed.size)}) are kept with the search")
        requirements = config.environment.requirements
        if requirements is not None:
            place = (wanted.folder or pathlib.Path.cwd()) / requirements
            try:
                content["requirements"] = place.read_text()
            except OSError as error:
                raise errors.InvalidConfigurationException(
                    f"environment.requirements: {place} cannot be read: {error.strerror}"
                ) from None
        (folder.path / "search.json").write_text(json.dumps(content))
        return folder

    @classmethod
    def find(cls, name: str, environ: Mapping[str, str]) -> _Folder:
        from determined.core.connect import default_runs_dir

        runs_dir = default_runs_dir(environ)
        there = sorted(runs_dir.glob("*/search.json"), key=lambda path: path.stat().st_mtime)
        if name == choose.LATEST and there:
            return cls(there[-1].parent)
        found = choose.one(
            "search", name, [path.parent for path in there], lambda path: (path.name.rpartition("-")[2], path.name)
        )
        return cls(found)

    def read(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.path / "search.json").read_text())
        return content

    @property
    def journal(self) -> pathlib.Path:
        return self.path / "journal.jsonl"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else runs this search meanwhile."""
        with open(self.path / "lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise errors.Refused(f"the search {self.path.name} is running already, in another terminal") from None
            yield


class _Search:
    """A search, from where its journal ends to its end."""

    def __init__(self, folder: _Folder, slots: int | None) -> None:
        from determined import config as configs
        from determined.search import build

        self._folder = folder
        content = folder.read()
        self._config = configs.load(content["config"])
        self._method = build.build_method(self._config, content["seed"])
        self._metric = build.metric_of(self._config)
        self._smaller = build.is_smaller_better(self._config)
        self._gpus = _gpus()
        self._free = list(range(slots or len(self._gpus) or _cores()))
        self._slots = len(self._free)
        self._ground = self._prepare(content)
        self._trials: dict[int, LocalTrial] = {}
        self._failure: str | None = None
        self._has_started = False
        self._journal: Any = None
        self._asked = 0  # how often we were asked to stop
        self._explained: set[str] = set()
        self._board: Board | None = None

    def run(self) -> int:
        """Run it; returns the exit code."""
        with self._folder.held(), open(self._folder.journal, "ab") as self._journal:
            self._replay()
            self._board = Board(["trial", "state", "progress", "steps", "metric", "hyperparameters"])
            self._board.say(
                f"search {self._folder.path.name}: {self._slots} slot{'s' if self._slots > 1 else ''} of this machine"
            )
            try:
                with self._taking_signals():
                    if not self._has_started:
                        self._tell({"event": "start"})
                    self._loop()
            finally:
                self._board.close()
            if self._asked:
                return self._interrupted()
            return self._conclude()

    # What happens.

    def _loop(self) -> None:
        pause = threading.Event()
        told_to_stop = 0
        while True:
            if self._asked > told_to_stop:
                told_to_stop = self._asked
                self._ask_all_to_stop(at_once=self._asked > 1)
            if not self._asked:
                self._start_what_fits()
            for trial in [each for each in self._trials.values() if each.process is not None]:
                self._attend(trial)
            self._show()
            running = any(trial.process is not None for trial in self._trials.values())
            if not running and (self._asked or not self._next()):
                return
            pause.wait(_LOOK_SECONDS)

    def _next(self) -> list[LocalTrial]:
        """The trials to be started, those that go on before those that begin."""
        queued = [trial for trial in self._trials.values() if trial.state == QUEUED and self._can_begin(trial)]
        return sorted(queued, key=lambda trial: (not trial.checkpoints, trial.number))

    def _can_begin(self, trial: LocalTrial) -> bool:
        """A copy begins when the checkpoint of what the search judged is there: it is reported after its metrics."""
        if trial.copy_of is None or trial.checkpoints:
            return True
        source = self._trials[trial.copy_of]
        return source.process is None or (source.latest is not None and source.latest.steps >= trial.copy_from)

    def _start_what_fits(self) -> None:
        for trial in self._next():
            needed = self._ground.slots
            if needed > len(self._free):
                return
            running = sum(each.process is not None for each in self._trials.values())
            if needed == 0 and running >= max(self._slots, 1):
                return
            slots = tuple(self._free[:needed])
            del self._free[:needed]
            self._write({"event": "started", "trial": trial.number})
            trial.start(self._ground, slots, self._gpus, self._beginning(trial))

    def _beginning(self, trial: LocalTrial) -> Saved | None:
        """Whose weights a trial begins with, when it has none of its own."""
        if trial.copy_of is not None:
            return self._trials[trial.copy_of].latest
        uuid = self._config.searcher.source_checkpoint_uuid
        return Saved(uuid, 0, 0.0) if uuid is not None else None

    def _attend(self, trial: LocalTrial) -> None:
        """Hear what a trial reports, and see whether it has ended."""
        assert trial.process is not None
        has_ended = trial.process.poll() is not None
        self._hear(trial)
        if not has_ended:
            return
        trial.process = None
        self._free = sorted([*self._free, *trial.slots])
        self._settle(trial, trial.ending(self._ground))

    def _hear(self, trial: LocalTrial) -> None:
        for report in trial.reports(self._ground):
            kind = report.get("kind")
            if kind == "metrics":
                trial.steps = max(trial.steps, int(report["steps_completed"]))
                if report["group"] == "validation" and int(report["steps_completed"]) > trial.fed:
                    metrics = {"batches": report["steps_completed"], **report["metrics"]}
                    steps = int(report["steps_completed"])
                    self._tell({"event": "validation", "trial": trial.number, "steps": steps, "metrics": metrics})
            elif kind == "checkpoint" and report["uuid"] not in trial.checkpoints:
                self._tell(
                    {
                        "event": "checkpoint",
                        "trial": trial.number,
                        "uuid": report["uuid"],
                        "steps": report["steps_completed"],
                        "time": report["time"],
                    }
                )
                self._tidy()
            elif kind == "checkpoint_gone":
                trial.checkpoints.pop(report["uuid"], None)
            elif kind == "progress":
                trial.progress = float(report["progress"])
            elif kind == "early_exit":
                trial.is_invalid = report["reason"] == "invalid_hp"

    def _settle(self, trial: LocalTrial, ending: Ending) -> None:
        """What the end of an attempt means for its trial."""
        outcome = ending.outcome
        if trial.is_invalid and outcome not in (Outcome.LOST, Outcome.STOPPED):
            outcome = Outcome.INVALID_HP
        trial.error = (ending.detail or ending.reason).strip() if outcome is not Outcome.COMPLETED else ""
        if trial.is_stopped and outcome in (Outcome.COMPLETED, Outcome.STOPPED, Outcome.LOST):
            self._end(trial, Exit.COMPLETED)
        elif outcome is Outcome.COMPLETED and trial.has_reached_target(self._method.unit):
            trial.rest()
        elif outcome is Outcome.COMPLETED:
            self._end(trial, Exit.COMPLETED)
        elif outcome is Outcome.INVALID_HP:
            self._end(trial, Exit.INVALID_HP)
        elif self._asked or outcome is Outcome.STOPPED:
            trial.state = QUEUED
            if not self._asked:
                # Somebody stopped its processes from outside, and with them wanted it to end.
                self._end(trial, Exit.CANCELED)
        else:
            self._failed(trial)

    def _failed(self, trial: LocalTrial) -> None:
        assert self._board is not None
        left = self._config.max_restarts - trial.restarts
        last_line = trial.error.splitlines()[-1] if trial.error else "it said nothing about it"
        if trial.error not in self._explained:
            self._explained.add(trial.error)
            self._board.say(f"trial {trial.number} failed:\n{render.lines(trial.error)}")
        else:
            self._board.say(f"trial {trial.number} failed in the same way: {last_line}")
        if left > 0:
            self._tell({"event": "restart", "trial": trial.number})
            trial.state = QUEUED
        else:
            self._end(trial, Exit.ERROR)

    def _end(self, trial: LocalTrial, exit: Exit) -> None:
        self._tell({"event": "exit", "trial": trial.number, "exit": exit.value, "error": trial.error[-4000:]})
        self._tidy()

    # What the search is told, and what it answers.

    def _tell(self, event: Mapping[str, Any]) -> None:
        """Write an event down, then act on it."""
        self._write(event)
        self._apply(event)

    def _write(self, event: Mapping[str, Any]) -> None:
        self._journal.write(json.dumps(event).encode() + b"\n")
        self._journal.flush()

    def _apply(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "start":
            self._has_started = True
            self._act(self._method.start())
            return
        trial = self._trials[event["trial"]]
        if kind == "validation":
            trial.fed = trial.steps = event["steps"]
            self._remember(trial, event["steps"], event["metrics"])
            self._act(self._method.on_validation(trial.number, event["metrics"]))
        elif kind == "checkpoint":
            trial.checkpoints[event["uuid"]] = Saved(event["uuid"], event["steps"], event["time"])
        elif kind == "removed":
            trial.checkpoints.pop(event["uuid"], None)
        elif kind == "restart":
            trial.restarts += 1
        elif kind == "exit":
            exit = Exit(event["exit"])
            trial.state = "invalid" if exit is Exit.INVALID_HP else exit.value
            trial.progress = 1.0 if exit is Exit.COMPLETED else trial.progress
            trial.error = event["error"]
            self._act(self._method.on_exit(trial.number, exit))

    def _remember(self, trial: LocalTrial, steps: int, metrics: Mapping[str, Any]) -> None:
        from determined.search.method import pick_metric

        self._metric = self._metric or pick_metric(metrics)
        value = metrics.get(self._metric) if self._metric else None
        if isinstance(value, (int, float)):
            trial.validations[steps] = float(value)
        for name in ("batches", "epochs", "records"):
            if isinstance(metrics.get(name), (int, float)):
                trial.counters[name] = float(metrics[name])

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Create):
                made = self._trials[action.trial] = LocalTrial.of(action)
                if action.copy_of is not None:
                    made.copy_from = self._trials[action.copy_of].fed
            elif isinstance(action, Extend):
                trial = self._trials[action.trial]
                trial.target = action.target
                if trial.state == WAITING:
                    trial.state = QUEUED
            elif isinstance(action, Stop):
                self._stop(self._trials[action.trial])
            elif isinstance(action, Finish):
                self._failure = action.failure

    def _stop(self, trial: LocalTrial) -> None:
        """The search has enough of a trial."""
        trial.is_stopped = True
        if trial.process is not None:
            trial.stop(self._ground, self._ground.grace_seconds)

    def _replay(self) -> None:
        """Tell the search again what it was told, and hear what was reported and not told any more."""
        for line in self._folder.journal.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                # Torn by a crash: it was not acted on.
                with open(self._folder.journal, "rb+") as file:
                    file.truncate(file.seek(0, os.SEEK_END) - len(line))
                break
            event = json.loads(line)
            if event["event"] == "started":
                trial = self._trials[event["trial"]]
                trial.run_epoch += 1
                trial.told = trial.target
                trial.state = RUNNING
            else:
                self._apply(event)
                if event["event"] == "restart":
                    self._trials[event["trial"]].state = QUEUED
        for trial in list(self._trials.values()):
            if trial.state == RUNNING:
                self._hear(trial)
                ending = trial.ending(self._ground)
                if ending.outcome is Outcome.COMPLETED and trial.has_reached_target(self._method.unit):
                    trial.rest()
                elif ending.outcome is Outcome.COMPLETED:
                    self._end(trial, Exit.COMPLETED)
                else:
                    trial.state = QUEUED
        self._end_stopped()

    def _end_stopped(self) -> None:
        """Trials that need no more training to be done."""
        for trial in list(self._trials.values()):
            if trial.is_stopped and trial.state in (WAITING, QUEUED) and trial.process is None:
                self._end(trial, Exit.COMPLETED)

    # What is kept.

    def _tidy(self) -> None:
        """Keep of the checkpoints what the configuration says, and whatever a trial goes on from or may begin with."""
        from determined.storage.build import build_storage
        from determined.storage.retention import Kept, Policy, keep

        section = self._config.checkpoint_storage
        trials = self._trials.values()
        sources = {each.copy_of for each in trials if each.state not in _ENDED}
        # Some searches begin trials with the weights of others, even of those that have ended.
        may_copy = self._config.searcher.name == "pbt" or ":" in self._config.searcher.name
        needed = {
            each.latest.uuid
            for each in trials
            if each.latest is not None and (may_copy or each.state not in _ENDED or each.number in sources)
        }
        found = [
            Kept(saved.uuid, each.number, saved.steps, each.validations.get(saved.steps), saved.time)
            for each in trials
            for saved in each.checkpoints.values()
        ]
        policy = Policy(section.save_experiment_best, section.save_trial_best, section.save_trial_latest)
        kept = keep(found, policy, self._smaller, needed)
        storage = build_storage(self._ground.storage)
        for checkpoint in found:
            if checkpoint.uuid not in kept:
                try:
                    storage.delete(checkpoint.uuid)
                except errors.CheckpointNotFound:
                    pass
                except (errors.DeterminedError, OSError):
                    continue  # somebody reads it; there will be another time
                self._tell({"event": "removed", "trial": checkpoint.trial_id, "uuid": checkpoint.uuid})

    # What people see.

    def _show(self) -> None:
        assert self._board is not None
        self._end_stopped()
        trials = list(self._trials.values())
        done = self._method.progress({trial.number: trial.progress for trial in trials})
        counts = {state: sum(trial.state == state for trial in trials) for state in (RUNNING, "completed", "error")}
        words = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        best = self._best()
        title = f"search {self._folder.path.name}: {100 * done:.0f}%, {len(trials)} trials ({words})"
        if best is not None:
            title += f", best {self._metric} {render.number(best.best(self._smaller))} (trial {best.number})"
        self._board.show(title, self._entries(), news="")

    def _entries(self) -> list[Entry]:
        best = self._best()
        sign = 1.0 if self._smaller else -1.0

        def rank(trial: LocalTrial) -> tuple[bool, float, int]:
            value = trial.best(self._smaller)
            return trial.process is None, float("inf") if value is None else sign * value, trial.number

        entries = []
        apart = dict(zip(self._trials, render.differing([trial.hparams for trial in self._trials.values()])))
        for trial in sorted(self._trials.values(), key=rank):
            value = trial.best(self._smaller)
            metric = "" if value is None else render.number(value)
            mark = " ●" if best is trial else ""
            cells = {
                "trial": trial.number,
                "state": trial.state,
                "progress": f"{100 * trial.progress:.0f}%",
                "steps": trial.steps,
                "metric": f"{metric}{mark}",
                "hyperparameters": apart[trial.number],
            }
            news = f"trial {trial.number}: {trial.state}"
            if trial.state in _ENDED and metric:
                news += f", {self._metric} {metric} after {trial.steps} batches"
            entries.append(Entry(str(trial.number), cells, "" if trial.state == QUEUED else news))
        return entries

    def _best(self) -> LocalTrial | None:
        known = [trial for trial in self._trials.values() if trial.best(self._smaller) is not None]
        sign = 1.0 if self._smaller else -1.0
        return min(known, key=lambda trial: sign * (trial.best(self._smaller) or 0.0), default=None)

    def _conclude(self) -> int:
        trials = list(self._trials.values())
        rows = [entry.cells for entry in self._entries()]
        render.listing(rows, ["trial", "state", "steps", "metric", "hyperparameters"], render.Format.TABLE)
        completed = sum(trial.state == "completed" for trial in trials)
        best = self._best()
        if best is not None:
            print(
                f"\nbest: trial {best.number}, {render.plain(self._metric)} {render.number(best.best(self._smaller))}"
            )
            saved = self._best_checkpoint(best)
            if saved is not None:
                print(f"its checkpoint: {self._place(saved)}")
            print(f"its run: {best.run_folder(self._ground)}")
        if self._failure is not None:
            session.tell(f"det: the search failed: {self._failure}")
            return 1
        if not completed:
            session.tell(f"det: none of the {len(trials)} trials completed")
            return 1
        return 0

    def _best_checkpoint(self, trial: LocalTrial) -> Saved | None:
        sign = 1.0 if self._smaller else -1.0
        judged = [each for each in trial.checkpoints.values() if each.steps in trial.validations]
        return min(judged, key=lambda each: sign * trial.validations[each.steps], default=trial.latest)

    def _place(self, saved: Saved) -> str:
        root = self._ground.storage.get("container_path")
        return str(pathlib.Path(root) / saved.uuid) if root else saved.uuid

    def _interrupted(self) -> int:
        name = self._folder.path.name
        session.tell(f"stopped; all that was learnt is kept. Go on: det experiment continue --local {name}")
        return INTERRUPTED

    # Beginnings.

    def _prepare(self, content: Mapping[str, Any]) -> Ground:
        from determined.wire.node_spec import ContextSpec

        config, path = self._config, self._folder.path
        needed = config.resources.slots_per_trial
        if needed > self._slots:
            raise errors.Refused(
                f"a trial needs {needed} slots (resources.slots_per_trial) and this machine has {self._slots}; "
                f"with --slots {needed} it is tried all the same"
            )
        if config.searcher.source_trial_id is not None:
            raise errors.Refused("searcher.source_trial_id names a trial of a master; use source_checkpoint_uuid here")
        storage = config.checkpoint_storage.model_dump(mode="json")
        if storage.get("type") is None:
            storage = {"type": "directory", "container_path": str(path / "checkpoints")}
            (path / "checkpoints").mkdir(exist_ok=True)
        words = _words(config)
        code = ContextSpec(sha256=content["sha256"], path=path / "code.tar.gz") if content["sha256"] else None
        if config.searcher.source_checkpoint_uuid is not None:
            _borrow(config.searcher.source_checkpoint_uuid, path, storage)
        return Ground(
            search_id=content["id"],
            name=content["name"],
            folder=path,
            runs_dir=path.parent,
            config=content["config"],
            entrypoint=words,
            ranks=None if len(words) == 1 else 1,
            slots=needed,
            context=code,
            code_folder=pathlib.Path(content["code_folder"]),
            storage=storage,
            variables=config.environment.environment_variables.of(_device()),
            requirements=content.get("requirements"),
            grace_seconds=60.0 if config.preemption_timeout is None else float(config.preemption_timeout),
            unit=self._method.unit,
        )

    @contextlib.contextmanager
    def _taking_signals(self) -> Iterator[None]:
        def take(number: int, frame: FrameType | None) -> None:
            self._asked += 1

        before = {number: signal.signal(number, take) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask_all_to_stop(self, at_once: bool) -> None:
        assert self._board is not None
        running = [trial for trial in self._trials.values() if trial.process is not None]
        if running and not at_once:
            self._board.say(f"stopping {len(running)} trials: each saves a checkpoint; Ctrl-C again kills them")
        for trial in running:
            if at_once and trial.process is not None:
                trial.process.kill()
            else:
                trial.stop(self._ground, self._ground.grace_seconds)


def _words(config: ExperimentConfig) -> list[str]:
    """The entrypoint as a node process takes it."""
    written = config.entrypoint
    if written is None:
        raise typer.BadParameter("the configuration names no entrypoint")
    if not isinstance(written, str):
        return [*written]
    is_class = ":" in written and not any(sign.isspace() for sign in written)
    return [written] if is_class else ["sh", "-c", written]


def _borrow(uuid: str, folder: pathlib.Path, storage: Mapping[str, Any]) -> None:
    """Put a checkpoint of another run here where trials look for theirs."""
    import shutil

    from determined.core import connect

    root = storage.get("container_path")
    if root is None or (pathlib.Path(root) / uuid).is_dir():
        return
    _, _, place = connect.resolve_checkpoint(uuid, folder.parent)
    shutil.copytree(place, pathlib.Path(root) / uuid, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    import shutil

    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _device() -> str:
    return "cuda" if _gpus() else "cpu"


def _gpus() -> list[str]:
    """The NVIDIA GPUs that trials may use, found without torch, whose import takes seconds."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [device.strip() for device in visible.split(",") if device.strip() not in ("", "-1", "NoDevFiles")]
    try:
        return [str(number) for number in range(len(os.listdir("/proc/driver/nvidia/gpus")))]
    except OSError:
        return []


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
