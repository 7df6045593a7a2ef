"""From an allocation to its gang: what each of its node processes is told."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import pathlib
import posixpath
import re
import secrets
from collections.abc import Mapping
from typing import Any

from determined import errors
from determined.config.masking import MASK, mask
from determined.master import archives
from determined.master.lifecycle.patience import full_grace_seconds
from determined.master.pools.base import Gang
from determined.master.records import Allocation, AllocationState
from determined.master.scheduling import Placement
from determined.master.settings import Settings
from determined.master.store import allocations, checkpoints, experiments, searches, tasks, trials, users
from determined.master.store.database import Tx
from determined.wire.node_spec import ContextSpec, MasterSpec, NodeSpec, TrialSpec

_TRIAL_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_TOKEN_BYTES = 32
_MOST_REQUIREMENTS = 1 << 20
# How retention is configured; where checkpoints go does not depend on it.
_RETENTION = ("save_experiment_best", "save_trial_best", "save_trial_latest")


@dataclasses.dataclass
class Site:
    """Where this master is: its folders, and its address as nodes reach it."""

    settings: Settings
    url: str = ""
    cluster_id: str = ""

    @property
    def cert_file(self) -> str | None:
        """The certificate that nodes are to trust, if it is not one that everybody trusts."""
        found = self.settings.tls_ca or self.settings.tls_cert
        return None if found is None else str(found)

    def allocation_folder(self, allocation_id: str) -> pathlib.Path:
        """What a node process on this machine keeps of one attempt."""
        return self.settings.allocations_dir / allocation_id

    def run_folder(self, task_id: str) -> pathlib.Path:
        """The run folder of a trial or task, kept over its attempts."""
        return self.settings.runs_dir / task_id

    def log_file(self, allocation: Allocation, node_rank: int) -> pathlib.Path:
        """The log of one node of an attempt."""
        suffix = f"-node-{node_rank}" if node_rank else ""
        return self.settings.logs_dir / allocation.task_id / f"{allocation.id}{suffix}.jsonl"

    def storage(self, section: Mapping[str, Any] | None) -> dict[str, Any]:
        """Where checkpoints go for whom a config has this section of storage: it, else the master's own."""
        section = dict(section or {})
        if section.get("type") is not None:
            return section
        own = self.settings.checkpoint_storage.model_dump(mode="json")
        if own.get("type") is None:
            own = {"type": "directory", "container_path": str(self.settings.checkpoints_dir)}
        return {**own, **{name: section[name] for name in _RETENTION if name in section}}


@dataclasses.dataclass(frozen=True)
class _Work:
    """What an allocation is to do: the part that trials and tasks have in common."""

    name: str
    config: dict[str, Any]
    context_sha256: str | None
    python: str | None
    username: str
    default_entrypoint: list[str]


def prepare(tx: Tx, allocation_id: str, site: Site, device: str = "cpu") -> Gang | None:
    """The gang of an allocation that is to start, and a token for it; None if it is to stop or has ended by now.

    ``device`` is what the slots of its pool are: cpu, cuda or rocm.

    Every call makes a new token: an earlier one stays good, should the gang have been started with it.
    """
    allocation = allocations.require(tx, allocation_id)
    if allocation.state is not AllocationState.ASSIGNED:
        return None
    trial: TrialSpec | None = None
    latest = allocation.from_checkpoint
    if allocation.trial_id is not None:
        work, trial, latest = _of_trial(tx, allocation, site)
    else:
        work = _of_task(tx, allocation)
    token = _token(tx, allocation)
    folder = site.allocation_folder(allocation_id)
    words, ranks = _command(work)
    environment = _environment(work.config, device)
    nodes = [*allocation.placement.items()] or [("", [])]
    specs = []
    for rank, (node, slots) in enumerate(nodes):
        master = MasterSpec(
            url=site.url,
            folder=site.settings.state_dir,
            cluster_id=site.cluster_id,
            session_token=token,
            allocation_id=allocation_id,
            run_epoch=allocation.run_epoch,
            task_id=allocation.task_id,
            task_type="TRIAL" if trial is not None else allocation.task_id.rpartition("-")[0].upper(),
            agent_id=node,
            slot_ids=list(slots),
            cert_file=site.cert_file,
        )
        specs.append(
            NodeSpec(
                name=work.name,
                run_id=allocation.task_id,
                run_folder=site.run_folder(allocation.task_id),
                code_folder=folder / "code",
                entrypoint=words,
                config=work.config,
                trial=trial,
                latest_checkpoint=latest,
                master=master,
                context=_context(work, site),
                allocation_folder=folder,
                checkpoint_storage=site.storage(work.config.get("checkpoint_storage")),
                environments_folder=site.settings.state_dir / "environments",
                work_dir=work.config.get("work_dir"),
                python=work.python,
                log_file=site.log_file(allocation, rank),
                secrets=[token, *_secrets(work.config)],
                nodes=len(nodes),
                node_rank=rank,
                slots=max(len(slots), 1),
                ranks=ranks,
                environment={**_described(work, trial, master, latest), **environment},
                grace_seconds=full_grace_seconds(tx, allocation),
            )
        )
    return Gang(allocation_id, Placement({node: tuple(slots) for node, slots in allocation.placement.items()}), specs)


