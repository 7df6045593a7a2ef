"""A copy of the training state at memory speed, and the one background thread that writes it to disk.

The copy goes into memory that was made ready beforehand and is used again for each checkpoint, so that training waits
for one memcpy and the next step may change every tensor while the copy is being written.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from determined.pytorch.archive import Extent, advise_huge_pages, new_storage, plain_copy, storage_id

logger = logging.getLogger(__name__)

_ALIGNMENT = 64
_FAULT_STEP = 4 << 20
_MADV_POPULATE_WRITE = 23
_WORTH_SEVERAL_THREADS = 1 << 20


class Captured:
    """A state as it was at one moment. `state` has the structure of the original, its tensors live in staging memory.

    Valid until `release`; after that the next capture overwrites it.
    """

    def __init__(self, state: Any, nbytes: int) -> None:
        self.state = state
        self.nbytes = nbytes
        self.in_flight = False  # handed to a Saver, which will release it
        self._barrier: _Barrier | None = None
        self._released = threading.Event()

    def ready(self) -> None:
        """Wait until every tensor has been copied. Returns at once unless the copy was asked to run behind.

        Until then nothing may write to the captured tensors: call it before `optimizer.step()` and before anything
        else that changes them. Raises what the copy raised.
        """
        if self._barrier is not None:
            self._barrier.wait()

    def release(self) -> None:
        """Give the staging memory back."""
        self._released.set()

    @property
    def released(self) -> bool:
        return self._released.is_set()

    def wait_released(self) -> None:
        self._released.wait()


class Snapshotter:
    """Copies states into staging memory that it keeps. One captured state at a time, called from one thread."""

    def __init__(self) -> None:
        self._staging = _Staging(0)
        self._preparing: threading.Thread | None = None
        self._held: weakref.ref[Captured] | None = None

    def prepare(self, state: Any) -> None:
        """Make staging memory for a state like this one (or for that many bytes) in the background.

        Fresh memory costs several times its copy to touch first; prepared, the first save is as quick as the others.
        """
        nbytes = state if type(state) is int else _Plan(state).staged_bytes
        if self._preparing is not None or nbytes <= self._staging.capacity or self._holder() is not None:
            return
        self._staging = _Staging(nbytes)
        # A capture that comes early only waits for what is left.
        self._preparing = threading.Thread(target=self._staging.fault_in, name="checkpoint-staging", daemon=True)
        self._preparing.start()

    def capture(self, state: Any, *, behind: bool | Iterable[torch.Tensor] = False) -> Captured:
        """Copy `state` and return the copy, which shares nothing with it.

        Waits while an earlier copy is still being written. With `behind`, the memory of the tensors given (of all, if
        it is True) is copied by another thread while the caller goes on: see Captured.ready for what that asks.
        Everything else is copied before this returns. Raises InvalidDataTypeException for what cannot be stored.
        """
        plan = _Plan(state)
        self._make_room(plan.staged_bytes)
        copies, events = self._staging.receive(plan)
        captured = Captured(plan.copied, plan.nbytes)
        self._held = weakref.ref(captured)
        later = set() if behind is False else plan.storages if behind is True else {storage_id(t) for t in behind}
        behind_copies = [copy for copy in copies if copy.storage in later]
        if behind_copies or events:
            captured._barrier = _Barrier(behind_copies, events)
        threads = torch.get_num_threads()
        for copy in copies:
            if copy.storage not in later:
                copy.run(threads)
        return captured

    def _holder(self) -> Captured | None:
        """Whoever still uses the staging memory."""
        held = self._held() if self._held is not None else None
        return None if held is None or held.released else held

    def _make_room(self, nbytes: int) -> None:
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None
        holder = self._holder()
        if holder is not None and holder.in_flight:
            started = time.perf_counter()
            holder.wait_released()
            waited = time.perf_counter() - started
            logger.debug("waited %.3f s for the previous checkpoint to be written before copying the next", waited)
        elif holder is not None:
            # Somebody still looks at the last copy and has not said when they are done: leave them the memory.
            self._staging = _Staging(0)
        if nbytes > self._staging.capacity:
            # The old memory goes first, or there would be two copies of the state beside the state.
            self._staging = _Staging(0)
            self._staging = _Staging(nbytes)
            self._staging.fault_in()


class Saver:
    """Writes captured states one at a time in a background thread. The process does not exit before it is done."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._result: Any = None
        self._failure: BaseException | None = None

    def save(self, captured: Captured, write: Callable[[], object]) -> None:
        """Run `write`, which puts `captured.state` on disk, in the background, and release `captured` afterwards.

        Waits for the save before it. What `write` raises is raised by `check` or `wait`; a failure of the save
        before, if nobody has asked yet, is not lost.
        """
        captured.in_flight = True
        self._join()
        # Not a daemon: the interpreter waits for such a thread, and with it for the checkpoint, before it exits.
        self._thread = threading.Thread(target=self._write, name="checkpoint-writer", args=(captured, write))
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a save that has failed, once. Never waits."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def wait(self) -> Any:
        """Wait until nothing is in flight; return what the last `write` returned, or raise what a save raised."""
        self._join()
        self.check()
        return self._result

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _join(self) -> None:
        if self._thread is None:
            return
        if self._thread.is_alive():
            started = time.perf_counter()
            self._thread.join()
            logger.debug("waited %.3f s for the previous checkpoint to be written", time.perf_counter() - started)
        self._thread = None

    def _write(self, captured: Captured, write: Callable[[], object]) -> None:
        self._result = None
        try:
            captured.ready()
            self._result = write()
        except BaseException as error:
            self._failure = error if self._failure is None else self._failure
            if not threading.main_thread().is_alive():
                # The program is over, nobody is left to ask: say it, loudly.
                logger.error("The last checkpoint was not saved: %s: %s", type(error).__name__, error)
        finally:
            captured.release()


