"""From where this process finds itself to a Context: the one place that asks what it was started by."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from determined import errors
from determined.config import masking
from determined.core import beats as beats_file
from determined.core import checkpoint_journal, cluster_info, environment, tracebacks, uplink
from determined.core.assignment import Assignment, Outbox, describe_storage
from determined.core.checkpoint import CheckpointContext, Found, read_metadata
from determined.core.checkpoint_journal import Journal
from determined.core.code_capture import CodeCapture
from determined.core.console import REDRAW_SECONDS, Console
from determined.core.context import Context, Parts
from determined.core.preempt import PreemptContext, PreemptMode
from determined.core.profiler import ProfilerContext
from determined.core.ranks import DistributedContext
from determined.core.reporter import Reporter
from determined.core.run_folder import TARGET, RunFolder, RunLabel, runs_in
from determined.core.searcher import SearcherContext
from determined.core.sinks import JsonLines, MetricSink, Row, TensorBoardEvents
from determined.core.train import TensorboardMode, TrainContext
from determined.storage import base
from determined.storage.build import build_storage
from determined.storage.folder import FolderStorage

if TYPE_CHECKING:
    StorageWish = Union[str, "os.PathLike[str]", Mapping[str, Any], None]

LATEST = "latest"
# Without a seed in the config, runs repeat each other: that is what whoever compares two runs hopes for.
DEFAULT_SEED = 0  # as search.build.PLAIN_SEED


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: StorageWish = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
    config: dict[str, Any] | None = None,
    hparams: dict[str, Any] | None = None,
    name: str | None = None,
    latest_checkpoint: str | None = None,
) -> Context:
    """Connect this process with what it was started by, or make a run of its own; every rank calls this.

    ``distributed`` is made from torchrun's environment when that is there. ``checkpoint_storage`` is a folder, or a
    section as in a config; by default checkpoints go into the run's folder. ``latest_checkpoint`` ("latest", an id or
    a path) goes on with the run that checkpoint is of.
    """
    wish = Wish(config, hparams, name, latest_checkpoint, checkpoint_storage)
    return connect(wish, distributed, preempt_mode, tensorboard_mode)


class Wish(NamedTuple):
    """What the caller of ``init`` gave."""

    config: dict[str, Any] | None
    hparams: dict[str, Any] | None
    name: str | None
    latest_checkpoint: str | None
    checkpoint_storage: StorageWish


def connect(
    wish: Wish,
    distributed: DistributedContext | None,
    preempt_mode: PreemptMode,
    tensorboard_mode: TensorboardMode,
    spool_of: Callable[[RunFolder], pathlib.Path] | None = None,
) -> Context:
    """``init``, also for a run that reports to a master though none has started it: then ``spool_of`` says where."""
    environ = os.environ
    checkpoint_storage = wish.checkpoint_storage
    if not environ.get("DET_DEBUG"):
        tracebacks.install()
    owns_distributed = distributed is None
    if distributed is None:
        has_ranks = "RANK" in environ and "WORLD_SIZE" in environ
        distributed = DistributedContext.from_torch_distributed() if has_ranks else DistributedContext()
    is_chief = distributed.rank == 0
    beats = beats_file.open_beats(environ.get("DET_BEATS"), distributed.local_rank)
    console = Console(
        is_live=_is_live(environ),
        speaker="" if is_chief else f"rank {distributed.rank}: ",
        count=lambda: beats_file.batches_done(beats[0]),
    )
    desk = _Desk(distributed, console, environ, wish)
    facts = desk.from_chief(desk.open_run)
    run = desk.attach(facts)
    assignment = Assignment.of(facts.spec)
    if checkpoint_storage is None and assignment is not None:
        checkpoint_storage = assignment.storage
    storage = build_storage(checkpoint_storage) if checkpoint_storage is not None else FolderStorage(run.checkpoints)
    # The one question after the master: who hears of it all, besides the run folder.
    spool = None
    if is_chief and assignment is not None:
        spool = uplink.Spool(assignment.spool, console.warn)
    elif is_chief and spool_of is not None:
        spool = uplink.Spool(lambda: spool_of(run), console.warn)
    reporter = desk.make_reporter(run, tensorboard_mode, spool) if is_chief else None
    outbox = None
    if spool is not None and reporter is not None:
        outbox = Outbox(spool, reporter, lambda: describe_storage(checkpoint.storage, checkpoint_storage))
    checkpoint = CheckpointContext(
        distributed,
        storage,
        run.journal,
        console,
        settle_metrics=lambda: train.settle(),
        history=lambda metric: _validations(run, metric),
        elsewhere=lambda storage_id: (
            desk.storage_of_another_run(storage_id, run) if checkpoint_storage is None else None
        ),
        published=outbox.published if outbox is not None else None,
        deleted=outbox.deleted if outbox is not None else _ignore,
        steps_so_far=lambda: train.last_steps,
        # Of a trial's checkpoints the master deletes what is not to be kept: it knows which ones others need.
        deletes_by_policy=assignment is None or not assignment.is_trial,
    )
    tell = outbox.tell if outbox is not None else _ignore
    train = TrainContext(run, checkpoint, console, reporter, tensorboard_mode, tell)
    train.last_steps = facts.found.steps_completed if facts.found is not None else 0
    preempt = PreemptContext(distributed, preempt_mode).start()
    preempt.install_signals(environ.get("DET_STACKS"))
    context = Context(
        Parts(
            train=train,
            checkpoint=checkpoint,
            distributed=distributed,
            preempt=preempt,
            searcher=SearcherContext(distributed, train, facts.spec["config"], facts.spec["trial"]),
            profiler=ProfilerContext(
                lambda: run.path / "profile.jsonl", distributed.rank, distributed.local_rank == 0, console.warn
            ),
            console=console,
            run=run,
            beats=beats,
            spec=facts.spec,
            info=cluster_info.get_cluster_info(),
            found=facts.found,
            capture=lambda: desk.capture,
            find=lambda wanted: desk.resume(wanted, run, checkpoint, storage_is_given=checkpoint_storage is not None),
            locate=lambda wanted, trial: (
                desk.from_chief(lambda: desk.locate(wanted, trial, run))
                if distributed.size > 1
                else desk.locate(wanted, trial, run)
            ),
            owns_distributed=owns_distributed,
            how_to_resume=_how_to_resume(environ) if assignment is None else "",
        )
    )
    if wish.config is not None or environ.get("DET_EXPERIMENT_CONFIG"):
        context.keep_by_policy()
    return context


def _ignore(news: Any) -> None:
    """Nobody is there to hear of it."""


def default_runs_dir(environ: Mapping[str, str]) -> pathlib.Path:
    """Where run folders go: DET_RUNS_DIR, or the user's data folder."""
    if environ.get("DET_RUNS_DIR"):
        return pathlib.Path(environ["DET_RUNS_DIR"]).expanduser().absolute()
    data = environ.get("XDG_DATA_HOME") or "~/.local/share"
    return pathlib.Path(data).expanduser().absolute() / "resolute" / "runs"


