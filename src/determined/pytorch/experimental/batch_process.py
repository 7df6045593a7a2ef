"""torch_batch_process: every batch of a dataset once, shared out over the ranks, resumed where it was interrupted."""

from __future__ import annotations

import inspect
import logging
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Union

import torch
import torch.utils.data

from determined import core, errors
from determined.core.checkpoint import read_metadata
from determined.pytorch import archive, batches
from determined.pytorch.data import DataLoader
from determined.pytorch.experimental.batch_processor import TorchBatchProcessor, TorchBatchProcessorContext
from determined.pytorch.training import TrainingContext, init

logger = logging.getLogger("determined.pytorch")

_METADATA = "batch_process"
# Decided here: which batch is whose, and in which order they come, must be the same after every interruption.
_REFUSED = ("shuffle", "sampler", "batch_sampler")


def torch_batch_process(
    batch_processor_cls: type[TorchBatchProcessor],
    dataset: Union[torch.utils.data.Dataset[Any], Sequence[Any], torch.Tensor],
    batch_size: int | None = None,
    max_batches: int | None = None,
    checkpoint_interval: int = 5,
    dataloader_kwargs: dict[str, Any] | None = None,
    distributed_context: core.DistributedContext | None = None,
    *,
    latest_checkpoint: Union[str, os.PathLike[str], None] = None,
) -> None:
    """Give every batch of a dataset to a processor, on all ranks there are.

    Batches are cut from the dataset in its own order, and batch k goes to rank k % size: ``batch_idx`` puts results in
    the dataset's order again. ``max_batches`` counts those of all ranks. Progress is saved after every
    ``checkpoint_interval`` batches of a rank, at the end, and when asked to stop (Ctrl-C, SIGTERM, preemption); started
    again with ``latest_checkpoint`` ("latest", an id or a path) or ``DET_LATEST_CHECKPOINT``, or by a launcher that
    restarts, no batch done before the last save is done again, also on another number of ranks.

    >>> import torch
    >>> from determined.pytorch import experimental
    >>> class Doubler(experimental.TorchBatchProcessor):
    ...     def process_batch(self, batch, batch_idx):
    ...         with self.context.upload_path() as path:
    ...             torch.save(batch * 2, path / f"doubled-{batch_idx}.pt")
    ...
    ...     def on_finish(self):
    ...         print(sorted(file.name for file in self.context.output.iterdir()))
    >>> experimental.torch_batch_process(Doubler, torch.arange(10), batch_size=4)
    ['doubled-0.pt', 'doubled-1.pt', 'doubled-2.pt']
    """
    if not (inspect.isclass(batch_processor_cls) and issubclass(batch_processor_cls, TorchBatchProcessor)):
        raise TypeError(
            f"torch_batch_process takes a class derived from TorchBatchProcessor, not {batch_processor_cls}"
        )
    for name, value in (("checkpoint_interval", checkpoint_interval), ("max_batches", max_batches)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    loader = _loader(dataset, batch_size, dict(dataloader_kwargs or {}))
    with init(distributed=distributed_context) as training:
        core_context = training.core_context
        assert core_context is not None
        if latest_checkpoint is not None:
            core_context.resume(os.fspath(latest_checkpoint))
        core_context.checkpoint.retain(best=0, latest=1)
        work = _Work(batch_processor_cls, loader, max_batches, training, core_context)
        if work.process(checkpoint_interval):
            work.finish()


class _Work:
    """One rank's part of the dataset.

    Work goes in rounds of one batch per rank, so that after a round everything before some batch is done and nothing
    behind it: a cut that any number of ranks can go on from.
    """

    def __init__(
        self,
        batch_processor_cls: type[TorchBatchProcessor],
        loader: DataLoader,
        max_batches: int | None,
        training: TrainingContext,
        core_context: core.Context,
    ) -> None:
        self._core = core_context
        self._ranks = ranks = core_context.distributed
        self._loader = loader
        total = len(loader)
        self._total = total if max_batches is None else min(total, max_batches)
        self._facts = {"records": _length(loader.dataset), "batch_size": loader.batch_size}
        self._done = self._saved = 0
        self._line = core_context.preempt.stop_line(lambda: self._done)
        context = TorchBatchProcessorContext(training)
        self._processor = batch_processor_cls(context)
        self._start = min(self._resume(), self._total)
        self._rounds = -(-(self._total - self._start) // ranks.size)
        # The first batch from the start on that is this rank's.
        first = self._start + (ranks.rank - self._start) % ranks.size
        self._next = first
        self._source = batches.validation_batches(loader, seed=core_context.seed, rank=first, size=ranks.size)
        if ranks.rank == 0:
            core_context.console.info(
                f"batches {self._start} to {self._total - 1} of {total} on {ranks.size} rank(s); results go to "
                f"{context.output}"
                if self._rounds
                else f"all {self._total} batches are done already"
            )

    @property
    def steps_completed(self) -> int:
        """How many batches of the dataset are done, on all ranks: all before this one."""
        return min(self._start + self._done * self._ranks.size, self._total)

    def process(self, interval: int) -> bool:
        """Process all batches and save the progress; False when asked to stop before they were done."""
        try:
            while self._done < self._rounds:
                stopped = self._process_until(min(self._done + interval, self._rounds))
                self._save()
                if stopped and self._done < self._rounds:
                    self._core.preempt.acknowledge_preemption_signal()
                    return False
        finally:
            self._source.close()
            self._loader.close()
            self._line.finish()
        return True

    def finish(self) -> None:
        """Tell the processor, and leave together."""
        self._processor.on_finish()
        if self._ranks.size > 1:
            self._ranks.allgather(None)

    def _process_until(self, boundary: int) -> bool:
        """Process to a round, or to the one at which all ranks agreed to stop: then the answer is True."""
        line, beats, size = self._line, self._core.beats, self._ranks.size
        while self._done < boundary:
            while self._done < boundary and self._done < line.at:
                # In the last round there may be no batch left for this rank.
                if self._next < self._total:
                    self._processor.process_batch(next(self._source), self._next)
                    self._next += size
                self._done += 1
                beats[0] = self._done
            # settle() may put the line further on, when other ranks were ahead of us.
            if self._done >= line.at and self._done >= line.settle():
                return True
        return False

    def _save(self) -> None:
        if self._done == self._saved:
            return
        self._processor.on_checkpoint_start()
        state = self._processor.state_dict()
        is_chief = self._ranks.rank == 0
        metadata = {"steps_completed": self.steps_completed, _METADATA: self._facts} if is_chief else None
        try:
            with self._core.checkpoint.store_path(metadata, shard=True) as (path, _):
                if state:
                    torch.save(state, path / _state_name(self._ranks.rank, self._ranks.size))
        except errors.CheckpointStateException as error:
            logger.error("PROGRESS COULD NOT BE SAVED: %s. The work goes on.", error)
        self._saved = self._done
        if is_chief:
            self._core.train.report_progress(self.steps_completed / self._total)

    def _resume(self) -> int:
        """Take up what the checkpoint of this run says, and return how many batches are done."""
        found = self._core.found
        if found is None:
            return 0
        with self._core.checkpoint.reading(found.path) as path:
            self._require_same_work(read_metadata(path).get(_METADATA), found.storage_id)
            states = sorted(each.name for each in path.glob("state-*.pt"))
            mine = _state_name(self._ranks.rank, self._ranks.size)
            if mine in states:
                self._processor.load_state_dict(archive.read(path / mine))
            elif states and not any(_is_of_size(each, self._ranks.size) for each in states):
                then = states[0].rpartition("-of-")[2].removesuffix(".pt")
                raise errors.InvalidCheckpointException(
                    f"checkpoint {found.storage_id} holds a processor's state for each of {then} ranks, and now there "
                    f"are {self._ranks.size}; start it on {then} again, or leave state_dict() out"
                )
        return found.steps_completed

    def _require_same_work(self, facts: Any, storage_id: str) -> None:
        if not isinstance(facts, Mapping):
            raise errors.InvalidCheckpointException(
                f"checkpoint {storage_id} is not the progress of a torch_batch_process; name another one as "
                "latest_checkpoint, or none to begin with the first batch"
            )
        if facts != self._facts:
            raise errors.InvalidCheckpointException(
                f"checkpoint {storage_id} is of {facts.get('records')} records in batches of "
                f"{facts.get('batch_size')}, and now there are {self._facts['records']} in batches of "
                f"{self._facts['batch_size']}; use the same dataset and batch_size, or begin with the first batch"
            )


def _loader(dataset: Any, batch_size: int | None, options: dict[str, Any]) -> DataLoader:
    refused = [name for name in _REFUSED if options.get(name)]
    if refused:
        raise ValueError(
            f"dataloader_kwargs must leave out {', '.join(refused)}: batches are cut from the dataset in its own "
            "order; pass a torch.utils.data.Subset for other records or another order"
        )
    if batch_size is not None and "batch_size" in options:
        raise ValueError("batch_size is given twice, as an argument and in dataloader_kwargs; leave one out")
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise errors.InvalidExperimentException(
            f"torch_batch_process needs a dataset with a length and an index, not {type(dataset).__name__}: only then "
            "can batches be shared out and taken up again"
        )
    size = batch_size if batch_size is not None else options.pop("batch_size", 1)
    return DataLoader(dataset, batch_size=size, **options)


def _length(dataset: Any) -> int:
    return len(dataset)


def _state_name(rank: int, size: int) -> str:
    return f"state-{rank}-of-{size}.pt"


def _is_of_size(name: str, size: int) -> bool:
    return pathlib.PurePath(name).stem.endswith(f"-of-{size}")