def with_requirements(gang: Gang) -> Gang:
    """The same gang, told which packages its config asks for: the text of a file in its code.

    Reads the archive, so call it outside of a transaction. Raises NotFound if the code has no such file.
    """
    spec = gang.specs[0]
    name = ((spec.config or {}).get("environment") or {}).get("requirements")
    if not name:
        return gang
    if spec.context is None or spec.context.path is None:
        raise errors.InvalidConfigurationException(
            f"environment.requirements is {name}, but no code was submitted that it could be in"
        )
    text = _requirements(spec.context.path, posixpath.normpath(name))
    return dataclasses.replace(gang, specs=[each.model_copy(update={"requirements": text}) for each in gang.specs])


@functools.lru_cache(64)
def _requirements(path: pathlib.Path, name: str) -> str:
    """What an archive, which is known by the hash of what is in it, has under a name."""
    return archives.read_file(path, name, _MOST_REQUIREMENTS).decode(errors="replace")


def hash_of(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _token(tx: Tx, allocation: Allocation) -> str:
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    users.insert_token(
        tx, "allocation", hash_of(token), allocation_id=allocation.id, name=allocation.id, scopes=["read"]
    )
    return token


def _of_trial(tx: Tx, allocation: Allocation, site: Site) -> tuple[_Work, TrialSpec, str | None]:
    assert allocation.trial_id is not None
    trial = trials.require(tx, allocation.trial_id)
    experiment = experiments.require(tx, trial.experiment_id)
    latest, steps = _checkpoint(tx, allocation, site.storage(experiment.config.get("checkpoint_storage")))
    unit = searches.require(tx, experiment.id).unit if allocation.target is not None else None
    spec = TrialSpec(
        trial_id=trial.id,
        experiment_id=experiment.id,
        seed=trial.seed,
        hparams=trial.hparams,
        steps_completed=steps,
        target=allocation.target,
        target_unit=unit,
    )
    work = _Work(
        experiment.name,
        experiment.config,
        experiment.context_sha256,
        experiment.python,
        _username(tx, experiment.user_id),
        [],
    )
    return work, spec, latest


def _of_task(tx: Tx, allocation: Allocation) -> _Work:
    task = tasks.require(tx, allocation.task_id)
    return _Work(task.name, task.config, task.context_sha256, task.python, _username(tx, task.user_id), [])


def _checkpoint(tx: Tx, allocation: Allocation, storage: Mapping[str, Any]) -> tuple[str | None, int]:
    """What a trial goes on from, as it finds it, and after how many of its own steps."""
    if allocation.from_checkpoint is None:
        return None, 0
    found = checkpoints.get(tx, allocation.from_checkpoint)
    if found is None:
        raise errors.CheckpointNotFound(f"the checkpoint {allocation.from_checkpoint} is not there any more")
    name = found.uuid
    folder = _folder(found.storage)
    if folder is not None and folder != _folder(storage):
        name = str(folder / found.uuid)
    return name, found.steps_completed if found.trial_id == allocation.trial_id else 0


def _folder(storage: Mapping[str, Any]) -> pathlib.Path | None:
    match storage:
        case {"type": "directory", "container_path": str(path)}:
            return pathlib.Path(path)
        case {"type": "shared_fs", "host_path": str(path), **rest}:
            return pathlib.Path(path) / (rest.get("storage_path") or "")
        case _:
            return None


def _username(tx: Tx, user_id: int | None) -> str:
    user = users.get(tx, user_id) if user_id is not None else None
    return user.username if user is not None else ""


def _command(work: _Work) -> tuple[list[str], int | None]:
    """The entrypoint as words, and how many ranks the node process starts itself (None: one for each slot)."""
    entrypoint = work.config.get("entrypoint") or work.default_entrypoint
    if not entrypoint:
        raise errors.InvalidConfigurationException("there is no entrypoint: say in the config what to run")
    if not isinstance(entrypoint, str):
        return [*entrypoint], 1
    if _TRIAL_CLASS.fullmatch(entrypoint):
        return [entrypoint], None
    return ["sh", "-c", entrypoint], 1


def _context(work: _Work, site: Site) -> ContextSpec | None:
    sha256 = work.context_sha256
    if sha256 is None:
        return None
    return ContextSpec(
        sha256=sha256,
        path=site.settings.contexts_dir / f"{sha256}.tar.gz",
        url=f"{site.url}/api/v1/contexts/{sha256}",
    )


def _environment(config: Mapping[str, Any], device: str) -> dict[str, str]:
    """The variables that a config sets for this kind of device."""
    variables = (config.get("environment") or {}).get("environment_variables") or {}
    pairs = (variable.partition("=") for variable in variables.get(device) or ())
    return {name: value for name, _, value in pairs}


def _secrets(config: Mapping[str, Any]) -> list[str]:
    """Values that must not be seen in a log: what is masked where a config is shown."""
    found: list[str] = []
    _differing(dict(config), mask(config), found)
    return sorted({value for value in found if len(value) >= 4}, key=len, reverse=True)


def _differing(plain: Any, masked: Any, found: list[str]) -> None:
    if isinstance(plain, dict) and isinstance(masked, dict):
        for name, value in plain.items():
            _differing(value, masked.get(name), found)
    elif isinstance(plain, list) and isinstance(masked, list):
        for value, shown in zip(plain, masked):
            _differing(value, shown, found)
    elif plain != masked:
        if isinstance(masked, str) and isinstance(plain, str) and masked.endswith(f"={MASK}"):
            found.append(plain.partition("=")[2])
        else:
            found.extend(_texts(plain))


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for inner in value.values() for text in _texts(inner)]
    if isinstance(value, (list, tuple)):
        return [text for inner in value for text in _texts(inner)]
    return [] if value is None or isinstance(value, bool) else [str(value)]