def resolve_checkpoint(
    wanted: str,
    runs_dir: pathlib.Path,
    name: str | None = None,
    storage: base.CheckpointStorage | None = None,
) -> tuple[RunFolder | None, str, pathlib.Path]:
    """Find a checkpoint by "latest" (of the runs of that name), by id or the beginning of one, or by path.

    Gives the run it belongs to, if any, its id and its folder. Raises CheckpointNotFound, naming what there is.
    """
    if wanted == LATEST:
        return _latest(list(runs_in(runs_dir, name)), f"no run of the name {name!r} in {runs_dir} has a checkpoint yet")
    path = pathlib.Path(wanted).expanduser().absolute()
    if os.sep in wanted or wanted.startswith(("~", ".")):
        if not path.is_dir():
            raise errors.CheckpointNotFound(f"there is no checkpoint folder {path}; check the path")
        run = RunFolder.at(path)
        if run is not None:
            return _latest([run], f"the run in {path} has no checkpoint yet")
        owner = RunFolder.at(path.parent.parent)
        return (owner if owner is not None and owner.checkpoints == path.parent else None), path.name, path
    known: list[tuple[RunFolder | None, str, pathlib.Path]] = []
    for run in runs_in(runs_dir):
        if run.label.storage is None:
            known.extend((run, each, run.checkpoints / each) for each in FolderStorage(run.checkpoints).list())
        else:
            there = Journal(run.journal).entries(set(FolderStorage(run.checkpoints).list()))
            known.extend((run, each.storage_id, run.checkpoints / each.storage_id) for each in there)
    if isinstance(storage, FolderStorage):
        taken = {each[1] for each in known}
        known.extend((None, each, storage.root / each) for each in storage.list() if each not in taken)
    exact = [each for each in known if each[1] == wanted]
    matching = exact or [each for each in known if len(wanted) >= 4 and each[1].startswith(wanted)]
    if len(matching) == 1:
        return matching[0]
    if path.is_dir():
        return None, path.name, path
    if matching:
        names = ", ".join(each[1] for each in matching[:5])
        raise errors.CheckpointNotFound(f"several checkpoints begin with {wanted}: {names}; write more of the id")
    newest = ", ".join(each[1] for each in known[-3:])
    raise errors.CheckpointNotFound(
        f"there is no checkpoint {wanted} among the runs in {runs_dir}; "
        + (f"there are {newest}" if newest else "there are none at all")
    )


