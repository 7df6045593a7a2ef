"""In what order an epoch's batches come: a function of the seed and the epoch, whoever draws it and from wherever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from determined import errors
from determined.pytorch import samplers
from determined.pytorch.data import DataLoader
from determined.pytorch.randomness import LentStreams, generator_for, keyed, mix

EMPTY = "the training data loader gives no batch; check the dataset's length, batch_size and drop_last"


class Numbered(NamedTuple):
    """The indices of one batch and its place among all ranks' batches."""

    epoch: int
    number: int
    indices: Any


class Share(NamedTuple):
    """The batches one rank takes: every ``step``-th from the ``first`` on, counted over all ranks and epochs."""

    first: int
    step: int
    repeats: bool


class SampleOrder:
    """The dataset's own order or, shuffled, a new permutation for each epoch."""

    def __init__(self, samples: int, batch_size: int, *, shuffle: bool, drop_last: bool, key: int) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.length: int | None = samples // batch_size if drop_last else -(-samples // batch_size)
        self._shuffle = shuffle
        self._key = key

    def permutation(self, epoch: int) -> torch.Tensor:
        """The epoch's samples in their order."""
        if not self._shuffle:
            return torch.arange(self.samples, device="cpu")
        return torch.randperm(self.samples, device="cpu", generator=generator_for(keyed(self._key, epoch)))

    def passes(self, share: Share) -> Iterator[tuple[int, range]]:
        """Each epoch with the numbers of the share's batches in it."""
        if not self.length:
            if share.repeats:
                raise errors.InvalidExperimentException(EMPTY)
            return
        epoch, number = divmod(share.first, self.length)
        while share.repeats or epoch == 0:
            mine = range(number, self.length, share.step)
            yield epoch, mine
            number += len(mine) * share.step - self.length
            epoch += 1

    def stream(self, share: Share) -> Iterator[Numbered]:
        """The share's batches, one epoch after the other."""
        for epoch, mine in self.passes(share):
            yield from self.batches(epoch, mine)

    def batches(self, epoch: int, numbers: range) -> Iterator[Numbered]:
        """The numbered batches of one epoch."""
        order, size = self.permutation(epoch), self.batch_size
        for number in numbers:
            yield Numbered(epoch, number, order[number * size : (number + 1) * size].tolist())


class SamplerOrder:
    """The order of a sampler of the user's, whose draws from the global random streams are keyed.

    A sampler of a class that is not known may keep a state of its own and have any length: it is continued by passing
    over its earlier epochs, which costs no data, only indices.
    """

    def __init__(self, batch_sampler: Any, key: int) -> None:
        self._sampler = batch_sampler
        self._draws = samplers.draws(batch_sampler)
        self._is_known = self._draws != samplers.ANY_ITEM
        self._is_endless = samplers.is_endless(batch_sampler)
        self._key = key
        self.length = samplers.known_length(batch_sampler) if self._is_known and not self._is_endless else None

    def stream(self, share: Share) -> Iterator[Numbered]:
        """The share's batches, one epoch after the other."""
        epoch, begin, gap = 0, 0, share.first
        if self._is_known:
            gap = 0
            epoch, begin = divmod(share.first, self.length) if self.length else (0, share.first)
        samplers.rewind(self._sampler)
        samplers.advance_shuffles(self._sampler, epoch)
        while share.repeats or epoch == 0:
            number = begin
            for indices in self._pass(epoch, begin):
                if gap == 0:
                    yield Numbered(epoch, number, indices)
                    gap = share.step
                gap -= 1
                number += 1
            if number == 0 and share.repeats:
                raise errors.InvalidExperimentException(EMPTY)
            epoch += 1
            begin = 0

    def _pass(self, epoch: int, begin: int) -> Iterator[Any]:
        key = keyed(self._key, epoch)
        start_epoch(self._sampler, epoch, key)
        if self._draws == samplers.NEVER:
            yield from samplers.iterate_from(self._sampler, begin)
            return
        lent = LentStreams()
        end = object()
        with lent(mix(key)):
            passing = iter(self._sampler)
        number = 0
        while True:
            if number == 0 or self._draws == samplers.ANY_ITEM:
                with lent(keyed(key, number)):
                    indices = next(passing, end)
            else:
                indices = next(passing, end)
            if indices is end:
                return
            if number >= begin:
                yield indices
            number += 1


def order_of(loader: DataLoader, key: int) -> SampleOrder | SamplerOrder:
    """The order of a loader's batches, keyed by the trial."""
    if loader.has_own_order:
        return SamplerOrder(loader.batch_sampler, key)
    assert loader.batch_size is not None
    samples = len(loader.dataset)  # type: ignore[arg-type]
    return SampleOrder(samples, loader.batch_size, shuffle=loader.shuffle, drop_last=loader.drop_last, key=key)


def start_epoch(loading: Any, epoch: int, key: int) -> None:
    """Tell a loader or sampler, and those it is made of, which epoch begins; seed the generators they were given.

    Both make the epoch's order a function of its number rather than of how many passes there were in this process.
    """
    pending, seen = [loading], set[int]()
    while pending:
        part = pending.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        set_epoch = getattr(part, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
        generator = getattr(part, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(mix(key, len(seen)))
        pending += [getattr(part, name, None) for name in ("batch_sampler", "sampler", "_source")]
