"""Training that a master started is the training of a plain script, bit for bit, however often it was stopped."""

from __future__ import annotations

import os
import pathlib
import signal
from typing import Any

import pytest
import torch
from torch import nn

from determined import pytorch
from determined.core.run_folder import RunFolder, runs_in
from determined.pytorch import experimental
from determined.wire import reports
from tests.unit.core.paper_master import PaperMaster

CONFIG = {
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 24}},
    "reproducibility": {"experiment_seed": 11},
}
HPARAMS = {"lr": 0.05}


class Noise(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        x = torch.tensor([index / 48, (index * 7 % 48) / 48])
        return x, x.sum()[None]


class Small(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        layers = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Linear(4, 1))
        self.model = context.wrap_model(layers)
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=context.get_hparam("lr")))

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(Noise(), batch_size=4, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(Noise(), batch_size=8)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        data, labels = batch
        loss = nn.functional.mse_loss(self.model(data), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:
        data, labels = batch
        return {"loss": nn.functional.mse_loss(self.model(data), labels)}


class StoppedAt(Small):
    """Is told to stop in the middle of a batch."""

    at = 9

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        if batch_idx == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().train_batch(batch, epoch_idx, batch_idx)


@pytest.fixture
def master(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> PaperMaster:
    (tmp_path / "state").mkdir()
    return PaperMaster(tmp_path / "state", monkeypatch)


def train(trial_class: type[Small] = Small, **init: Any) -> bytes:
    """What ``python -m determined.pytorch`` does; the weights at the end."""
    with pytorch.init(**init) as context:
        trial = trial_class(context)
        pytorch.Trainer(trial, context).fit(validation_period=pytorch.Batch(6), reporting_period=pytorch.Batch(4))
        return b"".join(p.detach().numpy().tobytes() for p in trial.model.parameters())


def rows_of(run: RunFolder) -> list[tuple[Any, ...]]:
    return [(row["group"], row["steps_completed"], row["metrics"]) for row in run.rows()]


def metrics_in(heard: list[Any]) -> list[tuple[Any, ...]]:
    wanted = [report for report in heard if isinstance(report, reports.MetricsReport)]
    return [(report.group, report.steps_completed, report.metrics) for report in wanted]


@pytest.fixture
def unmanaged(runs_dir: pathlib.Path) -> tuple[bytes, list[tuple[Any, ...]]]:
    """The same training by a plain script."""
    weights = train(exp_conf=CONFIG, hparams=HPARAMS)
    (run,) = runs_in(runs_dir)
    return weights, rows_of(run)


def test_the_same_as_a_plain_script(unmanaged: tuple[bytes, list[tuple[Any, ...]]], master: PaperMaster) -> None:
    master.assign(CONFIG, hparams=HPARAMS)
    assert train() == unmanaged[0]
    assert metrics_in(master.heard) == unmanaged[1]
    run = RunFolder.at(master.run_folder)
    assert run is not None and rows_of(run) == unmanaged[1]
    saved = master.of(reports.CheckpointReport)
    assert saved[-1].steps_completed == 24 and saved[-1].resources["state_dict.pth"] > 0
    assert "code/train.py" in saved[-1].resources
    assert master.of(reports.ProgressReport)[-1].progress == 1.0


def test_stopped_and_taken_up_it_is_the_same_training(
    unmanaged: tuple[bytes, list[tuple[Any, ...]]], master: PaperMaster
) -> None:
    master.assign(CONFIG, hparams=HPARAMS)
    train(StoppedAt)
    heard = metrics_in(master.heard)
    cut = master.of(reports.CheckpointReport)[-1]
    assert 10 <= cut.steps_completed < 24
    run = RunFolder.at(master.run_folder)
    assert run is not None and run.label.state == "interrupted"
    master.assign(CONFIG, hparams=HPARAMS, latest_checkpoint=cut.uuid, steps_completed=cut.steps_completed)
    assert train() == unmanaged[0]
    heard = [each for each in heard if each[1] <= cut.steps_completed] + metrics_in(master.heard)
    assert heard == unmanaged[1]


def test_a_crash_is_taken_up_at_the_last_checkpoint(
    unmanaged: tuple[bytes, list[tuple[Any, ...]]], master: PaperMaster
) -> None:
    class Crashes(Small):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 15:
                raise ZeroDivisionError
            return super().train_batch(batch, epoch_idx, batch_idx)

    master.assign(CONFIG, hparams=HPARAMS)
    with pytest.raises(ZeroDivisionError):
        train(Crashes)
    heard = metrics_in(master.heard)
    cut = master.of(reports.CheckpointReport)[-1]
    assert cut.steps_completed == 12
    master.assign(CONFIG, hparams=HPARAMS, latest_checkpoint=cut.uuid, steps_completed=cut.steps_completed)
    assert train() == unmanaged[0]
    heard = [each for each in heard if each[1] <= cut.steps_completed] + metrics_in(master.heard)
    assert heard == unmanaged[1]
    run = RunFolder.at(master.run_folder)
    assert run is not None and rows_of(run) == unmanaged[1]


@pytest.mark.parametrize(
    ("target", "stops_at"),
    [
        ({"target": 8}, 8),
        ({"target": 1, "target_unit": "epochs"}, 12),
        ({"target": 12.5, "target_unit": "batches"}, 13),
        ({"target": 100}, 24),
    ],
)
def test_a_target_is_left_with_a_validation_and_a_checkpoint(
    unmanaged: tuple[bytes, list[tuple[Any, ...]]], master: PaperMaster, target: dict[str, Any], stops_at: int
) -> None:
    master.assign(CONFIG, hparams=HPARAMS, **target)
    train()
    validated = [report.steps_completed for report in master.of(reports.MetricsReport) if report.group == "validation"]
    cut = master.of(reports.CheckpointReport)[-1]
    assert validated[-1] == cut.steps_completed == stops_at
    assert master.of(reports.ProgressReport)[-1].progress == pytest.approx(stops_at / 24)
    run = RunFolder.at(master.run_folder)
    assert run is not None and run.label.state == "completed"
    if stops_at < 24:
        master.assign(CONFIG, hparams=HPARAMS, latest_checkpoint=cut.uuid, steps_completed=stops_at)
        assert train() == unmanaged[0]


def test_a_script_with_a_length_of_its_own_trains_as_long_as_was_submitted(master: PaperMaster) -> None:
    master.assign(CONFIG, hparams=HPARAMS)
    with pytorch.init() as context:
        trial = context.build_trial(Small)
        context.train(trial, max_length=pytorch.Batch(3))
    assert master.of(reports.CheckpointReport)[-1].steps_completed == 24


def test_another_trials_weights_are_a_beginning(master: PaperMaster) -> None:
    master.assign(CONFIG, hparams=HPARAMS, trial_id=1)
    train()
    other = master.of(reports.CheckpointReport)[-1].uuid
    master.run_folder = master.folder / "runs" / "trial-8"
    master.assign(CONFIG, hparams=HPARAMS, latest_checkpoint=other)
    train()
    steps = [report.steps_completed for report in master.of(reports.MetricsReport) if report.group == "training"]
    assert steps[0] == 4 and steps[-1] == 24


class Doubler(experimental.TorchBatchProcessor):
    def __init__(self, context: experimental.TorchBatchProcessorContext) -> None:
        self.context = context

    def process_batch(self, batch: Any, batch_idx: int) -> None:
        with self.context.upload_path() as path:
            (path / f"batch-{batch_idx}").write_text(str(os.environ["DET_NODE_SPEC"]))
        if batch_idx == 3:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_job_of_batches_goes_on_where_it_was(master: PaperMaster) -> None:
    for _ in range(2):
        master.assign(task_type="JOB")
        experimental.torch_batch_process(Doubler, torch.arange(20), batch_size=2, checkpoint_interval=2)
    done = {path.name: path.read_text() for path in master.run_folder.rglob("batch-*")}
    assert len(done) == 10
    assert len(set(done.values())) == 2 and done["batch-3"] != done["batch-4"]


def test_a_job_knows_its_data(master: PaperMaster) -> None:
    master.assign({"data": {"batch_size": 4}}, task_type="JOB")
    with pytorch.init() as context:
        assert context.config_data == {"batch_size": 4}
    assert master.raw == []
