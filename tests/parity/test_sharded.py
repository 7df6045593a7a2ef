"""A model sharded over ranks trains as a whole one does, and its checkpoints load on any number of ranks."""

from __future__ import annotations

import os
import pathlib
import signal
from typing import Any

import pytest
import torch
from torch import nn

from determined import pytorch
from tests.parity import trials
from tests.parity.forks import Child, free_port, rank_environment


class Stack(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext, strategy: str, stop_after: int | None) -> None:
        self.context = context
        self.stop_after = stop_after
        blocks = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
        self.model = context.wrap_model(blocks, strategy=strategy)
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.01))
        generator = torch.Generator().manual_seed(0)
        self.data = torch.utils.data.TensorDataset(
            torch.randn(64, 8, generator=generator), torch.randint(0, 2, (64,), generator=generator)
        )

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(self.data, self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(self.data, self.context.get_per_slot_batch_size())

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        if self.stop_after == batch_idx + 1 and self.context.distributed.rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    def evaluate_batch(self, batch: Any) -> Any:
        return {"loss": nn.functional.cross_entropy(self.model(batch[0]), batch[1])}


def train(strategy: str, stop_after: int | None, resume: bool, weights: pathlib.Path, aggregation: int) -> None:
    torch.set_num_threads(1)
    with pytorch.init(hparams={"global_batch_size": 8}, name="stack", aggregation_frequency=aggregation) as context:
        trial = Stack(context, strategy, stop_after)
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(16),
            checkpoint_period=pytorch.Batch(6),
            reporting_period=pytorch.Batch(4),
            latest_checkpoint="latest" if resume else None,
        )
        state = {name: _whole(value) for name, value in context.models[0].state_dict().items()}
        if context.distributed.rank == 0:
            torch.save({name.removeprefix("module."): value for name, value in state.items()}, weights)


def _whole(value: Any) -> torch.Tensor:
    whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole


def run(
    folder: pathlib.Path,
    ranks: int,
    strategy: str,
    stop_after: int | None = None,
    resume: bool = False,
    aggregation: int = 1,
) -> Any:
    port = free_port()
    weights = folder / "weights.pt"
    children = [
        Child(
            train,
            strategy,
            stop_after,
            resume,
            weights,
            aggregation,
            environment={
                "DET_RUNS_DIR": str(folder / "runs"),
                **(rank_environment(rank, ranks, port) if ranks > 1 else {}),
            },
            log=folder / f"log{rank}.txt",
        )
        for rank in range(ranks)
    ]
    codes = [child.wait() for child in children]
    assert codes == [0] * ranks, "\n".join(path.read_text()[-3000:] for path in folder.glob("log*.txt"))
    return torch.load(weights, weights_only=True)


def close(first: Any, second: Any) -> bool:
    return all(torch.allclose(first[name], second[name], atol=1e-6) for name in first)


@pytest.mark.slow
def test_sharded_training_equals_replicated_training_and_resumes_exactly(tmp_path: pathlib.Path) -> None:
    for name in ("ddp", "whole", "broken"):
        (tmp_path / name).mkdir()
    replicated = run(tmp_path / "ddp", 2, "ddp")
    sharded = run(tmp_path / "whole", 2, "fsdp")
    assert close(replicated, sharded)
    run(tmp_path / "broken", 2, "fsdp", stop_after=9)
    resumed = run(tmp_path / "broken", 2, "fsdp", resume=True)
    assert trials.digest(resumed) == trials.digest(sharded)


@pytest.mark.slow
def test_a_sharded_checkpoint_goes_on_with_another_number_of_ranks(tmp_path: pathlib.Path) -> None:
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    whole = run(tmp_path / "whole", 2, "fsdp")
    run(tmp_path / "broken", 2, "fsdp", stop_after=9)
    alone = run(tmp_path / "broken", 1, "fsdp", resume=True)
    assert close(whole, alone)


@pytest.mark.slow
def test_sharded_gradients_that_were_accumulating_when_it_stopped_are_not_lost(tmp_path: pathlib.Path) -> None:
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    whole = run(tmp_path / "whole", 2, "fsdp", aggregation=4)
    run(tmp_path / "broken", 2, "fsdp", stop_after=9, aggregation=4)  # leaves after batch 10 or so, of 12
    resumed = run(tmp_path / "broken", 2, "fsdp", resume=True, aggregation=4)
    assert trials.digest(resumed) == trials.digest(whole)
