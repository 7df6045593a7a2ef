"""The data loader's recipe, and what can be said of a batch."""

from __future__ import annotations

import collections
import logging
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data

from determined.pytorch.data import DataLoader, data_length, to_device


class Squares(torch.utils.data.Dataset[int]):
    def __init__(self, samples: int = 10) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index * index


class Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    "arguments",
    [
        {"shuffle": True, "sampler": [1, 2]},
        {"batch_sampler": [[1], [2]], "batch_size": 2},
        {"batch_sampler": [[1], [2]], "shuffle": True},
        {"batch_sampler": [[1], [2]], "sampler": [1, 2]},
        {"batch_sampler": [[1], [2]], "drop_last": True},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"num_workers": -1},
        {"timeout": -1},
        {"num_workers": 0, "prefetch_factor": 2},
        {"num_workers": 0, "persistent_workers": True},
        {"num_workers": 0, "multiprocessing_context": "fork"},
    ],
)
def test_what_torch_refuses_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        torch.utils.data.DataLoader(Squares(), **arguments)
    with pytest.raises(ValueError):
        DataLoader(Squares(), **arguments)


def test_an_iterable_dataset_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="disable_dataset_reproducibility_checks"):
        DataLoader(Stream())


def test_no_batch_size_needs_a_batch_sampler() -> None:
    with pytest.raises(ValueError, match="batch_sampler"):
        DataLoader(Squares(), batch_size=None)


def test_plain_use_is_torchs() -> None:
    loader = DataLoader(Squares(), batch_size=4)
    assert len(loader) == 3
    assert [batch.tolist() for batch in loader] == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]
    assert [batch.tolist() for batch in loader] == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]


def test_workers_prefetch_two_batches_unless_told_otherwise() -> None:
    assert DataLoader(Squares(), num_workers=1).prefetch_factor == 2
    assert DataLoader(Squares(), num_workers=1, prefetch_factor=5).prefetch_factor == 5
    assert DataLoader(Squares()).prefetch_factor is None


def test_a_ranks_share_is_a_torch_loader() -> None:
    loader = DataLoader(Squares(), batch_size=2, collate_fn=list)
    share = loader.get_data_loader(repeat=False, skip=1, num_replicas=2, rank=0)
    assert isinstance(share, torch.utils.data.DataLoader)
    assert list(share) == [[16, 25], [64, 81]]
    assert len(share) == 3
    repeated = iter(loader.get_data_loader(repeat=True, num_replicas=2, rank=1))
    assert [next(repeated) for _ in range(4)] == [[4, 9], [36, 49], [0, 1], [16, 25]]


def test_a_recipe_passes_on_what_it_was_given() -> None:
    generator = torch.Generator()
    loader = DataLoader(
        Squares(), num_workers=1, timeout=3, worker_init_fn=print, generator=generator, prefetch_factor=4
    )
    share = loader.get_data_loader()
    assert (share.num_workers, share.timeout, share.prefetch_factor) == (1, 3, 4)
    assert share.worker_init_fn is print
    assert share.generator is generator


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (torch.zeros(3, 2), 3),
        (np.zeros((4, 2)), 4),
        ([torch.zeros(3), torch.zeros(5)], 3),
        ((np.zeros(2), 1), 2),
        ({"x": torch.zeros(6), "y": 1}, 6),
        ([[1, 2, 3, 4]], 4),
    ],
)
def test_the_length_of_a_batch_is_that_of_its_first_array(data: Any, length: int) -> None:
    assert data_length(data) == length


@pytest.mark.parametrize("data", [[], (), {}])
def test_an_empty_batch_has_no_length(data: Any) -> None:
    with pytest.raises(ValueError):
        data_length(data)


@pytest.mark.parametrize("data", [3, "text", {1, 2}, None, [5], object()])
def test_other_things_have_no_length(data: Any) -> None:
    with pytest.raises(TypeError, match="get_batch_length"):
        data_length(data)


Pair = collections.namedtuple("Pair", ["x", "y"])


class Movable:
    def to(self, device: Any) -> str:
        return f"on {device}"


def test_batches_are_moved_whole() -> None:
    batch: dict[str, Any] = {
        "nested": [torch.ones(2), (np.ones(2, dtype=np.float32), np.array([1, 2], dtype=np.uint8))],
        "pair": Pair(torch.ones(1), np.array([True])),
        "own": Movable(),
    }
    moved = to_device(batch, "meta")
    assert moved["nested"][0].device.type == "meta"
    assert moved["nested"][1][0].dtype == torch.float32
    assert moved["nested"][1][1].dtype == torch.uint8
    assert isinstance(moved["nested"][1], tuple)
    assert isinstance(moved["pair"], Pair)
    assert moved["pair"].y.device.type == "meta"
    assert moved["own"] == "on meta"
    assert batch["nested"][0].device.type == "cpu"


def test_complex_and_signed_arrays_are_moved() -> None:
    for kind in (np.complex64, np.int64, np.float64, np.bool_):
        assert isinstance(to_device(np.zeros(2, dtype=kind), "cpu"), torch.Tensor)


def test_what_cannot_be_moved_is_passed_on_with_one_warning_a_type(caplog: pytest.LogCaptureFixture) -> None:
    warned: set[type] = set()
    texts = np.array(["a", "b"])
    with caplog.at_level(logging.WARNING):
        assert to_device(["a", "b", texts], "cpu", warned) == ["a", "b", texts]
        to_device({"name": "c"}, "cpu", warned)
    assert [record.message.count("not able to move data") for record in caplog.records] == [1, 1]
    assert warned == {str, np.ndarray}
    to_device("d", "cpu")
    assert len(caplog.records) == 3