def best_of(trial: int | str | None, runs_dir: pathlib.Path) -> Found:
    """The best checkpoint of a run, by its id or name; of the newest run that has any when ``trial`` is None."""
    wanted = None if trial is None else str(trial)
    runs = [run for run in runs_in(runs_dir) if wanted is None or wanted in (run.id, run.name, run.path.name)]
    if not runs:
        raise errors.CheckpointNotFound(
            f"there is no run {wanted!r} in {runs_dir}; without a master, name a run's id, or pass checkpoint= an id "
            "or a path"
        )
    for run in sorted(runs, key=lambda run: run.label.started, reverse=True):
        target = run.read(TARGET) or (run.read("config.json") or {}).get("searcher") or {}
        journal = Journal(run.journal)
        if target.get("metric"):
            journal.learn(_validations(run, target["metric"]))
        entries = journal.entries(set(FolderStorage(run.checkpoints).list()))
        ranked = checkpoint_journal.best(entries, bool(target.get("smaller_is_better", True))) or entries[::-1]
        if ranked:
            chosen = ranked[0]
            return Found(chosen.storage_id, run.checkpoints / chosen.storage_id, chosen.steps_completed or 0)
    raise errors.CheckpointNotFound(f"no run in {runs_dir} has a checkpoint yet; train first")


class _Facts(NamedTuple):
    """What the chief decided, as it travels to the other ranks."""

    run_path: pathlib.Path
    label: RunLabel
    spec: dict[str, Any]
    found: Found | None


class _Where(NamedTuple):
    """Which run this turned out to be."""

    run_path: pathlib.Path
    label: RunLabel
    found: Found | None


