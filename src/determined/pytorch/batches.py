"""The batches one rank trains and validates on: exact, whatever interrupted the run and whoever loads them.

What loading draws at random is keyed by (seed, epoch, number of the batch among all ranks'), and leaves the random
streams that training draws from as they were.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

from determined import errors
from determined.pytorch import samplers
from determined.pytorch.data import DataLoader
from determined.pytorch.epochs import EMPTY, SampleOrder, SamplerOrder, Share, order_of, start_epoch
from determined.pytorch.gather import Columns, columns_of, draws_nothing, pins_memory
from determined.pytorch.randomness import LentStreams, generator_for, keyed, mix
from determined.pytorch.workers import BatchMaker, WorkerStart, as_it_is, stop_workers

logger = logging.getLogger("determined.pytorch")

# Families of keys: an epoch's order, its batches' random numbers and the workers' first seeds are unrelated.
_TRAINING, _VALIDATION = 1, 2
_ORDER, _LOADING, _WORKERS = 1, 2, 3


class BatchSource:
    """An iterator of batches. ``epoch_len`` is the number of this rank's batches in an epoch, None if not known."""

    # __next__ is the underlying iterator's own, so that no frame of ours is entered for a batch.
    __slots__ = ("__next__", "_batches", "_close", "epoch_len")

    __next__: Callable[[], Any]

    def __init__(self, batches: Iterator[Any], epoch_len: int | None, close: Callable[[], None] | None = None) -> None:
        self.epoch_len = epoch_len
        self._batches = batches
        self._close = close
        self.__next__ = batches.__next__

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def close(self) -> None:
        """End the loader's processes; afterwards there are no more batches. Closing twice is closing once."""
        close, self._close = self._close, None
        self._batches = iter(())
        self.__next__ = self._batches.__next__
        if close is not None:
            close()

    def __enter__(self) -> BatchSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def training_batches(
    loader: Any, *, seed: int, start_batch: int = 0, rank: int = 0, size: int = 1, fast_forward: bool = True
) -> BatchSource:
    """An endless source of this rank's batches, from its batch number ``start_batch`` on.

    Our own loader is dealt to ranks and continued without reading what came before. Any other iterable is iterated
    again when it ends; sharding it is the user's job, and so is skipping if ``fast_forward`` is false. Raises
    InvalidExperimentException if there is no batch at all.
    """
    key = mix(seed, _TRAINING)
    if isinstance(loader, DataLoader):
        return _ours(loader, key, Share(start_batch * size + rank, size, repeats=True), rank)
    _require_iterable(loader)
    start_batch = start_batch if fast_forward else 0
    if type(loader) in (list, tuple):
        return _again_and_again(loader, start_batch)
    batches = _foreign_batches(loader, key, start_batch, repeats=True)
    return BatchSource(batches, samplers.known_length(loader), batches.close)


def validation_batches(loader: Any, *, seed: int, rank: int = 0, size: int = 1) -> BatchSource:
    """One pass over this rank's share of the validation data; every pass sees the same random numbers."""
    key = mix(seed, _VALIDATION)
    if isinstance(loader, DataLoader):
        return _ours(loader, key, Share(rank, size, repeats=False), rank)
    _require_iterable(loader)
    if type(loader) in (list, tuple):
        return BatchSource(iter(loader), len(loader))
    batches = _foreign_batches(loader, key, 0, repeats=False)
    return BatchSource(batches, samplers.known_length(loader), batches.close)


def _require_iterable(loader: Any) -> None:
    if not hasattr(loader, "__iter__"):
        raise errors.InvalidExperimentException(
            f"a data loader must be iterable, not {type(loader).__name__}; return a determined.pytorch.DataLoader"
        )


def _ours(loader: DataLoader, key: int, share: Share, rank: int) -> BatchSource:
    order = order_of(loader, mix(key, _ORDER))
    if share.repeats and order.length == 0:
        raise errors.InvalidExperimentException(EMPTY)
    length = samplers.known_length(loader.batch_sampler)
    epoch_len = None if length is None else samplers.share(length, share.step, rank)
    if loader.num_workers > 0:
        return _from_workers(loader, order, key, share, epoch_len)
    batches = _in_process(loader, order, mix(key, _LOADING), share)
    return BatchSource(batches, epoch_len, batches.close)


def _in_process(loader: DataLoader, order: SampleOrder | SamplerOrder, key: int, share: Share) -> Any:
    """The batches, made by this process."""
    if isinstance(order, SampleOrder):
        return _in_process_by_epoch(loader, order, key, share)
    return _made_one_by_one(loader, order.stream(share), key)


def _in_process_by_epoch(loader: DataLoader, order: SampleOrder, key: int, share: Share) -> Iterator[Any]:
    for epoch, numbers in order.passes(share):
        # Looked at anew each epoch: the dataset's tensors may have been replaced.
        columns = columns_of(loader)
        if columns is None:
            yield from _made_one_by_one(loader, order.batches(epoch, numbers), key)
        else:
            yield from _gathered(columns, order, epoch, numbers)


