"""NodeSpec: the one document that tells a node process, and through it the training script, what it must know."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any, Literal

import pydantic


class TrialSpec(pydantic.BaseModel, frozen=True, extra="forbid"):
    """What is being trained. The worker side never asks who decided it."""

    trial_id: int = 0
    experiment_id: int = 0
    seed: int
    hparams: dict[str, Any] = {}
    steps_completed: int = 0
    # How far to train for now, in batches, epochs or records; the searcher's max_length is where training ends.
    target: float | None = None
    target_unit: Literal["batches", "epochs", "records"] | None = None


class MasterSpec(pydantic.BaseModel, frozen=True, extra="forbid"):
    """Where the master is and how to speak to it; absent when there is none."""

    url: str
    folder: pathlib.Path | None = None  # of a master on this machine: started again, it says there where it serves
    cluster_id: str = ""
    session_token: str
    allocation_id: str
    run_epoch: int
    task_id: str
    task_type: str = "TRIAL"
    agent_id: str = ""
    slot_ids: list[int] = []
    cert_file: str | None = None
    cert_name: str | None = None


class ContextSpec(pydantic.BaseModel, frozen=True, extra="forbid"):
    """The submitted code: an archive known by its hash, on this machine's disk or to be fetched from the master."""

    sha256: str
    path: pathlib.Path | None = None
    url: str | None = None


class NodeSpec(pydantic.BaseModel, frozen=True, extra="forbid"):
    """One machine's share of an allocation.

    Written by ``core.connect`` (a plain script), by the launch command, or by a master's pool; read by the node
    process and by ``core.connect`` in every rank. Passed as a JSON file whose path is in ``DET_NODE_SPEC``.
    """

    name: str
    run_id: str
    run_folder: pathlib.Path
    code_folder: pathlib.Path
    entrypoint: list[str] = []
    config: dict[str, Any] | None = None
    trial: TrialSpec | None = None
    latest_checkpoint: str | None = None
    master: MasterSpec | None = None
    context: ContextSpec | None = None  # absent: the code is in code_folder already
    allocation_folder: pathlib.Path | None = None  # spools, lock and outcome of this attempt
    checkpoint_storage: dict[str, Any] | None = None  # as in a config; absent: the run folder
    requirements: str | None = None  # a requirements file's text: the ranks run in an environment made from it
    environments_folder: pathlib.Path | None = None  # where such environments are kept
    work_dir: pathlib.Path | None = None  # where the ranks start, from the code's folder; absent: there
    python: str | None = None  # the interpreter that `python` means; absent: the node process's own
    log_file: pathlib.Path | None = None  # where every line of every rank goes; absent: a local run
    secrets: list[str] = []  # values that never appear in the log

    nodes: int = 1
    node_rank: int = 0
    slots: int = 1
    ranks: int | None = None  # processes the node process starts itself; absent: one for each slot
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    environment: dict[str, str] = {}
    grace_seconds: float = 60.0
    hang_seconds: float = 600.0

    def write(self, path: pathlib.Path) -> None:
        """Write the document where ranks will find it, readable by this user alone (it may hold a token)."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self.model_dump_json())

    @staticmethod
    def read(path: pathlib.Path) -> NodeSpec:
        return NodeSpec.model_validate(json.loads(path.read_text()))
