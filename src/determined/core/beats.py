"""Beats: one number per rank in shared memory, by which the node process sees that training goes on.

The loop stores the number of batches done after each batch; any change is a sign of life. 0 means "do not watch me".
The low 40 bits count batches: a phase that trains nothing but takes long, such as a validation, may count above them.
"""

from __future__ import annotations

import mmap
import os

from determined import errors

WIDTH = 8
COUNT_BITS = 40


def open_beats(path: str | None, local_rank: int) -> memoryview:
    """One unsigned 64-bit number that the node process can see; private memory when there is no node process."""
    if path is None:
        return memoryview(bytearray(WIDTH)).cast("Q")
    return open_all(path, local_rank + 1)[local_rank : local_rank + 1]


def open_all(path: str, ranks: int) -> memoryview:
    """The beats of every rank on this machine, at least ``ranks`` of them."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        size = os.fstat(descriptor).st_size // WIDTH * WIDTH
        if size < ranks * WIDTH:
            raise errors.InternalException(
                f"the beats file {path} has room for {size // WIDTH} ranks, not {ranks}; LOCAL_RANK or DET_BEATS was "
                "set by something other than the node process: leave both alone"
            )
        return memoryview(mmap.mmap(descriptor, size)).cast("Q")
    finally:
        os.close(descriptor)


def make(path: str, ranks: int) -> memoryview:
    """Make a beats file with every rank at 0, replacing what was there."""
    with open(path, "wb") as file:
        file.write(bytes(WIDTH * ranks))
    return open_all(path, ranks)


def batches_done(beat: int) -> int:
    """How many batches a beat stands for."""
    return beat & ((1 << COUNT_BITS) - 1)
