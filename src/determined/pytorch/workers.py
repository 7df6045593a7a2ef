"""Loader processes: each batch made under its own random numbers, and an end without waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch.utils.data

from determined.pytorch.randomness import seed_streams

# How long a worker may take to finish the batch it is at before it is ended.
_GRACE_SECONDS = 0.5


class BatchMaker:
    """Makes a batch out of the samples a dataset gives for some indices."""

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn

    def make(self, indices: Any) -> Any:
        """Fetch and collate, as torch's loader does: by ``__getitems__`` where the dataset has it."""
        dataset = self.dataset
        if getattr(dataset, "__getitems__", None):
            return self.collate_fn(dataset.__getitems__(indices))
        return self.collate_fn([dataset[index] for index in indices])

    def __getitems__(self, keyed_indices: tuple[int, Any]) -> Any:
        """What torch's loader asks for in a worker: a whole batch, made under the random numbers of its key."""
        key, indices = keyed_indices
        seed_streams(key)
        return self.make(indices)


class WorkerStart:
    """Shows the user's code in a worker the user's dataset, then runs the user's ``worker_init_fn``."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self._worker_init_fn = worker_init_fn

    def __call__(self, worker_id: int) -> None:
        info: Any = torch.utils.data.get_worker_info()
        # Past the class's own guard: the worker fetches through its own reference, this one is for the user.
        object.__setattr__(info, "dataset", info.dataset.dataset)
        if self._worker_init_fn is not None:
            self._worker_init_fn(worker_id)


def as_it_is(batch: Any) -> Any:
    """The collate function of a loader whose dataset already gives batches."""
    return batch


def stop_workers(iterator: Any) -> None:
    """End the processes of a torch loader's iterator; one that is busy gets half a second, not torch's five."""
    processes = list(getattr(iterator, "_workers", ()))
    shutdown = getattr(iterator, "_shutdown_workers", None)
    if shutdown is None:
        return

    def terminate() -> None:
        for process in processes:
            process.terminate()

    timer = threading.Timer(_GRACE_SECONDS, terminate)
    timer.daemon = True
    timer.start()
    try:
        shutdown()
    finally:
        timer.cancel()
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