class _Plan:
    """What there is to copy in a state: one walk, in which each tensor leaves a shell that is given memory later."""

    def __init__(self, state: Any) -> None:
        self.extents: dict[int, Extent] = {}
        self.shells: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.copied = plain_copy(state, self._include)
        self.nbytes = sum(extent.nbytes for extent in self.extents.values())
        self.staged_bytes = sum(_aligned(extent.nbytes) for extent in self.extents.values() if not _on_gpu(extent))

    @property
    def storages(self) -> set[int]:
        return set(self.extents)

    def _include(self, tensor: torch.Tensor) -> torch.Tensor:
        number = storage_id(tensor)
        extent = self.extents.get(number)
        if extent is None:
            extent = self.extents[number] = Extent(tensor.untyped_storage())
        extent.include(tensor)
        shell = torch.empty(0, dtype=tensor.dtype)
        if type(tensor) is torch.nn.Parameter:
            shell = torch.nn.Parameter(shell, requires_grad=tensor.requires_grad)
        elif tensor.requires_grad:
            shell.requires_grad_()
        self.shells.append((shell, tensor))
        return shell


class _Copy:
    """The bytes of one storage on the CPU, and the storage they go to."""

    __slots__ = ("extent", "storage", "target")

    def __init__(self, storage: int, extent: Extent, target: torch.UntypedStorage) -> None:
        self.storage = storage
        self.extent = extent
        self.target = target

    def run(self, threads: int) -> None:
        nbytes = self.extent.nbytes
        if threads > 1 and nbytes >= _WORTH_SEVERAL_THREADS:
            _bytes_of(self.target, 0, nbytes).copy_(_bytes_of(self.extent.storage, self.extent.start, nbytes))
        elif nbytes:
            # Without the interpreter's lock, and at a fraction of the cost of a torch operation when small.
            ctypes.memmove(self.target.data_ptr(), self.extent.storage.data_ptr() + self.extent.start, nbytes)


class _Barrier:
    """The copies that run while the caller goes on."""

    def __init__(self, copies: list[_Copy], events: list[torch.cuda.Event]) -> None:
        self._copies = copies
        self._events = events
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="checkpoint-copy")
        if copies:
            self._thread.start()

    def wait(self) -> None:
        if self._copies:
            self._thread.join()
        for event in self._events:
            event.synchronize()
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        try:
            for copy in self._copies:
                copy.run(threads=1)
        except BaseException as error:
            self._failure = error


