"""The batches of a rank: their order, their random numbers, their continuation, and the end of their workers."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st

from determined import errors
from determined.pytorch import gather, samplers
from determined.pytorch.batches import BatchSource, training_batches, validation_batches
from determined.pytorch.data import DataLoader
from tests.unit.pytorch.test_randomness import streams

# torch warns when there are more workers than cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Noisy(torch.utils.data.Dataset[Any]):
    """Samples that carry their index and draw from all three global streams."""

    def __init__(self, samples: int = 11) -> None:
        self.samples = samples
        self.tag = "the user's own"

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        noise = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.standard_normal()]
        return index, torch.cat([torch.tensor(noise), torch.randn(1)])


class NoisyBatches(Noisy):
    """The same, asked for whole batches."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        shift = random.random()
        return [(index, noise + shift) for index, noise in map(self.__getitem__, indices)]


def noisy_collate(samples: list[Any]) -> Any:
    indices, noise = torch.utils.data.default_collate(samples)
    return {"index": indices, "noise": noise + torch.rand(1) + random.random()}


def plain(value: Any) -> Any:
    """A batch as plain data, with the dtype of each tensor."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.tolist()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def take(source: BatchSource, count: int) -> list[Any]:
    with source:
        return [plain(batch) for batch in itertools.islice(source, count)]


def training(loader: Any, count: int, start: int = 0, rank: int = 0, size: int = 1, seed: int = 3) -> list[Any]:
    return take(training_batches(loader, seed=seed, start_batch=start, rank=rank, size=size), count)


class Bucketed:
    """A user's batch sampler: draws from the global streams as it goes, keeps a state, and lies about its length."""

    def __init__(self, samples: int) -> None:
        self.samples, self.passes = samples, 0

    def __iter__(self) -> Iterator[list[int]]:
        self.passes += 1
        left = torch.randperm(self.samples).tolist()
        while left:
            size = random.randint(1, 3) + self.passes % 2
            yield left[:size]
            left = left[size:]

    def __len__(self) -> int:
        return self.samples


def loaders(samples: int, size: int, drop_last: bool) -> dict[str, Any]:
    """How the order can be asked for, each made afresh on every call."""
    noisy = Noisy(samples)
    indices = range(samples)
    weights = [1.0 + sample for sample in range(samples)]
    data = torch.utils.data
    common: dict[str, Any] = {"batch_size": size, "drop_last": drop_last}
    return {
        "in order": lambda: DataLoader(noisy, **common),
        "shuffled": lambda: DataLoader(noisy, shuffle=True, **common),
        "tensors": lambda: DataLoader(data.TensorDataset(torch.arange(samples)), shuffle=True, **common),
        "weighted": lambda: DataLoader(noisy, sampler=data.WeightedRandomSampler(weights, samples), **common),
        "generator": lambda: DataLoader(
            noisy, sampler=data.RandomSampler(indices, generator=torch.Generator()), **common
        ),
        "numpy shuffle": lambda: DataLoader(
            noisy, sampler=samplers.ReproducibleShuffleSampler(data.SequentialSampler(indices), 4), **common
        ),
        "shuffled twice": lambda: DataLoader(
            noisy, sampler=samplers.ReproducibleShuffleSampler(data.RandomSampler(indices), 4), **common
        ),
        "endless": lambda: DataLoader(
            noisy, batch_sampler=samplers.RepeatBatchSampler(data.BatchSampler(indices, size, drop_last))
        ),
        "torch dealt": lambda: DataLoader(noisy, sampler=data.DistributedSampler(noisy, 2, 1), **common),
        "user's": lambda: DataLoader(noisy, batch_sampler=Bucketed(samples)),
    }