def _described(work: _Work, trial: TrialSpec | None, master: MasterSpec, latest: str | None) -> dict[str, str]:
    """What scripts may expect to find among their variables."""
    described = {
        "DET_MASTER": master.url,
        "DET_CLUSTER_ID": master.cluster_id,
        "DET_AGENT_ID": master.agent_id,
        "DET_SLOT_IDS": json.dumps(master.slot_ids),
        "DET_TASK_ID": master.task_id,
        "DET_ALLOCATION_ID": master.allocation_id,
        "DET_SESSION_TOKEN": master.session_token,
        "DET_TASK_TYPE": master.task_type,
        "DET_USER": work.username,
        "DET_RESOURCES_ID": f"{master.allocation_id}-{master.agent_id}",
    }
    if latest is not None:
        described["DET_LATEST_CHECKPOINT"] = latest
    if trial is not None:
        described |= {
            "DET_TRIAL_ID": str(trial.trial_id),
            "DET_EXPERIMENT_ID": str(trial.experiment_id),
            "DET_TRIAL_SEED": str(trial.seed),
            "DET_HPARAMS": json.dumps(trial.hparams),
            "DET_STEPS_COMPLETED": str(trial.steps_completed),
            "DET_TRIAL_RUN_ID": str(master.run_epoch),
            "DET_EXPERIMENT_CONFIG": json.dumps(work.config),
        }
    return described