class _Staging:
    """Memory that captured tensors live in: one block for those of the CPU, pinned blocks for those of GPUs."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._block: mmap.mmap | None = None
        if capacity:
            self._block = mmap.mmap(-1, capacity)
            advise_huge_pages(self._address(), capacity)
        self._slots: dict[tuple[int, int], torch.UntypedStorage] = {}
        self._pinned: dict[tuple[int, int], torch.UntypedStorage] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def fault_in(self) -> None:
        """Have the system provide the pages now rather than in the middle of a copy."""
        if self._block is None:
            return
        address = self._address()
        for start in range(0, self.capacity, _FAULT_STEP):
            # In steps, because the calls of other threads that change the address space have to wait for each.
            length = min(_FAULT_STEP, self.capacity - start)
            if _madvise is None or _madvise(
                ctypes.c_void_p(address + start), ctypes.c_size_t(length), _MADV_POPULATE_WRITE
            ):
                ctypes.memset(address + start, 0, length)

    def receive(self, plan: _Plan) -> tuple[list[_Copy], list[torch.cuda.Event]]:
        """Give each shell of `plan` its memory; return the copies to be made, those from GPUs under way already."""
        copies: list[_Copy] = []
        events: list[torch.cuda.Event] = []
        targets: dict[int, torch.UntypedStorage] = {}
        slots: dict[tuple[int, int], torch.UntypedStorage] = {}
        pinned: dict[tuple[int, int], torch.UntypedStorage] = {}
        at = 0
        for number, (storage, extent) in enumerate(plan.extents.items()):
            nbytes = extent.nbytes
            if _on_gpu(extent):
                target = self._pinned.get((number, nbytes))
                if target is None:
                    target = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).untyped_storage()
                pinned[number, nbytes] = targets[storage] = target
                events.append(self._start_copy(extent, target))
                continue
            target = self._slots.get((at, nbytes))
            if target is None:
                target = self._slot(at, nbytes)
            slots[at, nbytes] = targets[storage] = target
            at += _aligned(nbytes)
            if extent.storage.device.type == "cpu":
                copies.append(_Copy(storage, extent, target))
            elif nbytes:
                _bytes_of(target, 0, nbytes).copy_(_bytes_of(extent.storage, extent.start, nbytes))
        self._slots, self._pinned = slots, pinned
        with torch.no_grad():
            for shell, tensor in plan.shells:
                storage = storage_id(tensor)
                offset = plan.extents[storage].offset_of(tensor)
                shell.set_(targets[storage], offset, tensor.shape, tensor.stride())
        return copies, events

    def _slot(self, at: int, nbytes: int) -> torch.UntypedStorage:
        if not nbytes or self._block is None:
            return new_storage(0)
        # A storage of its own for each, or the writer would take the whole block for one shared storage.
        return torch.frombuffer(self._block, dtype=torch.uint8, count=nbytes, offset=at).untyped_storage()

    def _address(self) -> int:
        assert self._block is not None
        return ctypes.addressof(ctypes.c_char.from_buffer(self._block))

    def _start_copy(self, extent: Extent, target: torch.UntypedStorage) -> torch.cuda.Event:
        """Copy from a GPU beside its work; what the GPU does next waits for the copy, the host does not."""
        device = extent.storage.device
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        working = torch.cuda.current_stream(device)
        stream.wait_stream(working)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            source = _bytes_of(extent.storage, extent.start, extent.nbytes)
            _bytes_of(target, 0, extent.nbytes).copy_(source, non_blocking=True)
            done.record(stream)
        working.wait_event(done)
        return done


def _bytes_of(storage: torch.UntypedStorage, start: int, nbytes: int) -> torch.Tensor:
    view = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return view.set_(storage, start, (nbytes,), (1,))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _on_gpu(extent: Extent) -> bool:
    return extent.storage.device.type == "cuda"


_madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