KINDS = list(loaders(3, 1, False))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(samples=st.integers(2, 13), size=st.integers(1, 5), drop_last=st.booleans(), ranks=st.integers(1, 4))
def test_ranks_share_the_order_of_one(kind: str, samples: int, size: int, drop_last: bool, ranks: int) -> None:
    make = loaders(samples, min(size, samples // 2), drop_last)[kind]
    rounds = 7
    whole = training(make(), rounds * ranks)
    shares = [training(make(), rounds, rank=rank, size=ranks) for rank in range(ranks)]
    assert [share[turn] for turn in range(rounds) for share in shares] == whole


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(
    samples=st.integers(2, 13),
    size=st.integers(1, 5),
    drop_last=st.booleans(),
    start=st.integers(0, 40),
    ranks=st.integers(1, 3),
)
def test_a_resumed_run_sees_what_the_undisturbed_one_would_have(
    kind: str, samples: int, size: int, drop_last: bool, start: int, ranks: int
) -> None:
    make = loaders(samples, min(size, samples // 2), drop_last)[kind]
    whole = training(make(), start + 6, rank=ranks - 1, size=ranks)
    torch.rand(3), random.random(), np.random.rand()
    assert training(make(), 6, start, rank=ranks - 1, size=ranks) == whole[start:]


@pytest.mark.parametrize("kind", KINDS)
def test_loading_leaves_the_streams_of_training_alone(kind: str) -> None:
    np.random.seed(1)
    np.random.standard_normal(), random.gauss(0, 1), torch.randn(1)
    before = streams()
    training(loaders(9, 2, False)[kind](), 20)
    take(validation_batches(loaders(9, 2, False)[kind](), seed=3), 3)
    assert streams() == before


def test_every_epoch_has_its_own_order_with_every_sample_once() -> None:
    indices = [index for index, _ in training(DataLoader(Noisy(12), batch_size=4, shuffle=True), 9)]
    epochs = [[i for _, _, values in indices[e * 3 : e * 3 + 3] for i in values] for e in range(3)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_another_seed_is_another_order() -> None:
    loader = DataLoader(Noisy(12), batch_size=4, shuffle=True)
    assert training(loader, 3, seed=1) != training(loader, 3, seed=2)


def test_the_order_does_not_depend_on_how_often_the_loader_was_used() -> None:
    for kind, make in loaders(9, 2, False).items():
        if kind == "user's":
            continue  # Keeps a state that only it knows of.
        loader = make()
        assert training(loader, 7) == training(loader, 7), kind


@pytest.mark.parametrize("dataset", [Noisy(7), NoisyBatches(7)])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_augmentation_does_not_depend_on_workers(dataset: Any, workers: int) -> None:
    common: dict[str, Any] = {"batch_size": 2, "shuffle": True, "collate_fn": noisy_collate}
    expected = training(DataLoader(dataset, **common), 12)
    np.random.standard_normal()
    before = streams()
    loader = DataLoader(dataset, num_workers=workers, **common)
    assert training(loader, 7) == expected[:7]
    assert training(loader, 5, start=7) == expected[7:]
    assert streams() == before
    validated = take(validation_batches(DataLoader(dataset, **common), seed=3), 9)
    assert take(validation_batches(loader, seed=3), 9) == validated
    assert len(validated) == 4


def test_a_users_batch_sampler_does_not_depend_on_workers() -> None:
    expected = training(DataLoader(Noisy(7), batch_sampler=Bucketed(7)), 9)
    before = streams()
    assert training(DataLoader(Noisy(7), batch_sampler=Bucketed(7), num_workers=2), 9) == expected
    assert streams() == before


def test_neighbouring_batches_and_epochs_are_augmented_differently() -> None:
    noise = [tuple(values[2][0]) for _, values in training(DataLoader(Noisy(4), batch_size=2), 8)]
    assert len(set(noise)) == 8


# The whole-batch path.


def tables() -> dict[str, Any]:
    data = torch.utils.data
    torch.manual_seed(0)
    rows = 29
    floats, labels = torch.randn(rows, 16), torch.randint(0, 10, (rows,))
    images = torch.randint(0, 255, (rows, 5, 4, 3), dtype=torch.uint8)
    dataset = data.TensorDataset(floats, labels)
    return {
        "two": dataset,
        "one": data.TensorDataset(floats),
        "kinds": data.TensorDataset(floats.half(), labels.bool(), floats.double(), labels.to(torch.complex64)),
        "empty rows": data.TensorDataset(torch.zeros(rows, 0), labels),
        "images": data.TensorDataset(images, labels.int()),
        "channels last": data.TensorDataset(images.permute(0, 3, 1, 2), labels),
        "expanded": data.TensorDataset(torch.randn(1, 16).expand(rows, 16)),
        "tensor": floats,
        "subset": data.Subset(dataset, [3, 3, -1, 7, 20, 2, 0, 11]),
        "subset of subset": data.Subset(data.Subset(dataset, list(range(5, 25))), range(19, 3, -2)),
    }


class OneByOne(torch.utils.data.Dataset[Any]):
    """The same samples under a class that nothing is known of."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


@pytest.mark.parametrize("name", list(tables()))
@settings(max_examples=12)
@given(
    size=st.sampled_from([1, 2, 3, 4, 8, 16, 64]),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    start=st.integers(0, 9),
    ranks=st.integers(1, 3),
)
def test_a_gathered_batch_is_the_stacked_one(
    name: str, size: int, drop_last: bool, shuffle: bool, start: int, ranks: int
) -> None:
    dataset = tables()[name]
    size = min(size, len(dataset))
    common: dict[str, Any] = {"batch_size": size, "drop_last": drop_last, "shuffle": shuffle}
    assert gather.columns_of(DataLoader(dataset, **common)) is not None
    assert gather.columns_of(DataLoader(OneByOne(dataset), **common)) is None
    where: dict[str, Any] = {"seed": 5, "start_batch": start, "rank": ranks - 1, "size": ranks}
    fast = training_batches(DataLoader(dataset, **common), **where)
    slow = training_batches(DataLoader(OneByOne(dataset), **common), **where)
    for ours, theirs in itertools.islice(zip(fast, slow, strict=True), 25):
        assert type(ours) is type(theirs)
        pairs = [(ours, theirs)] if isinstance(ours, torch.Tensor) else list(zip(ours, theirs, strict=True))
        for one, other in pairs:
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            assert torch.equal(one, other)
            # Sums may depend on alignment: a batch must lie in memory as one of its own would.
            assert one.numel() == 0 or one.data_ptr() % 64 == 0
            if len(one) > 1:
                assert one.stride() == other.stride()


def test_a_gathered_batch_is_the_users_to_edit() -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(64.0).view(64, 1).repeat(1, 16))
    untouched = dataset.tensors[0].clone()
    source = training_batches(DataLoader(dataset, batch_size=4), seed=1)
    weight = torch.ones(16, requires_grad=True)
    losses = []
    for turn in range(16):
        (batch,) = next(source)
        assert not batch._is_view()
        # Kept for backward while later batches are edited: no edit may be taken for one of this batch.
        batch.mul_(2).add_(1)
        assert torch.equal(batch, untouched[turn * 4 : turn * 4 + 4] * 2 + 1)
        losses.append((batch * weight).sum())
    torch.autograd.backward(torch.stack(losses).sum())
    (batch,) = next(source)
    batch.mul_(weight)
    assert batch.requires_grad
    assert torch.equal(dataset.tensors[0], untouched)


def test_an_edit_of_the_dataset_is_seen_by_the_next_batch() -> None:
    # As by a stock loader: memory banks and pseudo-labels are trained this way.
    dataset = torch.utils.data.TensorDataset(torch.zeros(64, 16))
    source = training_batches(DataLoader(dataset, batch_size=4), seed=1)
    for turn in range(40):
        (batch,) = next(source)
        assert batch.tolist() == [[float(turn)] * 16] * 4
        dataset.tensors[0].add_(1)
    next_epoch = torch.full((64, 16), -1.0)
    dataset.tensors = (next_epoch,)
    rest = [next(source)[0][0, 0].item() for _ in range(9)]
    assert rest[-1] == -1.0


@pytest.mark.parametrize(
    "dataset",
    [
        torch.utils.data.TensorDataset(torch.zeros(4, 2, requires_grad=True)),
        torch.utils.data.TensorDataset(torch.zeros(4, 2).to_sparse()),
        torch.utils.data.TensorDataset(torch.zeros(4, 2, dtype=torch.cfloat).conj()),
        torch.utils.data.Subset(torch.utils.data.TensorDataset(torch.zeros(4, 2)), [0, 9]),
        torch.utils.data.Subset(torch.utils.data.TensorDataset(torch.zeros(4, 2)), []),
        type("Own", (torch.utils.data.TensorDataset,), {})(torch.zeros(4, 2)),
        [torch.zeros(2)] * 4,
    ],
)
def test_what_is_not_plain_is_made_sample_by_sample(dataset: Any) -> None:
    assert gather.columns_of(DataLoader(dataset)) is None


def test_a_users_collate_function_is_called() -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(4))
    assert training(DataLoader(dataset, batch_size=2, collate_fn=len), 3) == [2, 2, 2]


def test_an_index_out_of_range_is_the_datasets_own_error() -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(4))
    source = training_batches(DataLoader(dataset, sampler=[0, -1, 9]), seed=1)
    assert [next(source)[0].item(), next(source)[0].item()] == [0, 3]
    with pytest.raises(IndexError, match="out of bounds"):
        next(source)


def test_streams_are_put_aside_only_where_something_may_draw() -> None:
    data = torch.utils.data
    table: Any = data.TensorDataset(torch.zeros(4, 2))
    rows: Any = [(torch.zeros(1), 1)] * 4
    still: list[Any] = [table, rows, data.ConcatDataset([table, table]), data.StackDataset(a=table, b=rows)]
    for dataset in [*still, data.Subset(data.ConcatDataset(still[:2]), [1, 2])]:
        assert gather.draws_nothing(DataLoader(dataset))
        assert not gather.draws_nothing(DataLoader(dataset, collate_fn=noisy_collate))
    mixed: list[Any] = [Noisy(), data.ConcatDataset([table, Noisy()]), data.StackDataset(table, Noisy(4))]
    for dataset in mixed:
        assert not gather.draws_nothing(DataLoader(dataset))
    assert len(training(DataLoader(still[2], batch_size=3), 7)) == 7


# Lengths, shares and emptiness.


@pytest.mark.parametrize(("ranks", "lengths"), [(1, [5]), (2, [3, 2]), (3, [2, 2, 1])])
def test_an_epochs_length_is_that_of_the_ranks_share(ranks: int, lengths: list[int]) -> None:
    loader = DataLoader(Noisy(9), batch_size=2)
    assert [training_batches(loader, seed=1, rank=r, size=ranks).epoch_len for r in range(ranks)] == lengths
    found = [len(take(validation_batches(loader, seed=1, rank=r, size=ranks), 99)) for r in range(ranks)]
    assert found == lengths


def test_validation_is_one_pass_and_every_pass_is_the_same() -> None:
    loader = DataLoader(Noisy(9), batch_size=2, shuffle=True)
    first = take(validation_batches(loader, seed=1), 99)
    assert len(first) == 5
    assert take(validation_batches(loader, seed=1), 99) == first
    assert take(validation_batches(DataLoader(Noisy(2), batch_size=4, drop_last=True), seed=1), 9) == []


class Nothing:
    def __iter__(self) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize(
    "loader",
    [
        [],
        (),
        Nothing(),
        DataLoader(Noisy(2), batch_size=4, drop_last=True),
        DataLoader(Noisy(2), batch_sampler=[]),
        torch.utils.data.DataLoader(Noisy(2), batch_size=4, drop_last=True),
    ],
)
def test_no_data_is_an_error_and_not_a_wait(loader: Any) -> None:
    with pytest.raises(errors.InvalidExperimentException, match="gives no batch"):
        next(training_batches(loader, seed=1))


def test_a_thing_that_cannot_be_iterated_is_refused() -> None:
    for make in (training_batches, validation_batches):
        with pytest.raises(errors.InvalidExperimentException, match="iterable, not int"):
            make(3, seed=1)


# Foreign loaders.


class NoisyStream(torch.utils.data.IterableDataset[Any]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        shift = random.random()
        for index in range(self.samples):
            yield index, shift + float(torch.randn(1)) + np.random.standard_normal()


def foreign(kind: str) -> Any:
    data = torch.utils.data
    if kind == "list":
        return [torch.tensor(index) for index in range(5)]
    if kind == "map":
        return data.DataLoader(Noisy(9), batch_size=2, shuffle=True)
    if kind == "map with generator":
        return data.DataLoader(Noisy(9), batch_size=2, shuffle=True, generator=torch.Generator())
    if kind == "map with workers":
        return data.DataLoader(Noisy(9), batch_size=2, shuffle=True, num_workers=2)
    if kind == "map with lasting workers":
        return data.DataLoader(Noisy(9), batch_size=2, num_workers=1, persistent_workers=True)
    if kind == "torch dealt":
        return data.DataLoader(Noisy(9), batch_size=2, sampler=data.DistributedSampler(Noisy(9), 1, 0))
    return data.DataLoader(NoisyStream(9), batch_size=2)


FOREIGN = ["list", "map", "map with generator", "map with workers", "map with lasting workers", "torch dealt", "stream"]


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("start", [0, 3, 5, 12])
def test_a_foreign_loader_goes_round_and_is_continued(kind: str, start: int) -> None:
    np.random.standard_normal()
    before = streams()
    whole = training(foreign(kind), start + 6)
    assert len(whole) == start + 6
    assert streams() == before
    torch.rand(3), random.random(), np.random.rand()
    before = streams()
    assert training(foreign(kind), 6, start) == whole[start:]
    assert streams() == before


def test_foreign_epochs_differ_in_their_order() -> None:
    for kind in ("map", "map with generator", "torch dealt"):
        batches = training(foreign(kind), 10)
        assert [index for index, _ in batches[:5]] != [index for index, _ in batches[5:]], kind


def test_lengths_of_foreign_loaders() -> None:
    assert training_batches(foreign("list"), seed=1).epoch_len == 5
    assert training_batches(foreign("map"), seed=1).epoch_len == 5
    assert training_batches(foreign("stream"), seed=1).epoch_len is None
    assert validation_batches(foreign("list"), seed=1).epoch_len == 5


def test_a_user_who_skips_himself_is_left_alone() -> None:
    source = training_batches([0, 1, 2, 3], seed=1, start_batch=3, fast_forward=False)
    assert next(source) == 0


def test_a_foreign_loader_is_validated_once() -> None:
    assert take(validation_batches([1, 2, 3], seed=1), 9) == [1, 2, 3]
    assert len(take(validation_batches(foreign("map"), seed=1), 9)) == 5
    loader = foreign("map with lasting workers")
    first = take(validation_batches(loader, seed=1), 9)
    assert take(validation_batches(loader, seed=1), 9) == first
    assert len(training(loader, 7)) == 7
    assert not multiprocessing.active_children()
    assert len(training(loader, 7)) == 7


def test_an_iterator_that_ends_cannot_be_started_again() -> None:
    source = training_batches(iter([1, 2]), seed=1)
    assert [next(source), next(source)] == [1, 2]
    with pytest.raises(errors.InvalidExperimentException, match="iterator cannot be started again"):
        next(source)


def test_a_length_that_is_not_true_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Liar:
        def __len__(self) -> int:
            return 5

        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    assert training(Liar(), 7) == [0, 1, 2, 0, 1, 2, 0]
    assert len(caplog.records) == 1
    assert "length is 5 but it gave 3" in caplog.text


# Workers and their end.


class Stuck(torch.utils.data.Dataset[int]):
    """Loads its first batch at once and never comes back from the others."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        if index > 0:
            threading.Event().wait()
        return index


class Broken(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 4:
            raise LookupError(f"no picture numbered {index}")
        return index


def test_closing_does_not_wait_for_a_busy_worker() -> None:
    source = training_batches(DataLoader(Stuck(), num_workers=2), seed=1)
    next(source)
    began = time.monotonic()
    source.close()
    assert time.monotonic() - began < 3
    assert not multiprocessing.active_children()
    assert list(source) == []
    source.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_the_dataset_is_the_users_own(workers: int) -> None:
    with pytest.raises(LookupError, match="no picture numbered 4") as raised:
        with training_batches(DataLoader(Broken(), batch_size=2, num_workers=workers), seed=1) as source:
            for _ in range(6):
                next(source)
    assert workers == 0 or "__getitem__" in str(raised.value)
    assert not multiprocessing.active_children()


def test_an_exception_while_training_leaves_no_worker() -> None:
    for loader in (DataLoader(Noisy(), num_workers=2), torch.utils.data.DataLoader(Noisy(), num_workers=2)):
        with pytest.raises(ZeroDivisionError), training_batches(loader, seed=1) as source:
            next(source)
            raise ZeroDivisionError
        assert not multiprocessing.active_children()


def test_workers_may_outlive_a_validation() -> None:
    loader = DataLoader(Noisy(5), batch_size=2, num_workers=1, persistent_workers=True)
    first = take(validation_batches(loader, seed=1), 9)
    pids = {child.pid for child in multiprocessing.active_children()}
    assert len(pids) == 1
    assert take(validation_batches(loader, seed=1), 1) == first[:1]
    assert take(validation_batches(loader, seed=1), 9) == first
    assert {child.pid for child in multiprocessing.active_children()} == pids
    loader.close()
    assert not multiprocessing.active_children()
    assert take(validation_batches(loader, seed=1), 9) == first
    loader.close()


def mark_dataset(worker_id: int) -> None:
    info: Any = torch.utils.data.get_worker_info()
    info.dataset.mark = (worker_id, type(info.dataset).__name__)


class Marked(Noisy):
    mark: Any = None

    def __getitem__(self, index: int) -> Any:
        return self.mark


@pytest.mark.parametrize("context", [None, "spawn"])
def test_a_workers_code_sees_the_users_dataset(context: str | None) -> None:
    loader = DataLoader(
        Marked(4), num_workers=1, worker_init_fn=mark_dataset, collate_fn=list, multiprocessing_context=context
    )
    assert training(loader, 2) == [[[0, "Marked"]], [[0, "Marked"]]]
    assert not multiprocessing.active_children()


def test_a_timeout_is_kept() -> None:
    with training_batches(DataLoader(Stuck(), num_workers=1, timeout=0.2), seed=1) as source:
        assert next(source).item() == 0
        with pytest.raises(RuntimeError, match="timed out"):
            next(source)


def test_next_is_the_iterators_own() -> None:
    ready = [1, 2]
    source = training_batches(ready, seed=1)
    assert type(source.__next__).__name__ == "method-wrapper"
    assert [next(source), source.__next__()] == [1, 2]
