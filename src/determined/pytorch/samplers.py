"""Samplers that repeat, deal, skip and shuffle other samplers, so that a run can be sharded and continued.

The usual order is shuffle, repeat, deal to ranks, batch, skip; validation is never repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch.utils.data


class _Wrapper:
    """What our samplers share, in their plain and batch forms: a source, and where to begin in it."""

    _source: Any

    def __iter__(self) -> Iterator[Any]:
        return self.iterate_from(0)

    def iterate_from(self, start: int) -> Iterator[Any]:
        """A pass from item ``start`` on."""
        return itertools.islice(iter(self._source), start, None)

    def __len__(self) -> int:
        return len(self._source)


class _Repeat(_Wrapper):
    def iterate_from(self, start: int) -> Iterator[Any]:
        length = known_length(self._source)
        if start and length and pass_over(self._source, start // length):
            yield from iterate_from(self._source, start % length)
            start = 0
        while True:
            is_empty = True
            for item in self._source:
                is_empty = False
                if start:
                    start -= 1
                else:
                    yield item
            if is_empty:
                raise ValueError("an empty sampler cannot be repeated; check the dataset's length and drop_last")


class RepeatSampler(_Repeat, torch.utils.data.Sampler[Any]):
    """Yields the sampler's items over and over; its length is that of one pass."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._source = sampler


class RepeatBatchSampler(_Repeat, torch.utils.data.BatchSampler):
    """Yields the batch sampler's batches over and over; its length is that of one pass."""

    def __init__(self, batch_sampler: Iterable[Any]) -> None:
        self._source = self.batch_sampler = batch_sampler


class _Distributed(_Wrapper):
    def _deal(self, source: Any, num_workers: int, rank: int) -> None:
        if rank < 0:
            raise ValueError(f"rank must be 0 or more, not {rank}")
        if num_workers < 1:
            raise ValueError(f"num_workers must be 1 or more, not {num_workers}")
        if rank >= num_workers:
            raise ValueError(f"rank must be less than num_workers; rank {rank} of {num_workers} does not exist")
        self._source, self.num_workers, self.rank = source, num_workers, rank

    def iterate_from(self, start: int) -> Iterator[Any]:
        mine = iterate_from(self._source, start * self.num_workers + self.rank)
        return itertools.islice(mine, 0, None, self.num_workers)

    def __len__(self) -> int:
        return share(len(self._source), self.num_workers, self.rank)


class DistributedSampler(_Distributed, torch.utils.data.Sampler[Any]):
    """Deals the sampler's items to ranks: item i goes to rank ``i % num_workers``."""

    def __init__(self, sampler: Iterable[Any], num_workers: int, rank: int) -> None:
        self._deal(sampler, num_workers, rank)


class DistributedBatchSampler(_Distributed, torch.utils.data.BatchSampler):
    """Deals whole batches to ranks: batch i goes to rank ``i % num_workers``, a short last one like any other."""

    def __init__(self, batch_sampler: Iterable[Any], num_workers: int, rank: int) -> None:
        self._deal(batch_sampler, num_workers, rank)
        self.batch_sampler = batch_sampler


class _Skip(_Wrapper):
    skip: int

    def iterate_from(self, start: int) -> Iterator[Any]:
        return iterate_from(self._source, self.skip + start)


class SkipSampler(_Skip, torch.utils.data.Sampler[Any]):
    """Leaves out the first ``skip`` items; its length is that of the whole sampler."""

    def __init__(self, sampler: Iterable[Any], skip: int) -> None:
        self._source, self.skip = sampler, skip


class SkipBatchSampler(_Skip, torch.utils.data.BatchSampler):
    """Leaves out the first ``skip`` batches; its length is that of the whole batch sampler."""

    def __init__(self, batch_sampler: Iterable[Any], skip: int) -> None:
        self._source = self.batch_sampler = batch_sampler
        self.skip = skip


class _Shuffle(_Wrapper):
    def _shuffle(self, source: Any, seed: int) -> None:
        self._source, self._seed = source, seed
        self._random = np.random.RandomState(seed)

    def iterate_from(self, start: int) -> Iterator[Any]:
        items = list(self._source)
        # The same draws as shuffling the list itself, ten times as fast.
        order = np.arange(len(items))
        self._random.shuffle(order)
        return map(items.__getitem__, order[start:].tolist())

    def pass_over(self, epochs: int) -> None:
        """Leave the random state where ``epochs`` passes would leave it."""
        order = np.arange(len(self._source))
        for _ in range(epochs):
            self._random.shuffle(order)

    def rewind(self) -> None:
        """Go back to the first epoch's order."""
        self._random = np.random.RandomState(self._seed)