class _Desk:
    """Where one process signs in: the chief decides and opens, the others are told."""

    def __init__(
        self, distributed: DistributedContext, console: Console, environ: Mapping[str, str], wish: Wish
    ) -> None:
        self._distributed = distributed
        self._console = console
        self._environ = environ
        self._wish = wish
        self._runs_dir = default_runs_dir(environ)
        self._spec = _read_spec(environ) if distributed.rank == 0 else {}
        self._assignment = Assignment.of(self._spec)
        self._run: RunFolder | None = None
        self._reporter: Reporter | None = None
        self._found: Found | None = None
        self._taken_up: Found | None = None
        self._goes_on = True  # rather than beginning with what another trial has learnt
        self.capture: CodeCapture | None = None

    def from_chief(self, act: Callable[[], Any]) -> Any:
        """Do something on the chief; its result, or its error, is everybody's."""
        if self._distributed.size == 1:
            return act()
        result, problem = None, None
        if self._distributed.rank == 0:
            try:
                result = act()
            except errors.DeterminedError as error:
                problem = error
            except Exception as error:
                self._distributed.broadcast((None, errors.InternalException(f"the chief failed: {error}")))
                raise
        result, problem = self._distributed.broadcast((result, problem))
        if problem is not None:
            raise problem
        return result

    def open_run(self) -> _Facts:
        """On the chief: know what to train, and open the folder of the run, a new or an earlier one."""
        config = self._find_config()
        trial = dict(self._spec.get("trial") or {})
        name = self._wish.name or self._spec.get("name") or (config or {}).get("name") or _script_name()
        storage = self._wish.checkpoint_storage
        if storage is None and self._assignment is not None:
            storage = self._assignment.storage
        built = build_storage(storage) if storage is not None else None
        if self._assignment is not None:
            run, found = self._take_up(self._assignment, built)
            self._taken_up = found
        else:
            wanted = self._wish.latest_checkpoint or self._spec.get("latest_checkpoint")
            wanted = wanted or self._environ.get("DET_LATEST_CHECKPOINT")
            owner, found = self._locate(wanted, name) if wanted else (None, None)
            run = self._run = self._choose_folder(owner, name)
            run.open(str(built.root) if isinstance(built, FolderStorage) else None)
            if found is not None:
                self._rewind(run, owner, found)
        if config is not None:
            # The folder is kept, and passed on: it is no place for secrets.
            run.write("config.json", masking.mask(config))
        self._console.info(f"run {run.name}-{run.id}: {run.path}")
        if found is not None:
            what = "goes on from" if self._goes_on else "begins with the weights of"
            self._console.info(f"{what} checkpoint {found.storage_id} at step {found.steps_completed}")
        seed = ((config or {}).get("reproducibility") or {}).get("experiment_seed")
        trial.setdefault("seed", DEFAULT_SEED if seed is None else seed)
        trial["hparams"] = self._hparams(config, trial)
        if trial["hparams"]:
            run.write("hparams.json", trial["hparams"])
        if found is not None:
            trial["steps_completed"] = found.steps_completed if self._goes_on else 0
        else:
            trial.setdefault("steps_completed", 0)
        spec = {
            "code_folder": str(_code_folder() or pathlib.Path.cwd()),
            **self._spec,
            "name": run.name,
            "run_id": run.id,
            "run_folder": str(run.path),
            "config": config,
            "trial": trial,
            "latest_checkpoint": found.storage_id if found else None,
        }
        self.capture = self._start_capture(run)
        return _Facts(run.path, run.label, spec, found)

    def attach(self, facts: _Facts) -> RunFolder:
        """The run as this rank has it: the chief's own, or a view of it."""
        return self._run if self._run is not None else RunFolder(facts.run_path, facts.label)

    def make_reporter(self, run: RunFolder, tensorboard_mode: TensorboardMode, spool: uplink.Spool | None) -> Reporter:
        """The chief's way to the sinks."""
        sinks: list[MetricSink] = [JsonLines(run, self._console.warn), self._console]
        if spool is not None:
            sinks.append(uplink.SpoolSink(spool))
        if tensorboard_mode is TensorboardMode.AUTO:
            sinks.append(TensorBoardEvents(lambda: run.tensorboard, first_step=self._first_step))
        reporter = self._reporter = Reporter(
            sinks,
            tick=self._console.tick,
            tick_seconds=REDRAW_SECONDS if self._console.is_live else None,
        )
        reporter.expect_again(_rows_at(run, self._found))
        if self._console.is_live:
            reporter.start()
        return reporter

    def resume(
        self, wanted: str, run: RunFolder, checkpoint: CheckpointContext, storage_is_given: bool
    ) -> Found | None:
        """Go on from a checkpoint after all, when the run is open but nothing has been reported."""

        def decide() -> _Where:
            if self._assignment is not None:
                return _Where(run.path, run.label, self._begin_with(wanted, run))
            owner, found = self._locate(wanted, run.name)
            if owner is not None and owner.path != run.path:
                if self.capture is not None:
                    self.capture.cancel()
                run.become(owner)
                run.open()
                self.capture = self._start_capture(run)
                self._console.info(f"continues run {run.name}-{run.id}: {run.path}")
            if found is not None:
                self._rewind(run, owner, found)
                self._console.info(f"goes on from checkpoint {found.storage_id} at step {found.steps_completed}")
                if self._reporter is not None:
                    self._reporter.expect_again(_rows_at(run, found))
            return _Where(run.path, run.label, found)

        where: _Where = self.from_chief(decide)
        run.path, run.label = where.run_path, where.label
        checkpoint.reopen(checkpoint.storage if storage_is_given else FolderStorage(run.checkpoints), run.journal)
        return where.found

    def _begin_with(self, wanted: str, run: RunFolder) -> Found | None:
        """What a script of a master's run asks to go on from: its own progress, once there is some, comes first."""
        assert self._assignment is not None
        mine = self._taken_up
        if wanted == LATEST or (mine is not None and wanted in (mine.storage_id, str(mine.path))):
            return mine
        if mine is not None and self._goes_on:
            self._console.info(f"goes on from its own checkpoint {mine.storage_id}, not from {wanted}")
            return mine
        return self.locate(wanted, None, run)

    def locate(self, wanted: str | None, trial: int | str | None, run: RunFolder) -> Found:
        """On the chief: a checkpoint to look at, without going on from it."""
        if self._assignment is not None and not (wanted is not None and os.sep in wanted):
            return self._assignment.find(wanted, trial)
        if wanted is None:
            return best_of(trial, self._runs_dir)
        _, storage_id, path = resolve_checkpoint(wanted, self._runs_dir, None)
        return Found(storage_id, path, int(read_metadata(path).get("steps_completed") or 0))

    def storage_of_another_run(self, storage_id: str, run: RunFolder) -> FolderStorage | None:
        """The storage that has a checkpoint which this run's has not: an id is good on the whole machine."""
        if (run.checkpoints / storage_id).exists():
            return None
        for other in runs_in(self._runs_dir):
            if (other.checkpoints / storage_id).is_dir():
                return FolderStorage(other.checkpoints)
        return None

    def _first_step(self) -> int:
        return self._found.steps_completed + 1 if self._found is not None else 0

    def _find_config(self) -> dict[str, Any] | None:
        if self._wish.config is not None and self._assignment is None:
            return self._wish.config
        if self._spec:
            return self._spec.get("config")
        explicit = self._environ.get("DET_EXPERIMENT_CONFIG")
        folder = _code_folder()
        if not explicit and not (folder is not None and _has_yaml(folder)) and "--config" not in " ".join(sys.argv):
            return None  # nothing to read: spare the import of what would read it
        from determined import config as config_package
        from determined.config import find

        source = find.look(folder or pathlib.Path.cwd(), sys.argv, explicit)
        for notice in source.notices:
            self._console.warn(notice)
        if source.source is None:
            return None
        loaded: dict[str, Any] = config_package.load(source.source).model_dump(mode="json", by_alias=True)
        return loaded

    def _hparams(self, config: Mapping[str, Any] | None, trial: Mapping[str, Any]) -> dict[str, Any]:
        if self._assignment is not None:
            # The search decides; what a script says besides is for what the search leaves open.
            return {**(self._wish.hparams or {}), **(trial.get("hparams") or {})}
        if self._wish.hparams is not None:
            return dict(self._wish.hparams)
        if "hparams" in trial:
            return dict(trial["hparams"])
        asked = (config or {}).get("hyperparameters") or {}
        if not asked:
            return {}
        from determined.config import hparams

        values, notices = hparams.first_values(asked)
        for notice in notices:
            self._console.info(notice)
        return values

    def _locate(self, wanted: str, name: str) -> tuple[RunFolder | None, Found | None]:
        storage = self._wish.checkpoint_storage
        built = build_storage(storage) if storage is not None else None
        try:
            run, storage_id, path = resolve_checkpoint(wanted, self._runs_dir, name, built)
        except errors.CheckpointNotFound as error:
            if wanted != LATEST:
                raise
            self._console.info(f"{error}; starting from the beginning")
            return None, None
        return run, Found(storage_id, path, int(read_metadata(path).get("steps_completed") or 0))

    def _take_up(
        self, assignment: Assignment, storage: base.CheckpointStorage | None
    ) -> tuple[RunFolder, Found | None]:
        """The run that a master gave us to begin or to go on with; everything past its cut is taken back."""
        path = pathlib.Path(self._spec["run_folder"])
        run = self._run = RunFolder.at(path) or RunFolder(path, RunLabel(self._spec["run_id"], self._spec["name"]))
        run.open(str(storage.root) if isinstance(storage, FolderStorage) else None)
        storage = storage or FolderStorage(run.checkpoints)
        journal = Journal(run.journal)
        latest = assignment.latest_checkpoint
        if latest is None and not assignment.is_trial:
            # What a job saved for itself is its own affair: it goes on from the latest of it.
            entries = journal.entries(set(storage.list()))
            latest = entries[-1].storage_id if entries else None
        found = assignment.place(storage, latest) if latest is not None else None
        for entry in journal.entries(set(storage.list())) if assignment.is_trial and run.run_epoch > 1 else ():
            # Complete, but the process died before it could say so: nobody would ever delete it.
            if (found is None or entry.storage_id != found.storage_id) and not assignment.was_reported(
                entry.storage_id
            ):
                with contextlib.suppress(errors.DeterminedError, OSError):
                    storage.delete(entry.storage_id)
        if found is not None and assignment.steps_completed:
            found = found._replace(steps_completed=assignment.steps_completed)
        self._goes_on = found is None or assignment.steps_completed > 0 or journal.knows(found.storage_id)
        if found is not None and self._goes_on:
            self._rewind(run, run, found)
        elif assignment.is_trial and run.run_epoch > 1:
            # An attempt before this one left no checkpoint that counts.
            run.rewind(-1)
            journal.resume("", -1, run.label.started)
        return run, found

    def _choose_folder(self, owner: RunFolder | None, name: str) -> RunFolder:
        given = self._spec.get("run_folder")
        if given:
            # A launcher's second start of the same run; or its first, which may go on with an earlier run.
            there = RunFolder.at(pathlib.Path(given))
            return there or owner or RunFolder(pathlib.Path(given), RunLabel(self._spec["run_id"], name))
        return owner or RunFolder.create(self._runs_dir, name)

    def _rewind(self, run: RunFolder, owner: RunFolder | None, found: Found) -> None:
        if owner is None or owner.path != run.path:
            return  # weights from elsewhere: this run has nothing to take back
        self._found = found
        run.rewind(found.steps_completed)
        Journal(run.journal).resume(found.storage_id, found.steps_completed, run.label.started)

    def _start_capture(self, run: RunFolder) -> CodeCapture | None:
        if self._assignment is not None and not self._assignment.is_trial:
            return None  # a job is no run that anybody looks up later, and its master has the code
        code = pathlib.Path(self._spec["code_folder"]) if self._spec.get("code_folder") else _code_folder()
        if code is not None and not _is_project(code):
            self._console.info(f"{code} is not kept with the run: it is no folder of a project")
            code = None
        never = [self._runs_dir, run.path, run.checkpoints]
        allowed = {name: self._environ[name] for name in environment.VARIABLES if name in self._environ}
        return CodeCapture(run, code, never, allowed, list(sys.orig_argv), self._console.info)


