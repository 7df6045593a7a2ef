"""What a process started by a master can know of where it is; ``get_cluster_info()`` gives it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple


class RendezvousInfo(NamedTuple):
    """The machines of this task and which of them this is."""

    container_addrs: list[str]
    container_rank: int
    container_slot_counts: list[int]


class ResourcesInfo(NamedTuple):
    """The devices this process may use."""

    gpu_uuids: list[str]


class TrialInfo(NamedTuple):
    """The trial this process trains."""

    trial_id: int
    experiment_id: int
    trial_seed: int
    hparams: dict[str, Any]
    config: dict[str, Any]
    steps_completed: int = 0
    trial_run_id: int = 0


class ClusterInfo:
    """The task this process belongs to, on a cluster."""

    def __init__(
        self,
        *,
        master_url: str,
        cluster_id: str,
        agent_id: str,
        slot_ids: list[int],
        task_id: str,
        allocation_id: str,
        session_token: str,
        task_type: str,
        master_cert_name: str | None = None,
        master_cert_file: str | None = None,
        latest_checkpoint: str | None = None,
        trial_info: TrialInfo | None = None,
        rendezvous_info: RendezvousInfo | None = None,
        resources_info: ResourcesInfo | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.master_url = master_url
        self.cluster_id = cluster_id
        self.agent_id = agent_id
        self.slot_ids = slot_ids
        self.task_id = task_id
        self.allocation_id = allocation_id
        self.session_token = session_token
        self.task_type = task_type
        self.master_cert_name = master_cert_name
        self.master_cert_file = master_cert_file
        self._latest_checkpoint = latest_checkpoint
        self._trial_info = trial_info
        self._rendezvous_info = rendezvous_info
        self._resources_info = resources_info
        self._config = config if config is not None else (trial_info.config if trial_info is not None else {})

    @property
    def latest_checkpoint(self) -> str | None:
        """The checkpoint to start from; None unless this is a trial that has one."""
        return self._latest_checkpoint if self.task_type == "TRIAL" else None

    @property
    def user_data(self) -> dict[str, Any]:
        """The ``data`` section of the config."""
        return dict(self._config.get("data") or {})

    @property
    def trial(self) -> TrialInfo:
        """The trial; RuntimeError unless this is one."""
        if self.task_type != "TRIAL" or self._trial_info is None:
            raise RuntimeError(f"this is a task of type {self.task_type}, not a trial; it has no trial info")
        return self._trial_info

    @property
    def container_addrs(self) -> list[str]:
        """The addresses of the machines of this task."""
        return self._rendezvous.container_addrs

    @property
    def container_rank(self) -> int:
        """Which of these machines this is, from 0."""
        return self._rendezvous.container_rank

    @property
    def container_slot_counts(self) -> list[int]:
        """How many slots each of them has."""
        return self._rendezvous.container_slot_counts

    @property
    def gpu_uuids(self) -> list[str]:
        """The GPUs this process may use; none where slots are CPU shares."""
        return self._resources_info.gpu_uuids if self._resources_info is not None else []

    @property
    def _rendezvous(self) -> RendezvousInfo:
        return self._rendezvous_info or RendezvousInfo(["127.0.0.1"], 0, [max(len(self.slot_ids), 1)])


def get_cluster_info() -> ClusterInfo | None:
    """Where this process is on a cluster; None off-cluster."""
    if os.environ.get("DET_NODE_SPEC"):
        with open(os.environ["DET_NODE_SPEC"], "rb") as file:
            info = from_spec(json.load(file))
        if info is not None:
            return info
    return from_environment(os.environ)


def from_spec(spec: Mapping[str, Any]) -> ClusterInfo | None:
    """The cluster info in a NodeSpec; None when no master wrote it."""
    master = spec.get("master")
    if not master:
        return None
    trial = spec.get("trial")
    slots = int(spec.get("slots", 1))
    nodes = int(spec.get("nodes", 1))
    return ClusterInfo(
        master_url=master["url"],
        cluster_id=master.get("cluster_id", ""),
        agent_id=master.get("agent_id", ""),
        slot_ids=list(master.get("slot_ids", [])),
        task_id=master["task_id"],
        allocation_id=master["allocation_id"],
        session_token=master["session_token"],
        task_type=master.get("task_type", "TRIAL"),
        master_cert_name=master.get("cert_name"),
        master_cert_file=master.get("cert_file"),
        latest_checkpoint=spec.get("latest_checkpoint"),
        trial_info=trial
        and TrialInfo(
            trial_id=trial.get("trial_id", 0),
            experiment_id=trial.get("experiment_id", 0),
            trial_seed=trial["seed"],
            hparams=trial.get("hparams", {}),
            config=spec.get("config") or {},
            steps_completed=trial.get("steps_completed", 0),
            trial_run_id=master.get("run_epoch", 0),
        ),
        rendezvous_info=RendezvousInfo(
            [spec.get("master_addr", "127.0.0.1")] if nodes == 1 else [""] * nodes,
            int(spec.get("node_rank", 0)),
            [slots] * nodes,
        ),
        config=spec.get("config") or {},
    )


def from_environment(environ: Mapping[str, str]) -> ClusterInfo | None:
    """The cluster info in the environment of a task; None when this is none."""
    # The address of a master alone says only whom a person works with.
    if not environ.get("DET_MASTER") or not (environ.get("DET_ALLOCATION_ID") or environ.get("DET_TASK_ID")):
        return None
    trial_info = None
    if environ.get("DET_TRIAL_ID"):
        trial_info = TrialInfo(
            trial_id=int(environ["DET_TRIAL_ID"]),
            experiment_id=int(environ.get("DET_EXPERIMENT_ID", 0)),
            trial_seed=int(environ.get("DET_TRIAL_SEED", 0)),
            hparams=json.loads(environ.get("DET_HPARAMS") or "{}"),
            config=json.loads(environ.get("DET_EXPERIMENT_CONFIG") or "{}"),
            steps_completed=int(environ.get("DET_STEPS_COMPLETED", 0)),
            trial_run_id=int(environ.get("DET_TRIAL_RUN_ID", 0)),
        )
    return ClusterInfo(
        master_url=environ["DET_MASTER"],
        cluster_id=environ.get("DET_CLUSTER_ID", ""),
        agent_id=environ.get("DET_AGENT_ID", ""),
        slot_ids=json.loads(environ.get("DET_SLOT_IDS") or "[]"),
        task_id=environ.get("DET_TASK_ID", ""),
        allocation_id=environ.get("DET_ALLOCATION_ID", ""),
        session_token=environ.get("DET_SESSION_TOKEN", ""),
        task_type=environ.get("DET_TASK_TYPE", "TRIAL"),
        master_cert_name=environ.get("DET_MASTER_CERT_NAME"),
        master_cert_file=environ.get("DET_MASTER_CERT_FILE"),
        latest_checkpoint=environ.get("DET_LATEST_CHECKPOINT") or None,
        trial_info=trial_info,
        config=json.loads(environ.get("DET_EXPERIMENT_CONFIG") or "{}"),
    )
