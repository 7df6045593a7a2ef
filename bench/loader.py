"""What a batch costs: torch's own loader, ours over the same data, and the ratio of a whole training step.

Run ``python -m bench.loader``; one thread, medians of interleaved repeats.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.data
from torch import nn

from determined.pytorch.batches import training_batches
from determined.pytorch.data import DataLoader

SAMPLES, BATCH_SIZE, BATCHES, REPEATS = 32_000, 32, 200, 15

Source = Callable[[], Iterator[Any]]


class OneByOne(torch.utils.data.Dataset[Any]):
    """The samples under a class that nothing is known of: the general path."""

    def __init__(self, dataset: torch.utils.data.TensorDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def stock(dataset: Any) -> Iterator[Any]:
    """A plain loop over torch's loader, epoch after epoch."""
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True)
    return itertools.chain.from_iterable(iter(loader) for _ in itertools.count())


def ours(dataset: Any, batch_size: int = BATCH_SIZE, **arguments: Any) -> Iterator[Any]:
    """What the trainer's loop draws from."""
    arguments = arguments or {"shuffle": True}
    return iter(training_batches(DataLoader(dataset, batch_size=batch_size, **arguments), seed=1))


def loading(source: Iterator[Any]) -> Callable[[], None]:
    """Fetch the chunk and do nothing with it."""

    def run() -> None:
        fetch = source.__next__
        for _ in range(BATCHES):
            fetch()

    return run


def training(source: Iterator[Any]) -> Callable[[], None]:
    """Fetch and train: MLP 32-64-10, SGD."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_of = nn.CrossEntropyLoss()

    def run() -> None:
        fetch = source.__next__
        for _ in range(BATCHES):
            inputs, labels = fetch()
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(model(inputs), labels))
            optimizer.step()

    return run


def time_interleaved(runs: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Microseconds a batch of each run in every round; all runs share each round's noise."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for round_number in range(REPEATS + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if round_number:
                times[name].append((time.perf_counter() - began) / BATCHES * 1e6)
    return times


def show(title: str, times: dict[str, list[float]]) -> None:
    """One line a run: its median, and its ratio to the first run, round by round."""
    print(title)
    first = next(iter(times.values()))
    for name, measured in times.items():
        ratio = statistics.median(one / other for one, other in zip(measured, first, strict=True))
        print(f"  {name:<42}{statistics.median(measured):>9.1f} µs{ratio:>8.3f} x")


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = torch.utils.data.TensorDataset(torch.randn(SAMPLES, 32), torch.randint(0, 10, (SAMPLES,)))
    one_by_one = OneByOne(table)
    weights = torch.utils.data.WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)
    show(
        f"loading {BATCH_SIZE} samples",
        time_interleaved(
            {
                "torch, TensorDataset": loading(stock(table)),
                "torch, any dataset": loading(stock(one_by_one)),
                "ours, any dataset": loading(ours(one_by_one)),
                "ours, TensorDataset": loading(ours(table)),
                "ours, TensorDataset, batches of 30": loading(ours(table, batch_size=30)),
                "ours, TensorDataset, weighted sampler": loading(ours(table, sampler=weights)),
                "ours, a list of ready batches": loading(iter(training_batches([None] * 1000, seed=1))),
            }
        ),
    )
    show(
        "loading and training a step",
        time_interleaved(
            {
                "torch's loader": training(stock(table)),
                "ours, any dataset": training(ours(one_by_one)),
                "ours, TensorDataset": training(ours(table)),
            }
        ),
    )


if __name__ == "__main__":
    main()