class ReproducibleShuffleSampler(_Shuffle, torch.utils.data.Sampler[Any]):
    """Shuffles the sampler's items by numpy's ``RandomState(seed).shuffle``, each epoch differently."""

    def __init__(self, sampler: Iterable[Any], seed: int) -> None:
        self._shuffle(sampler, seed)


class ReproducibleShuffleBatchSampler(_Shuffle, torch.utils.data.BatchSampler):
    """Shuffles whole batches by numpy's ``RandomState(seed).shuffle``, each epoch differently."""

    def __init__(self, batch_sampler: Iterable[Any], seed: int) -> None:
        self._shuffle(batch_sampler, seed)
        self.batch_sampler = batch_sampler


def share(length: int, size: int, rank: int) -> int:
    """How many of ``length`` items dealt in turn one rank gets."""
    return length // size + (rank < length % size)


# What a pass over a sampler draws from the global random streams.
NEVER, FIRST_ITEM, ANY_ITEM = 0, 1, 2

# Exact classes: a subclass may do anything.
_REPEATS = (RepeatSampler, RepeatBatchSampler)
_SHUFFLES = (ReproducibleShuffleSampler, ReproducibleShuffleBatchSampler)
_OURS = (
    *_REPEATS,
    *_SHUFFLES,
    DistributedSampler,
    DistributedBatchSampler,
    SkipSampler,
    SkipBatchSampler,
)
_PLAIN = (list, tuple, range, torch.utils.data.SequentialSampler)
_DRAWS_FIRST = (
    torch.utils.data.RandomSampler,
    torch.utils.data.SubsetRandomSampler,
    torch.utils.data.WeightedRandomSampler,
)


def draws(sampler: Any) -> int:
    """When a pass over this sampler may draw from the global random streams; anybody's own class: at any item."""
    kind = type(sampler)
    if kind in _PLAIN or kind is torch.utils.data.DistributedSampler:
        return NEVER
    if kind in _DRAWS_FIRST:
        return FIRST_ITEM
    if kind is torch.utils.data.BatchSampler:
        return draws(sampler.sampler)
    if kind in _REPEATS:
        return NEVER if draws(sampler._source) == NEVER else ANY_ITEM
    if kind in _OURS:
        return draws(sampler._source)
    return ANY_ITEM


def is_endless(sampler: Any) -> bool:
    """Whether a pass over this sampler never ends, for one of the samplers it is made of repeats."""
    return any(type(part) in _REPEATS for part in _parts(sampler))


def known_length(sampler: Any) -> int | None:
    """``len(sampler)``, or None where there is none."""
    try:
        return len(sampler)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def pass_over(sampler: Any, epochs: int) -> bool:
    """Leave a sampler as ``epochs`` passes would leave it; False if only passing can do that."""
    if draws(sampler) != NEVER or is_endless(sampler):
        return False
    advance_shuffles(sampler, epochs)
    return True


def advance_shuffles(sampler: Any, epochs: int) -> None:
    """Let our own shuffling samplers, which remember how often they shuffled, shuffle so many times more."""
    for part in _parts(sampler):
        if type(part) in _SHUFFLES:
            part.pass_over(epochs)


def rewind(sampler: Any) -> None:
    """Take our own shuffling samplers back to their first epoch."""
    for part in _parts(sampler):
        if type(part) in _SHUFFLES:
            part.rewind()


def _parts(sampler: Any) -> Iterator[Any]:
    while sampler is not None:
        yield sampler
        if type(sampler) in _OURS:
            sampler = sampler._source
        else:
            sampler = sampler.sampler if type(sampler) is torch.utils.data.BatchSampler else None


def iterate_from(sampler: Any, start: int) -> Iterator[Any]:
    """A pass over a sampler from item ``start`` on, without producing those before where that can be helped."""
    kind = type(sampler)
    if kind in (list, tuple, range):
        return iter(sampler[start:] if start else sampler)
    if kind is torch.utils.data.SequentialSampler:
        return iter(range(start, len(sampler)))
    if kind in _OURS:
        passing: Iterator[Any] = sampler.iterate_from(start)
        return passing
    if kind is torch.utils.data.BatchSampler and draws(sampler.sampler) == NEVER and start:
        rest = iterate_from(sampler.sampler, start * sampler.batch_size)
        return iter(torch.utils.data.BatchSampler(_Once(rest), sampler.batch_size, sampler.drop_last))
    return itertools.islice(iter(sampler), start, None) if start else iter(sampler)


class _Once(torch.utils.data.Sampler[Any]):
    """An iterator under a sampler's name."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return self._items
