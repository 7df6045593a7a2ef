"""The Core API as a module: ``init()`` once, then ``core_v2.train``, ``core_v2.checkpoint`` and the rest; ``close()``.

>>> from determined.experimental import core_v2
>>> core_v2.init(config=core_v2.Config(name="example", hparams={"lr": 0.1}, external_experiment_id="mine"))
>>> first = core_v2.info.trial.steps_completed
>>> for step in range(first, first + 3):
...     core_v2.train.report_training_metrics(steps_completed=step + 1, metrics={"loss": 1 / (step + 1)})
>>> with core_v2.checkpoint.store_path({"steps_completed": first + 3}) as (path, storage_id):
...     _ = (path / "weights").write_text("...")
>>> core_v2.close()

Started again with the same external ids, the same run goes on:

>>> core_v2.init(config=core_v2.Config(name="example", external_experiment_id="mine"))
>>> core_v2.info.latest_checkpoint == storage_id
True
>>> core_v2.close()
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Union

from determined import core, errors
from determined.core import connect, detached, upload
from determined.core.cluster_info import ClusterInfo, TrialInfo, get_cluster_info
from determined.core.run_folder import RunFolder, runs_in
from determined.storage.build import build_storage
from determined.storage.folder import FolderStorage

if TYPE_CHECKING:
    from determined.client.transport import Session
    from determined.wire.views import RunView

    train: core.TrainContext
    distributed: core.DistributedContext
    preempt: core.PreemptContext
    checkpoint: core.CheckpointContext
    searcher: core.SearcherContext
    profiler: core.ProfilerContext
    info: ClusterInfo

__all__ = [
    "Config",
    "DefaultConfig",
    "UnmanagedConfig",
    "checkpoint",
    "close",
    "distributed",
    "info",
    "init",
    "preempt",
    "profiler",
    "searcher",
    "train",
]


@dataclasses.dataclass(kw_only=True)
class DefaultConfig:
    """What a script says of its experiment; on a cluster the submitted configuration counts instead."""

    name: str | None = None
    hparams: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    description: str | None = None
    labels: list[str] | None = None
    checkpoint_storage: Union[str, dict[str, Any], None] = None
    searcher: dict[str, Any] | None = None


@dataclasses.dataclass(kw_only=True)
class UnmanagedConfig:
    """What matters to a run that no master started. The same external ids are the same run, resumed."""

    workspace: str | None = None
    project: str | None = None
    external_experiment_id: str | None = None
    external_trial_id: str | None = None


@dataclasses.dataclass(kw_only=True)
class Config(DefaultConfig, UnmanagedConfig):
    """Both in one: everything a script may say of its run."""


@dataclasses.dataclass
class _Open:
    context: core.Context
    info: ClusterInfo
    link: detached.Detached | None
    owner: int = dataclasses.field(default_factory=os.getpid)


_open: _Open | None = None


def init(
    *,
    config: Config | None = None,
    defaults: DefaultConfig | None = None,
    unmanaged: UnmanagedConfig | None = None,
    distributed: core.DistributedContext | None = None,
    checkpoint_storage: Union[str, os.PathLike[str], Mapping[str, Any], None] = None,
    preempt_mode: core.PreemptMode = core.PreemptMode.WorkersAskChief,
    tensorboard_mode: core.TensorboardMode = core.TensorboardMode.AUTO,
) -> None:
    """Make ``train``, ``checkpoint``, ``preempt``, ``distributed`` and ``info`` of this module work; all ranks call it.

    Give one ``config``, or ``defaults`` and ``unmanaged`` apart. Without a master this opens a local run, as
    ``core.init`` does, or the earlier run of the same external ids, which goes on from its latest checkpoint:
    ``info.latest_checkpoint``. With ``DET_MASTER`` the same run reports to that master too ("local" is the one on this
    machine); while it does not answer, the run goes on and what it reports is kept for later.
    """
    global _open
    if _open is not None:
        raise RuntimeError("core_v2.init() was called twice; call core_v2.close() before the second")
    if config is not None and (defaults is not None or unmanaged is not None):
        raise ValueError("give either config, or defaults and unmanaged, not both")
    about, place = config or defaults or DefaultConfig(), config or unmanaged or UnmanagedConfig()
    managed = get_cluster_info()
    if checkpoint_storage is None and managed is None:
        checkpoint_storage = about.checkpoint_storage
    session = detached.session_of(os.environ) if managed is None else None
    wish = connect.Wish(
        config=_experiment_config(about, place) if managed is None else None,
        hparams=about.hparams if managed is None else None,
        name=about.name,
        latest_checkpoint=None,
        checkpoint_storage=checkpoint_storage,
    )
    spool_of = detached.spool_of if session is not None else None
    atexit.register(_last_chance)  # before the context's own, so that it comes after it
    context = connect.connect(wish, distributed, preempt_mode, tensorboard_mode, spool_of)
    try:
        link: detached.Detached | None = None
        info = managed
        if info is None:
            _go_on(context, place)
            view: Mapping[str, Any] | None = None
            if session is not None:
                link, view = _report_to(session, context, place)
            info = _detached_info(context, session, view) if view and session is not None else _local_info(context)
        _open = _Open(context, info, link)
    except BaseException as error:
        context.close(error)
        raise


def close() -> None:
    """Write what is left and let go of everything. Called by itself when the process ends."""
    global _open
    if _open is not None:
        closing, _open = _open, None
        try:
            closing.context.close()
        finally:
            if closing.link is not None:
                closing.link.close(closing.context.run.label.state)


def _last_chance() -> None:
    if _open is not None and _open.link is not None and _open.owner == os.getpid():
        close()


def __getattr__(name: str) -> Any:
    """The parts of the context that ``init`` opened."""
    if name not in __all__:
        raise AttributeError(f"module 'determined.experimental.core_v2' has no attribute {name!r}")
    if _open is None:
        raise AttributeError(f"core_v2.{name} is there after core_v2.init(): call that first")
    return _open.info if name == "info" else getattr(_open.context, name)


def _experiment_config(about: DefaultConfig, place: UnmanagedConfig) -> dict[str, Any] | None:
    storage = about.checkpoint_storage
    said = {
        "name": about.name,
        "description": about.description,
        "labels": about.labels,
        "data": about.data,
        "hyperparameters": about.hparams,
        "checkpoint_storage": storage if isinstance(storage, dict) else None,
        "searcher": about.searcher,
        "workspace": place.workspace,
        "project": place.project,
    }
    given = {name: value for name, value in said.items() if value is not None}
    # With nothing said, the configuration beside the script counts, as for core.init.
    return given or None


def _go_on(context: core.Context, place: UnmanagedConfig) -> None:
    """Turn to the run of these ids, if there is one, and note them with the run."""
    ids = [place.external_experiment_id, place.external_trial_id]
    if not any(ids):
        return
    ranks = context.distributed
    earlier: str | None = None
    if ranks.rank == 0 and context.found is None:
        earlier = _latest_run(context.run, ids)
    if ranks.size > 1:
        earlier = ranks.broadcast(earlier)
    if earlier is not None:
        context.resume(earlier)
    if ranks.rank == 0:
        context.run.write(upload.EXTERNAL, ids)


def _latest_run(run: RunFolder, ids: list[str | None]) -> str | None:
    """The folder of the run with these ids that was started last and has a checkpoint to go on from."""
    runs_dir = run.path.parent
    named = [each for each in runs_in(runs_dir) if each.path != run.path and each.read(upload.EXTERNAL) == ids]
    for each in sorted(named, key=lambda each: each.label.started, reverse=True):
        with contextlib.suppress(errors.CheckpointNotFound):
            connect.resolve_checkpoint(str(each.path), runs_dir)
            return str(each.path)
    return None


def _report_to(
    session: Session, context: core.Context, place: UnmanagedConfig
) -> tuple[detached.Detached | None, Mapping[str, Any] | None]:
    """Make the run known to the master, after going on with what the master knows of it, if that is further on."""
    ranks, steps = context.distributed, context.steps_completed
    further: str | None = None
    known: RunView | None = None
    if ranks.rank == 0 and place.external_experiment_id and context.found is None:
        further, known = _known_checkpoint(session, context)
    if ranks.size > 1:
        further = ranks.broadcast(further)
    if further is not None:
        context.resume(further)
        steps, known = context.found.steps_completed if context.found else 0, None
        if ranks.rank == 0:
            context.run.write(upload.EXTERNAL, [place.external_experiment_id, place.external_trial_id])
    link: detached.Detached | None = None
    view: Mapping[str, Any] | None = None
    if ranks.rank == 0:
        link = detached.Detached(context.run, session, context.console, steps_completed=steps, stop=context.preempt.ask)
        known = link.connect(known)
        view = known.model_dump(mode="json") if known is not None else None
    if ranks.size > 1:
        view = ranks.broadcast(view)
    return link, view


def _known_checkpoint(session: Session, context: core.Context) -> tuple[str | None, RunView | None]:
    """What the master knows of this run, and the folder of its latest checkpoint when this machine can see it."""
    try:
        view = upload.register(context.run, session)
        if view.latest_checkpoint is None:
            return None, view
        reporting = session.with_token(view.session_token)
        try:
            section = reporting.get(f"/checkpoints/{view.latest_checkpoint}").get("storage")
        finally:
            reporting.close()
        storage = build_storage(section) if section else None
    except errors.DeterminedError as error:
        if not detached.is_away(error):
            raise
        return None, None
    path = storage.root / view.latest_checkpoint if isinstance(storage, FolderStorage) else None
    if path is not None and path.is_dir():
        return str(path), view
    context.console.warn(
        f"the master knows this run up to step {view.steps_completed}, but checkpoint {view.latest_checkpoint} is not "
        "on this machine: starting from the beginning"
    )
    return None, view


def _detached_info(context: core.Context, session: Session, view: Mapping[str, Any]) -> ClusterInfo:
    """What the master calls this run."""
    local = _local_info(context)
    return ClusterInfo(
        master_url=session.url,
        cluster_id=view["cluster_id"],
        agent_id="",
        slot_ids=[],
        task_id=f"trial-{view['trial_id']}",
        allocation_id=view["allocation_id"],
        session_token=view["session_token"],
        task_type="TRIAL",
        latest_checkpoint=local.latest_checkpoint,
        trial_info=local.trial._replace(
            trial_id=view["trial_id"], experiment_id=view["experiment_id"], trial_run_id=view["run_epoch"]
        ),
    )


def _local_info(context: core.Context) -> ClusterInfo:
    """What scripts ask of where they are, said of a local run."""
    found = context.found
    return ClusterInfo(
        master_url="",
        cluster_id="",
        agent_id="",
        slot_ids=[],
        task_id=context.run.id,
        allocation_id="",
        session_token="",
        task_type="TRIAL",
        latest_checkpoint=found.storage_id if found else None,
        trial_info=TrialInfo(
            trial_id=0,
            experiment_id=0,
            trial_seed=context.seed,
            hparams=context.hparams,
            config=context.config or {},
            steps_completed=found.steps_completed if found else 0,
        ),
    )
