"""Batch inference does every batch once, whoever shares the work and whatever interrupts it."""

from __future__ import annotations

import doctest
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from determined import errors
from determined.pytorch import experimental
from determined.pytorch.experimental import batch_process
from tests.parity.forks import Child, free_port, rank_environment

RECORDS = torch.arange(50)


class Recorder(experimental.TorchBatchProcessor):
    """Writes down each batch it is given, at once, and dies or asks to stop where the test says."""

    log = pathlib.Path()
    dies_at = -1
    stops_at = -1

    def __init__(self, context: experimental.TorchBatchProcessorContext) -> None:
        super().__init__(context)
        self.sum = 0

    def process_batch(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if batch_idx == self.stops_at:
            assert self.context.core_context is not None
            self.context.core_context.preempt.ask("the test asks")
        self.sum += int(batch.sum())
        note(self.log, f"{batch_idx} rank={self.context.get_distributed_rank()} {batch.tolist()}")

    def on_checkpoint_start(self) -> None:
        note(self.log, "checkpoint")

    def on_finish(self) -> None:
        note(self.log, f"finish sum={self.sum}")


class Remembering(Recorder):
    def state_dict(self) -> dict[str, Any]:
        return {"sum": self.sum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sum = state["sum"]


def note(log: pathlib.Path, line: str) -> None:
    # One write with O_APPEND, so that ranks do not tear each other's lines.
    with open(log, "ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


@pytest.fixture(autouse=True)
def log(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    monkeypatch.setattr(Recorder, "log", tmp_path / "log")
    yield tmp_path / "log"


def done(log: pathlib.Path) -> list[int]:
    return [int(line.split()[0]) for line in log.read_text().splitlines() if line[0].isdigit()]


def process(processor: type[Recorder] = Recorder, records: torch.Tensor = RECORDS, **options: Any) -> None:
    experimental.torch_batch_process(processor, records, **{"batch_size": 4, **options})


def on_ranks(size: int, tmp_path: pathlib.Path, **options: Any) -> list[int]:
    """Process in forked ranks; their exit codes."""
    port = free_port()
    ranks = [
        Child(
            lambda: process(**options),
            environment=rank_environment(rank, size, port),
            log=tmp_path / f"out-{rank}",
        )
        for rank in range(size)
    ]
    return [rank.wait() for rank in ranks]


def test_the_documented_example_runs() -> None:
    assert doctest.testmod(batch_process).failed == 0


def test_batches_come_in_the_datasets_order_with_a_checkpoint_at_each_interval(log: pathlib.Path) -> None:
    process(batch_size=None, dataloader_kwargs={"batch_size": 20}, checkpoint_interval=2)
    assert log.read_text().splitlines() == [
        f"0 rank=0 {list(range(20))}",
        f"1 rank=0 {list(range(20, 40))}",
        "checkpoint",
        f"2 rank=0 {list(range(40, 50))}",
        "checkpoint",
        f"finish sum={sum(range(50))}",
    ]


def test_max_batches_counts_from_the_beginning(log: pathlib.Path) -> None:
    process(max_batches=3)
    assert done(log) == [0, 1, 2]


def test_batch_k_goes_to_rank_k_modulo_the_ranks(log: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert on_ranks(2, tmp_path) == [0, 0], (tmp_path / "out-0").read_text()
    lines = sorted(
        (line for line in log.read_text().splitlines() if line[0].isdigit()), key=lambda x: int(x.split()[0])
    )
    expected = [f"{k} rank={k % 2} {RECORDS[k * 4 : k * 4 + 4].tolist()}" for k in range(13)]
    assert lines == expected


def test_after_a_kill_nothing_that_was_saved_is_done_again(log: pathlib.Path, tmp_path: pathlib.Path) -> None:
    Remembering.dies_at = 8
    try:
        child = Child(lambda: process(Remembering, checkpoint_interval=3), environment={}, log=tmp_path / "out")
        assert child.wait() == -signal.SIGKILL
    finally:
        Remembering.dies_at = -1
    assert done(log) == list(range(8))
    log.unlink()
    process(Remembering, checkpoint_interval=3, latest_checkpoint="latest")
    assert done(log) == list(range(6, 13))
    assert log.read_text().endswith(f"finish sum={sum(range(50))}\n"), "state_dict() brings the sum along"


def test_other_ranks_go_on_where_some_left(
    log: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = torch.arange(1200)  # enough that the ranks have agreed to stop long before the last
    monkeypatch.setattr(Recorder, "stops_at", 4)
    assert on_ranks(2, tmp_path, records=records) == [0, 0]
    first = done(log)
    assert first and "finish" not in log.read_text()
    monkeypatch.setattr(Recorder, "stops_at", -1)
    ended = on_ranks(3, tmp_path, records=records, latest_checkpoint="latest")
    assert ended == [0, 0, 0], (tmp_path / "out-0").read_text()
    assert sorted(done(log)) == list(range(300))
    assert log.read_text().count("finish") == 3


def test_asked_to_stop_it_saves_and_leaves_without_finishing(
    log: pathlib.Path, monkeypatch: pytest.MonkeyPatch, runs_dir: pathlib.Path
) -> None:
    monkeypatch.setattr(Recorder, "stops_at", 6)
    process(checkpoint_interval=100)
    assert done(log) == list(range(7))
    assert log.read_text().endswith("checkpoint\n")
    monkeypatch.setenv("DET_LATEST_CHECKPOINT", "latest")
    monkeypatch.setattr(Recorder, "stops_at", -1)
    process()
    assert done(log) == list(range(13))
    assert len(list(runs_dir.iterdir())) == 1


def test_a_finished_run_started_again_only_finishes(log: pathlib.Path) -> None:
    process()
    log.unlink()
    process(latest_checkpoint="latest")
    assert log.read_text() == "finish sum=0\n"


def test_one_checkpoint_of_the_progress_is_kept(runs_dir: pathlib.Path) -> None:
    process(checkpoint_interval=2)
    assert len(list(next(runs_dir.iterdir()).glob("checkpoints/*-*"))) == 1


def test_uploaded_files_appear_whole_or_not_at_all() -> None:
    class Writer(Recorder):
        def process_batch(self, batch: Any, batch_idx: int) -> None:
            with self.context.upload_path() as path:
                (path / "deep").mkdir()
                (path / "deep" / f"{batch_idx}").write_text("whole")
            with pytest.raises(OSError, match="no more"), self.context.upload_path() as path:
                (path / "half").write_text("")
                raise OSError("no more")

        def on_finish(self) -> None:
            output = self.context.output
            assert [each.relative_to(output).as_posix() for each in sorted(output.rglob("*"))] == [
                "deep",
                "deep/0",
                "deep/1",
            ]

    process(Writer, max_batches=2)


def test_the_context_prepares_models_and_batches() -> None:
    class Model(Recorder):
        def process_batch(self, batch: Any, batch_idx: int) -> None:
            model = self.context.prepare_model_for_inference(torch.nn.Linear(4, 1))
            assert not model.training
            moved = self.context.to_device({"x": batch.float()})
            assert moved["x"].device == self.context.device
            self.context.report_metrics("inference", batch_idx + 1, {"loss": model(moved["x"]).item()})

    process(Model, max_batches=1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"checkpoint_interval": 0}, "checkpoint_interval must be at least 1"),
        ({"max_batches": 0}, "max_batches must be at least 1"),
        ({"dataloader_kwargs": {"shuffle": True}}, "must leave out shuffle"),
        ({"dataloader_kwargs": {"batch_size": 2}}, "batch_size is given twice"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        process(**options)


def test_a_dataset_without_a_length_is_refused() -> None:
    class Endless(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 1

    with pytest.raises(errors.InvalidExperimentException, match="a dataset with a length and an index, not Endless"):
        experimental.torch_batch_process(Recorder, Endless())


def test_progress_of_other_work_is_refused(log: pathlib.Path) -> None:
    process()
    with pytest.raises(errors.InvalidCheckpointException, match=r"50 records in batches of 4, and now .* batches of 5"):
        process(batch_size=5, latest_checkpoint="latest")


def test_a_processors_state_belongs_to_a_number_of_ranks(tmp_path: pathlib.Path) -> None:
    process(Remembering, max_batches=3)
    assert on_ranks(2, tmp_path, processor=Remembering, latest_checkpoint="latest") == [1, 1]
    assert "state for each of 1 ranks, and now there are 2" in (tmp_path / "out-0").read_text()