def _read_spec(environ: Mapping[str, str]) -> dict[str, Any]:
    """The NodeSpec as plain maps: whoever wrote it has checked it."""
    path = environ.get("DET_NODE_SPEC")
    if not path:
        return {}
    spec: dict[str, Any] = json.loads(pathlib.Path(path).read_bytes())
    return spec


def _latest(runs: list[RunFolder], otherwise: str) -> tuple[RunFolder, str, pathlib.Path]:
    found = []
    for run in runs:
        entries = Journal(run.journal).entries(set(FolderStorage(run.checkpoints).list()))
        if entries:
            found.append((entries[-1].time, run, entries[-1].storage_id))
    if not found:
        raise errors.CheckpointNotFound(otherwise)
    _, run, storage_id = max(found, key=lambda each: each[0])
    return run, storage_id, run.checkpoints / storage_id


def _validations(run: RunFolder, metric: str) -> dict[int, float]:
    """The values of a validation metric by step; of several starts of the run, the last counts."""
    values: dict[int, float] = {}
    for row in run.rows("validation"):
        value = row["metrics"].get(metric)
        if isinstance(value, (int, float)):
            values[row["steps_completed"]] = float(value)
    return values


def _rows_at(run: RunFolder, found: Found | None) -> list[Row]:
    if found is None:
        return []
    return [
        Row(row["group"], row["steps_completed"], row["metrics"], None, row["time"])
        for row in run.rows()
        if row["steps_completed"] == found.steps_completed
    ]


