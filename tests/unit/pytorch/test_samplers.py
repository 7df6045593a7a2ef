"""Samplers: repeat, deal, skip, shuffle."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from hypothesis import given
from hypothesis import strategies as st

from determined.pytorch import samplers
from determined.pytorch.data import adapt_batch_sampler


def batches(samples: int, size: int, drop_last: bool = False) -> torch.utils.data.BatchSampler:
    return torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(samples)), size, drop_last)


class Walking:
    """A sampler of a user's, which counts how often its items were asked for."""

    def __init__(self, items: int) -> None:
        self.items, self.given = items, 0

    def __iter__(self) -> Iterator[int]:
        for item in range(self.items):
            self.given += 1
            yield item

    def __len__(self) -> int:
        return self.items


def first(sampler: Any, count: int) -> list[Any]:
    return list(itertools.islice(iter(sampler), count))


@pytest.mark.parametrize("kind", [samplers.RepeatSampler, samplers.RepeatBatchSampler])
def test_repeating_starts_over_and_keeps_the_length_of_one_pass(kind: Any) -> None:
    repeated = kind([1, 2, 3])
    assert len(repeated) == 3
    assert first(repeated, 7) == [1, 2, 3, 1, 2, 3, 1]


def test_repeating_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="empty sampler"):
        next(iter(samplers.RepeatSampler([])))


@pytest.mark.parametrize("kind", [samplers.DistributedSampler, samplers.DistributedBatchSampler])
def test_items_are_dealt_in_turn(kind: Any) -> None:
    shares = [kind(list("abcdefg"), 3, rank) for rank in range(3)]
    assert [list(share) for share in shares] == [["a", "d", "g"], ["b", "e"], ["c", "f"]]
    assert [len(share) for share in shares] == [3, 2, 2]


@pytest.mark.parametrize(("workers", "rank"), [(2, -1), (0, 0), (2, 2)])
@pytest.mark.parametrize("kind", [samplers.DistributedSampler, samplers.DistributedBatchSampler])
def test_a_rank_that_does_not_exist_is_refused(kind: Any, workers: int, rank: int) -> None:
    with pytest.raises(ValueError):
        kind([1, 2], workers, rank)


@pytest.mark.parametrize("kind", [samplers.SkipSampler, samplers.SkipBatchSampler])
def test_skipping_leaves_the_length_alone(kind: Any) -> None:
    assert list(kind([1, 2, 3, 4], 3)) == [4]
    assert len(kind([1, 2, 3, 4], 3)) == 4
    assert list(kind([1, 2], 5)) == []


@pytest.mark.parametrize("kind", [samplers.ReproducibleShuffleSampler, samplers.ReproducibleShuffleBatchSampler])
@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_the_shuffle_is_numpys_own(kind: Any, seed: int) -> None:
    shuffled = kind([[i, i + 1] for i in range(23)], seed)
    expected = np.random.RandomState(seed)
    for _ in range(3):
        items = [[i, i + 1] for i in range(23)]
        expected.shuffle(items)
        assert list(shuffled) == items
    assert len(shuffled) == 23


def test_the_batch_samplers_are_batch_samplers() -> None:
    for name in ("Repeat", "Distributed", "Skip", "ReproducibleShuffle"):
        assert issubclass(getattr(samplers, f"{name}BatchSampler"), torch.utils.data.BatchSampler)
        assert issubclass(getattr(samplers, f"{name}Sampler"), torch.utils.data.Sampler)


@given(
    samples=st.integers(1, 30),
    size=st.integers(1, 7),
    drop_last=st.booleans(),
    skip=st.integers(0, 60),
    replicas=st.integers(1, 4),
    shuffles=st.booleans(),
    user=st.booleans(),
)
def test_a_chain_gives_what_dealing_and_dropping_by_hand_gives(
    samples: int, size: int, drop_last: bool, skip: int, replicas: int, shuffles: bool, user: bool
) -> None:
    def base() -> Any:
        items: Any = Walking(samples) if user else torch.utils.data.SequentialSampler(range(samples))
        if shuffles:
            items = samplers.ReproducibleShuffleSampler(items, 5)
        return torch.utils.data.BatchSampler(items, size, drop_last)

    if len(base()) == 0:
        return
    stream: list[Any] = []
    one = base()
    while len(stream) < (skip + 12) * replicas:
        stream += list(one)
    for rank in range(replicas):
        chain = adapt_batch_sampler(base(), repeat=True, skip=skip, num_replicas=replicas, rank=rank)
        assert first(chain, 10) == stream[rank::replicas][skip : skip + 10]
        once = adapt_batch_sampler(base(), skip=skip, num_replicas=replicas, rank=rank)
        assert list(once) == list(base())[rank::replicas][skip:]


def test_a_long_skip_does_not_walk() -> None:
    # A million epochs: only arithmetic ends in time.
    chain = adapt_batch_sampler(batches(10, 3), repeat=True, skip=4 * 10**12 + 1, num_replicas=1, rank=0)
    assert next(iter(chain)) == [3, 4, 5]


def test_a_skip_within_an_epoch_of_known_order_jumps() -> None:
    assert next(iter(samplers.SkipBatchSampler(batches(10**15, 10), 10**13))) == list(range(10**14, 10**14 + 10))


def test_a_users_own_sampler_is_walked_through_for_it_may_keep_a_state() -> None:
    walking = Walking(5)
    assert first(samplers.SkipSampler(samplers.RepeatSampler(walking), 12), 1) == [2]
    assert walking.given == 13


def test_skipping_draws_what_not_skipping_draws() -> None:
    base = torch.utils.data.RandomSampler(range(10))
    torch.manual_seed(1)
    whole = first(samplers.RepeatSampler(base), 40)
    torch.manual_seed(1)
    assert first(samplers.SkipSampler(samplers.RepeatSampler(base), 25), 15) == whole[25:]