def _gathered(columns: Columns, order: SampleOrder, epoch: int, numbers: range) -> Iterator[Any]:
    samples, size = order.permutation(epoch), order.batch_size
    full = order.samples // size
    grid = samples[: full * size].view(full, size)
    yield from columns.batches(grid[numbers.start : full : numbers.step])
    if full in numbers:
        yield columns.take(samples[full * size :])


def _made_one_by_one(loader: DataLoader, numbered: Iterator[Any], key: int) -> Iterator[Any]:
    make = BatchMaker(loader.dataset, loader.collate_fn).make
    pins = pins_memory(loader)
    lent = None if draws_nothing(loader) else LentStreams()
    columns: Columns | None = None
    epoch_key, current = 0, -1
    for epoch, number, indices in numbered:
        if epoch != current:
            epoch_key, current = keyed(key, epoch), epoch
            columns = columns_of(loader)
        batch = None if columns is None else columns.make(indices)
        if batch is None:
            if lent is None:
                batch = make(indices)
            else:
                with lent(keyed(epoch_key, number)):
                    batch = make(indices)
            if pins:
                batch = pin_memory(batch)  # type: ignore[no-untyped-call]
        yield batch


class _KeyedIndices:
    """What is sent to loader processes: each batch's indices with the key of its random numbers."""

    def __init__(self, order: SampleOrder | SamplerOrder, key: int, share: Share) -> None:
        self._order, self._key, self._share = order, key, share

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        key = self._key
        for epoch, number, indices in self._order.stream(self._share):
            yield keyed(keyed(key, epoch), number), indices


def _from_workers(
    loader: DataLoader, order: SampleOrder | SamplerOrder, key: int, share: Share, epoch_len: int | None
) -> BatchSource:
    # Only validation starts over: training's one pass never ends.
    keeps_workers = loader.persistent_workers and not share.repeats
    name = (key, share)
    torch_loader = loader.kept.get(name) if keeps_workers else None
    if torch_loader is None:
        torch_loader = loader.torch_loader(
            BatchMaker(loader.dataset, loader.collate_fn),
            _KeyedIndices(order, mix(key, _LOADING), share),
            collate_fn=as_it_is,
            worker_init_fn=WorkerStart(loader.worker_init_fn),
            # The workers' first seeds; left out, torch would draw them from the stream that training draws from.
            generator=generator_for(mix(key, _WORKERS)),
        )
    if keeps_workers:
        loader.kept[name] = torch_loader
    iterator = iter(torch_loader)
    return BatchSource(iterator, epoch_len, None if keeps_workers else lambda: stop_workers(iterator))


def _again_and_again(ready: Any, start_batch: int) -> BatchSource:
    """Ready batches, for ever, at the speed of a list."""
    if not ready:
        raise errors.InvalidExperimentException(EMPTY)

    def passes() -> Iterator[Any]:
        yield ready[start_batch % len(ready) :]
        while ready:
            yield ready
        raise errors.InvalidExperimentException(EMPTY)

    return BatchSource(itertools.chain.from_iterable(passes()), len(ready))


def _foreign_batches(loader: Any, key: int, start_batch: int, *, repeats: bool) -> Any:
    """An iterable of the user's, iterated again when it ends; its random draws in this process are keyed."""
    length = samplers.known_length(loader)
    epoch, skip = divmod(start_batch, length) if length else (0, start_batch)
    lent = LentStreams()
    end = object()
    order_key, loading_key = mix(key, _ORDER), mix(key, _LOADING)
    iterator: Any = None
    try:
        while repeats or epoch == 0:
            epoch_key = keyed(loading_key, epoch)
            start_epoch(loader, epoch, keyed(order_key, epoch))
            with lent(keyed(order_key, epoch)):
                iterator = iter(loader)
            count = 0
            while True:
                with lent(keyed(epoch_key, count)):
                    batch = next(iterator, end)
                if batch is end:
                    break
                count += 1
                if skip:
                    skip -= 1
                else:
                    yield batch
            _end_pass(loader, iterator)
            if repeats:
                _check_pass(loader, iterator, epoch, count, length)
            epoch += 1
    finally:
        _end_pass(loader, iterator)


def _end_pass(loader: Any, iterator: Any) -> None:
    """Stop the workers of a torch loader, those too that it would keep: theirs are streams that nothing has keyed, and
    only fresh ones make an epoch's random numbers a function of the epoch."""
    stop_workers(iterator)
    if iterator is not None and getattr(loader, "_iterator", None) is iterator:
        loader._iterator = None


def _check_pass(loader: Any, iterator: Any, epoch: int, count: int, length: int | None) -> None:
    if count == 0 and iterator is loader:
        raise errors.InvalidExperimentException(
            "the training data has come to its end, and an iterator cannot be started again; "
            "return something that can be iterated several times, such as a DataLoader or a list"
        )
    if count == 0:
        raise errors.InvalidExperimentException(EMPTY)
    if length is not None and count != length and epoch == 0:
        logger.warning(
            "the training data loader's length is %d but it gave %d batches; a resumed run will not find its place",
            length,
            count,
        )