def _is_live(environ: Mapping[str, str]) -> bool:
    if sys.stderr is None or environ.get("TERM") == "dumb" or environ.get("CI"):
        return False
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def _script() -> pathlib.Path | None:
    script = pathlib.Path(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-", "-c", "-m") else None
    return script.absolute() if script is not None and script.is_file() else None


def _script_name() -> str:
    script = _script()
    if script is None:
        return "session"
    return script.parent.name if script.stem == "__main__" else script.stem


def _code_folder() -> pathlib.Path | None:
    script = _script()
    return script.parent if script is not None else None


def _is_project(folder: pathlib.Path) -> bool:
    """Whether a folder may be somebody's project, rather than a home, a disk, or where programs are installed."""
    real = folder.resolve()
    too_wide = {pathlib.Path.home().resolve(), pathlib.Path("/tmp"), pathlib.Path(real.anchor)}
    installed = {pathlib.Path(sys.prefix).resolve() / "bin", pathlib.Path(sys.base_prefix).resolve() / "bin"}
    return real not in too_wide | installed and "site-packages" not in real.parts


def _has_yaml(folder: pathlib.Path) -> bool:
    try:
        return any(name.endswith((".yaml", ".yml")) for name in os.listdir(folder))
    except OSError:
        return False


def _how_to_resume(environ: Mapping[str, str]) -> str:
    if "RANK" in environ or environ.get("DET_NODE_SPEC"):
        return f"DET_LATEST_CHECKPOINT={LATEST} and the same command"
    import shlex

    command = shlex.join(["python", *sys.orig_argv[1:]])
    return f"DET_LATEST_CHECKPOINT={LATEST} {command}"
