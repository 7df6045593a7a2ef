"""A whole batch by one index, where that gives the very tensors that stacking the samples one by one gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from determined.pytorch.data import DataLoader

# Several batches are gathered at once, and each is a view of its own rows: small enough that keeping one batch keeps
# little, large enough that the price of a gather is shared by many.
_BLOCK_BYTES = 256 * 1024
_BLOCK_BATCHES = 128
# As torch aligns a tensor of its own: sums may depend on alignment, and a batch must not differ by its place.
_ALIGNMENT = 64


class Columns(NamedTuple):
    """A dataset as tensors indexed by sample; ``rows`` maps a subset's samples to theirs."""

    tensors: tuple[torch.Tensor, ...]
    rows: torch.Tensor | None
    is_single: bool
    pins: bool = False

    def take(self, samples: torch.Tensor) -> Any:
        """One batch, as ``default_collate`` would make it."""
        parts = self._gather(samples)
        return parts[0] if self.is_single else parts

    def _gather(self, samples: torch.Tensor) -> list[torch.Tensor]:
        if self.rows is not None:
            samples = self.rows[samples]
        parts = [tensor.index_select(0, samples) for tensor in self.tensors]
        return [part.pin_memory() for part in parts] if self.pins else parts

    def batches(self, grid: torch.Tensor) -> Iterator[Any]:
        """The batches whose samples are the grid's rows."""
        tensors, batch_size = self.tensors, grid.shape[1]
        block = self._block(batch_size)
        if block == 1:
            for row in range(len(grid)):
                yield self.take(grid[row])
            return
        done = 0
        while done < len(grid):
            versions = [tensor._version for tensor in tensors]
            gathered = self._gather(grid[done : done + block].reshape(-1))
            # .data: a view that autograd does not know as one. Editing a batch must not count as an edit of its
            # neighbours.
            parts = [[part.data for part in _split(whole, batch_size)] for whole in gathered]
            for batch in parts[0] if self.is_single else map(list, zip(*parts, strict=True)):
                if [tensor._version for tensor in tensors] != versions:
                    # The dataset was edited since: what is ahead must be gathered again.
                    break
                done += 1
                yield batch

    def make(self, indices: Any) -> Any:
        """One batch of the user's own indices, or None where they are no plain list of samples."""
        try:
            samples = torch.tensor(indices, device="cpu")
            return self.take(samples) if samples.dim() == 1 and samples.dtype is torch.int64 else None
        except (IndexError, RuntimeError, TypeError, ValueError):
            return None

    def _block(self, batch_size: int) -> int:
        sizes = [batch_size * tensor.element_size() * tensor[:1].numel() for tensor in self.tensors]
        if any(size % _ALIGNMENT for size in sizes):
            return 1
        return max(1, min(_BLOCK_BATCHES, _BLOCK_BYTES // max(1, sum(sizes))))


# torch's own stub for this is missing.
_split: Callable[[torch.Tensor, int], tuple[torch.Tensor, ...]] = torch.Tensor.split


def columns_of(loader: DataLoader) -> Columns | None:
    """The loader's dataset as columns, or None where its batches must be made sample by sample."""
    if loader.collate_fn is not torch.utils.data.default_collate:
        return None
    if default_collate_fn_map.get(torch.Tensor) is not collate_tensor_fn:
        return None
    columns = _columns(loader.dataset)
    if columns is None or not all(_is_plain(tensor) for tensor in columns.tensors):
        return None
    if not _agrees(columns, loader):
        return None
    return columns._replace(pins=pins_memory(loader))


def pins_memory(loader: DataLoader) -> bool:
    """Whether batches go to page-locked memory: asked for, and of use."""
    return loader.pin_memory and torch.cuda.is_available()


def draws_nothing(loader: DataLoader) -> bool:
    """Whether making a batch is sure not to touch a random stream, so that none need be put aside for it."""
    return loader.collate_fn is torch.utils.data.default_collate and _draws_nothing(loader.dataset)


def _draws_nothing(dataset: Any) -> bool:
    kind = type(dataset)
    if kind is torch.utils.data.Subset:
        return _draws_nothing(dataset.dataset)
    if kind is torch.utils.data.ConcatDataset:
        return all(map(_draws_nothing, dataset.datasets))
    if kind is torch.utils.data.StackDataset:
        parts = dataset.datasets
        return all(map(_draws_nothing, parts.values() if isinstance(parts, dict) else parts))
    return kind in (torch.utils.data.TensorDataset, torch.Tensor, np.ndarray, list, tuple, range)


def _columns(dataset: Any) -> Columns | None:
    # Exact classes: a subclass may do anything with a sample.
    if type(dataset) is torch.utils.data.TensorDataset:
        return Columns(tuple(dataset.tensors), None, is_single=False)
    if type(dataset) is torch.Tensor and dataset.dim() > 0:
        return Columns((dataset,), None, is_single=True)
    if type(dataset) is torch.utils.data.Subset:
        inner = _columns(dataset.dataset)
        if inner is None or not inner.tensors:
            return None
        try:
            rows = torch.as_tensor(dataset.indices)
        except (TypeError, ValueError, RuntimeError):
            return None
        samples = len(inner.tensors[0]) if inner.rows is None else len(inner.rows)
        if rows.dim() != 1 or rows.dtype not in (torch.int64, torch.int32) or not len(rows):
            return None
        if int(rows.min()) < -samples or int(rows.max()) >= samples:
            return None
        rows = rows.long()
        rows = torch.where(rows < 0, rows + samples, rows)
        return Columns(inner.tensors, rows if inner.rows is None else inner.rows[rows], inner.is_single)
    return None


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and not (tensor.is_nested or tensor.is_inference())
    )


def _agrees(columns: Columns, loader: DataLoader) -> bool:
    """Try both ways on the first two samples: layouts follow rules of torch's own that no code here should repeat."""
    dataset: Any = loader.dataset
    count = min(2, loader.batch_size or 2, len(dataset))
    if count == 0:
        return False
    stacked = loader.collate_fn([dataset[sample] for sample in range(count)])
    gathered = columns.take(torch.arange(count, device="cpu"))
    pairs = [(stacked, gathered)] if columns.is_single else list(zip(stacked, gathered, strict=True))
    return all(
        one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride() for one, other in pairs
    )
