"""Experiments with trials, metrics and checkpoints in a master's database, for tests of what the API shows of them."""

from __future__ import annotations

import pathlib
from typing import Any

import sqlalchemy as sa

from determined import config as configs
from determined import storage
from determined.master.api.doorkeeper import hash_of, new_token
from determined.master.lifecycle import experiments, runs
from determined.master.lifecycle.reports import ingest
from determined.master.records import Experiment
from determined.master.store import tables
from determined.master.store.database import Tx
from determined.wire.reports import ReportBatch
from determined.wire.requests import RegisterRun
from tests.unit.master.api.serving import Master

CONFIG = """\
name: digits
entrypoint: python train.py
hyperparameters:
  lr: 0.1
searcher:
  name: single
  metric: loss
  max_length: {batches: 10}
"""


def submit(master: Master, config: str = CONFIG, token: str | None = "owner", **more: Any) -> dict[str, Any]:
    """An experiment that was submitted, paused so that nothing of it runs."""
    created = master.make("POST", "/experiments", token, config=config, paused=True, **more)
    found: dict[str, Any] = created["experiment"]
    return found


class Run:
    """A run that no master started, which reports past the API."""

    def __init__(self, master: Master, name: str = "run", **asked: Any) -> None:
        self.master = master
        self.sent = 0

        self.token = new_token()

        def register(tx: Tx) -> runs.Run:
            return runs.register(tx, RegisterRun(name=name, **asked), 1, is_admin=True, token_hash=hash_of(self.token))

        self.run = master.write(register)
        self.trial_id = self.run.trial.id
        self.experiment_id = self.run.trial.experiment_id

    def report(self, *reports: dict[str, Any]) -> None:
        """Lines of its spool."""
        batch = {
            "run_epoch": self.run.allocation.run_epoch,
            "source": "chief",
            "first": self.sent,
            "reports": [*reports],
        }
        self.master.write(ingest, self.run.allocation.id, ReportBatch.model_validate(batch))
        self.sent += len(reports)

    def metrics(self, steps: int, group: str = "validation", **metrics: Any) -> None:
        self.report(
            {"kind": "metrics", "group": group, "steps_completed": steps, "metrics": metrics, "time": 1000.0 + steps}
        )

    def checkpoint(self, steps: int, files: dict[str, bytes], root: pathlib.Path | None = None) -> str:
        """A checkpoint with these files, in the master's own storage or in another folder."""
        place = root or self.master.settings.checkpoints_dir
        staged = storage.FolderStorage(place).begin()
        for path, content in files.items():
            (staged.path / path).parent.mkdir(parents=True, exist_ok=True)
            (staged.path / path).write_bytes(content)
        uuid = staged.publish()
        self.report(
            {
                "kind": "checkpoint",
                "uuid": uuid,
                "steps_completed": steps,
                "metadata": {"steps_completed": steps},
                "resources": {path: len(content) for path, content in files.items()},
                "storage": {"type": "directory", "container_path": str(place)} if root else None,
                "time": 1000.0 + steps,
            }
        )
        return uuid


def many(master: Master, count: int, name: str = "many") -> list[Experiment]:
    """So many paused experiments at once."""
    config = configs.load({"name": name, "entrypoint": "x", "searcher": {"name": "single", "metric": "loss"}})

    def create(tx: Tx) -> list[Experiment]:
        return [
            experiments.create(tx, experiments.NewExperiment(config=config, user_id=1, paused=True, seed=number))
            for number in range(count)
        ]

    return master.write(create)


def crowd(master: Master, count: int) -> None:
    """So many copies of one experiment, as rows: quicker than to make them."""
    (first,) = many(master, 1)

    def copy(tx: Tx) -> None:
        table = tables.experiments
        row = dict(tx.execute(sa.select(table).where(table.c.id == first.id)).mappings().one())
        del row["id"]
        tx.execute(sa.insert(table), [{**row, "name": f"copy {number}"} for number in range(count - 1)])

    master.write(copy)
