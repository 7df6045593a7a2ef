"""The data loader of a trial: a recipe from which each rank's share is made, and what can be said of a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data

from determined.pytorch import samplers
from determined.pytorch.workers import stop_workers

logger = logging.getLogger("determined.pytorch")

TorchData = dict[str, torch.Tensor] | Sequence[torch.Tensor] | torch.Tensor


class DataLoader:
    """A torch ``DataLoader`` that can be sharded over ranks and continued in the middle of an epoch.

    It takes torch's arguments and refuses what torch refuses. The batch size is that of one rank. The trainer makes
    from it what it needs; ``iter()`` and ``len()`` work as on a torch loader.
    """

    def __init__(
        self,
        dataset: torch.utils.data.Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        if isinstance(dataset, torch.utils.data.IterableDataset):
            raise ValueError(
                "determined.pytorch.DataLoader cannot shard or continue an IterableDataset; return a plain "
                "torch.utils.data.DataLoader and call context.experimental.disable_dataset_reproducibility_checks()"
            )
        if batch_size is None and batch_sampler is None:
            raise ValueError("batch_size=None needs a batch_sampler: a trial is trained on batches")
        if num_workers > 0 and prefetch_factor is None:
            prefetch_factor = 2
        # torch checks the rest, and this is the loader for plain use.
        self._plain: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
        )
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        # Without a sampler of the user's, the trainer draws each epoch's order itself.
        self.has_own_order = sampler is not None or batch_sampler is not None
        self.sampler: Iterable[Any] = self._plain.sampler
        batches: Any = self._plain.batch_sampler
        self.batch_sampler: Any = batches
        self.num_workers = num_workers
        self.collate_fn: Callable[[list[Any]], Any] = self._plain.collate_fn
        self.pin_memory = pin_memory
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers
        # Loaders whose workers live on from one validation to the next, as persistent_workers asks.
        self.kept: dict[Any, torch.utils.data.DataLoader[Any]] = {}

    def close(self) -> None:
        """End the worker processes that ``persistent_workers`` kept from one validation to the next."""
        for loader in self.kept.values():
            stop_workers(loader._iterator)
        self.kept.clear()

    def get_data_loader(
        self, repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
    ) -> torch.utils.data.DataLoader[Any]:
        """A torch loader of one rank's share: the batches repeated for ever if asked, dealt, the first ones skipped."""
        return self.torch_loader(
            self.dataset,
            adapt_batch_sampler(self.batch_sampler, repeat=repeat, skip=skip, num_replicas=num_replicas, rank=rank),
            collate_fn=self.collate_fn,
            worker_init_fn=self.worker_init_fn,
            generator=self.generator,
        )

    def torch_loader(
        self,
        dataset: Any,
        batch_sampler: Iterable[Any],
        *,
        collate_fn: Callable[[Any], Any],
        worker_init_fn: Callable[[int], None] | None,
        generator: torch.Generator | None,
    ) -> torch.utils.data.DataLoader[Any]:
        """A torch loader with this recipe's workers and memory, and these batches."""
        return torch.utils.data.DataLoader(
            dataset,
            batch_sampler=batch_sampler,
            num_workers=self.num_workers,
            collate_fn=collate_fn,
            pin_memory=self.pin_memory,
            timeout=self.timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=self.multiprocessing_context,
            generator=generator,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self._plain)

    def __len__(self) -> int:
        return len(self.batch_sampler)


def adapt_batch_sampler(
    batch_sampler: Iterable[Any], repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
) -> Any:
    """Repeat a batch sampler for ever if asked, deal its batches to ranks, and skip the first ones of this rank."""
    if repeat:
        batch_sampler = samplers.RepeatBatchSampler(batch_sampler)
    if num_replicas > 1:
        batch_sampler = samplers.DistributedBatchSampler(batch_sampler, num_replicas, rank)
    if skip > 0:
        batch_sampler = samplers.SkipBatchSampler(batch_sampler, skip)
    return batch_sampler


def data_length(data: Any) -> int:
    """How many records a batch holds: the length of the first array or sequence found in it."""
    if isinstance(data, (torch.Tensor, np.ndarray)):
        return len(data)
    if not isinstance(data, (dict, list, tuple)):
        raise TypeError(
            f"the length of a batch of type {type(data).__name__} is not known; "
            "override get_batch_length(batch) in the trial"
        )
    if not data:
        raise ValueError(f"the length of an empty {type(data).__name__} is not known: a batch must hold something")
    first = next(iter(data.values())) if isinstance(data, dict) else data[0]
    try:
        return len(first)
    except TypeError as error:
        raise TypeError(
            f"the length of a batch whose first part is of type {type(first).__name__} is not known; "
            "override get_batch_length(batch) in the trial"
        ) from error


def to_device(data: Any, device: Any, warned_types: set[type] | None = None) -> Any:
    """Move a batch to a device: tensors, arrays of numbers, whatever has ``.to``, and these within dicts and sequences.

    Anything else is returned as it is, with one warning for each type not yet in ``warned_types``.
    """
    if isinstance(data, torch.Tensor):
        return data.to(device)
    return _move(data, device, set() if warned_types is None else warned_types)


def _move(data: Any, device: Any, warned_types: set[type]) -> Any:
    # Before the containers: a packed sequence is a tuple that knows how to move.
    move = getattr(data, "to", None)
    if callable(move):
        return move(device)
    if isinstance(data, dict):
        return {name: _move(part, device, warned_types) for name, part in data.items()}
    if isinstance(data, list):
        return [_move(part, device, warned_types) for part in data]
    if isinstance(data, tuple):
        parts = [_move(part, device, warned_types) for part in data]
        return type(data)(*parts) if hasattr(data, "_fields") else tuple(parts)
    if isinstance(data, np.ndarray) and data.dtype.kind in "fciub":
        return torch.from_numpy(data).to(device)
    kind = type(data)
    if kind not in warned_types:
        warned_types.add(kind)
        logger.warning("not able to move data of type %s to the device; it is passed on as it is", kind.__name__)
    return data
