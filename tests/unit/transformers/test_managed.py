"""The Trainer under a master: reported, left at a target, preempted and taken up with the same result."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from determined import core
from determined.wire import reports
from tests.unit.core.paper_master import PaperMaster
from tests.unit.transformers import tiny

CONFIG = {"searcher": {"name": "single", "metric": "eval_loss", "max_length": {"batches": 12}}}


@pytest.fixture
def master(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> PaperMaster:
    (tmp_path / "state").mkdir()
    return PaperMaster(tmp_path / "state", monkeypatch)


def train(output: pathlib.Path, **given: Any) -> str:
    """The weights at the end; each attempt has a folder of its own, as on another machine."""
    with core.init() as context:
        trainer, _ = tiny.train(context, output, max_steps=12, eval_strategy="steps", eval_steps=4, **given)
        return tiny.digest(trainer.model)


@pytest.mark.parametrize(("target", "unit"), [(6, "batches"), (1, "epochs"), (48, "records")])
def test_it_leaves_at_the_target_and_goes_on_from_there(
    master: PaperMaster, tmp_path: pathlib.Path, target: int, unit: str
) -> None:
    master.assign(CONFIG)
    undisturbed = train(tmp_path / "whole")
    master.run_folder = master.folder / "runs" / "trial-8"
    master.assign(CONFIG, target=target, target_unit=unit)
    train(tmp_path / "first")
    cut = master.of(reports.CheckpointReport)[-1]
    assert cut.steps_completed == 6
    validated = [each.steps_completed for each in master.of(reports.MetricsReport) if each.group == "validation"]
    assert validated == [4, 6]
    assert master.of(reports.ProgressReport)[-1].progress == pytest.approx(0.5)
    master.assign(CONFIG, latest_checkpoint=cut.uuid, steps_completed=6)
    assert train(tmp_path / "second") == undisturbed
    assert master.of(reports.CheckpointReport)[-1].steps_completed == 12
    assert master.of(reports.ProgressReport)[-1].progress == 1.0
