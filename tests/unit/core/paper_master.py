"""A hand that writes NodeSpecs as a master would, with no master there: what the run says is read from its spool."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from determined.wire import reports
from determined.wire.node_spec import MasterSpec, NodeSpec, TrialSpec


class PaperMaster:
    """Writes NodeSpecs as a master would, one for each attempt, and reads what the attempts wrote."""

    def __init__(self, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.run_folder = folder / "runs" / "trial-7"
        self.storage = folder / "checkpoints"
        self._monkeypatch = monkeypatch
        self.url = "http://127.0.0.1:9"
        self._epoch = 0
        (folder / "code").mkdir()
        (folder / "code" / "train.py").write_text("print(1)\n")

    def assign(self, config: dict[str, Any] | None = None, task_type: str = "TRIAL", **trial: Any) -> None:
        """The next attempt."""
        self._epoch += 1
        latest = trial.pop("latest_checkpoint", None)
        self.allocation = self.folder / "allocations" / f"trial-7.{self._epoch}"
        self.allocation.mkdir(parents=True)
        spec = NodeSpec(
            name="digits",
            run_id="trial-7",
            run_folder=self.run_folder,
            code_folder=self.folder / "code",
            config={"name": "digits", **(config or {})},
            trial=TrialSpec(**{"trial_id": 7, "experiment_id": 3, "seed": 11, "hparams": {"lr": 0.5}, **trial})
            if task_type == "TRIAL"
            else None,
            latest_checkpoint=latest,
            master=MasterSpec(
                url=self.url,
                cluster_id="here",
                session_token="secret",
                allocation_id=f"trial-7.{self._epoch}",
                run_epoch=self._epoch,
                task_id="trial-7",
                task_type=task_type,
                slot_ids=[0],
            ),
            allocation_folder=self.allocation,
            checkpoint_storage={"type": "directory", "container_path": str(self.storage)},
        )
        spec.write(self.allocation / "spec.json")
        self._monkeypatch.setenv("DET_NODE_SPEC", str(self.allocation / "spec.json"))

    @property
    def raw(self) -> list[dict[str, Any]]:
        spool = self.allocation / "chief.spool"
        return [json.loads(line) for line in spool.read_text().splitlines()] if spool.exists() else []

    @property
    def heard(self) -> list[Any]:
        """What this attempt said, as the master reads it."""
        text = json.dumps({"run_epoch": 1, "source": "chief", "first": 0, "reports": self.raw})
        return list(reports.ReportBatch.model_validate_json(text).reports)

    def of(self, kind: type[Any]) -> list[Any]:
        return [report for report in self.heard if isinstance(report, kind)]
