"""Writes and reads the files that torch.save writes: faster, hashed on the way, and free of anything that could run.

A file is a zip with uncompressed, 64-byte aligned records: the state as a pickle and one record per tensor storage.
Plain `torch.load(path, weights_only=True)` reads it.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import pickle
import struct
import sys
import threading
import zlib
from bisect import bisect_right
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash

from determined.errors import InvalidCheckpointException, InvalidDataTypeException
from determined.pytorch import pickles
from determined.storage.digest import CHUNK_BYTES, PREFIX

_ALIGNMENT = 64
_UINT32_MAX = 0xFFFFFFFF
_UINT16_MAX = 0xFFFF
_SMALL = 64 << 10  # below this, copying a piece is cheaper than a system call's handling of one more
_HUGE_PAGES_FROM = 4 << 20
_MADV_HUGEPAGE = 14

_PLAIN = frozenset(
    {bool, int, float, complex, str, bytes, bytearray, type(None), torch.dtype, torch.device, torch.Size}
)


def write(obj: Any, path: str | os.PathLike[str], *, sync: bool = True) -> tuple[int, str]:
    """Write `obj` to `path`; return the file's size and its digest (that of storage.digest.digest_file).

    `obj` is made of dicts, lists, tuples, sets, plain numbers and text, and dense tensors; tensors that share memory
    still do when read. Anything else raises InvalidDataTypeException naming its place. Durable on return if `sync`.
    A file that could not be finished is removed.
    """
    records = _records(obj)
    layout = _Layout(records)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        _reserve(fd, layout.size)
        out = _ChunkWriter(fd)
        for piece in layout.pieces():
            out.add(piece)
        digest = out.finish()
        assert out.position == layout.size
        if sync:
            os.fsync(fd)
    except BaseException:
        os.close(fd)
        Path(path).unlink(missing_ok=True)
        raise
    os.close(fd)
    return layout.size, digest


def read(path: str | os.PathLike[str], *, verify_digest: str | None = None, into: Any = None) -> Any:
    """Return what `write` or torch.save put into `path`, with tensors on the CPU that own their memory.

    With `verify_digest` the whole file is hashed while it is read, and a single wrong bit raises
    InvalidCheckpointException, as does anything that is not plain data. `into` is a state of the same structure:
    a tensor found in it at the same place, of the same type and shape, is filled in place and returned, which saves a
    copy. If the file turns out to be damaged such a tensor is left with whatever was read.
    """
    source = Path(path)
    fd = os.open(source, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        size = os.fstat(fd).st_size
        try:
            state, regions = _open_state(fd, size, str(source), into)
        except InvalidCheckpointException:
            if verify_digest is not None and _fill(fd, size, [], hashed=True) != verify_digest:
                raise _wrong_digest(source) from None
            raise
        digest = _fill(fd, size, regions, hashed=verify_digest is not None)
    finally:
        os.close(fd)
    if verify_digest is not None and digest != verify_digest:
        raise _wrong_digest(source)
    return state


def looks_like_one(path: str | os.PathLike[str]) -> bool:
    """Tell whether `path` is a zip; torch before 1.6 wrote something else."""
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def plain_copy(state: Any, tensor: Callable[[torch.Tensor], Any]) -> Any:
    """Copy `state` deeply with `tensor(t)` in the place of each tensor t.

    Raises InvalidDataTypeException, naming its place, for anything a checkpoint does not store. Lists and dicts that
    appear twice still do; numpy's scalars become Python's, defaultdicts dicts.
    """
    return _PlainCopy(tensor).copy(state, None)


class Extent:
    """The part of one storage that the tensors of a state look at."""

    __slots__ = ("dtypes", "end", "start", "storage")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.start = sys.maxsize
        self.end = 0
        self.dtypes: set[torch.dtype] = set()

    def include(self, tensor: torch.Tensor) -> None:
        self.dtypes.add(tensor.dtype)
        if tensor.numel():
            itemsize = tensor.dtype.itemsize
            first = int(tensor.storage_offset())
            span = 1
            for length, step in zip(tensor.shape, tensor.stride(), strict=True):
                span += (length - 1) * step
            # Kept a multiple of 16, so that it is a whole number of elements for each type that may look at it.
            self.start = min(self.start, first * itemsize // 16 * 16)
            self.end = max(self.end, (first + span) * itemsize)

    @property
    def nbytes(self) -> int:
        return max(0, self.end - self.start)

    def offset_of(self, tensor: torch.Tensor) -> int:
        """The tensor's offset in elements, counted from the start of this extent."""
        return int(tensor.storage_offset()) - self.start // tensor.dtype.itemsize if tensor.numel() else 0


def storage_id(tensor: torch.Tensor) -> int:
    """A number that two tensors have in common exactly when they share memory."""
    return int(tensor.untyped_storage()._cdata)


# How a place in the state is remembered: a link to where it was found, spelt out only when there is an error to tell.
_Place = tuple[Any, Any] | None


class _PlainCopy:
    def __init__(self, tensor: Callable[[torch.Tensor], Any]) -> None:
        self._tensor = tensor
        self._done: dict[int, Any] = {}

    def copy(self, value: Any, place: _Place) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return bytearray(value) if kind is bytearray else value
        if id(value) in self._done:
            return self._done[id(value)]
        if isinstance(value, torch.Tensor):
            copied = self._tensor(_storable(value, place))
        elif kind is dict or kind is OrderedDict or kind is defaultdict or kind is Counter:
            return self._copy_dict(value, place)
        elif kind is list:
            copied = self._done[id(value)] = []
            copied.extend(self._copy_items(value, place))
        elif kind is tuple:
            copied = tuple(self._copy_items(value, place))
        elif kind is set:
            copied = {_key(item, place) for item in value}
        elif isinstance(value, np.generic):
            return _number(value, place)
        else:
            raise InvalidDataTypeException(kind.__name__, f"{_spelt(place)} cannot be stored in a checkpoint. {_FIX}")
        self._done[id(value)] = copied
        return copied

    def _copy_items(self, items: Sequence[Any], place: _Place) -> Iterable[Any]:
        return [item if type(item) in _ATOMS else self.copy(item, (place, n)) for n, item in enumerate(items)]

    def _copy_dict(self, value: dict[Any, Any], place: _Place) -> Any:
        kind = type(value)
        copied: dict[Any, Any] = {} if kind is defaultdict else kind()
        self._done[id(value)] = copied
        for key, item in value.items():
            key = key if type(key) is str else _key(key, place)
            copied[key] = item if type(item) in _ATOMS else self.copy(item, (place, key))
        if kind is OrderedDict and "_metadata" in value.__dict__:
            copied.__dict__["_metadata"] = self.copy(value.__dict__["_metadata"], (place, "_metadata"))
        return copied


_ATOMS = _PLAIN - {bytearray}
_FIX = (
    "Keep tensors, numbers, text, lists and dicts in it; turn a numpy array into a tensor with torch.from_numpy(), "
    "and an object into a dict of its values"
)


def _key(key: Any, place: _Place) -> Any:
    if type(key) in _ATOMS:
        return key
    if isinstance(key, np.generic):
        return _number(key, place)
    if type(key) is tuple:
        return tuple(_key(part, place) for part in key)
    raise InvalidDataTypeException(type(key).__name__, f"A key of {_spelt(place)} has it. Use text or numbers as keys")


def _number(value: np.generic[Any], place: _Place) -> Any:
    number = value.item()
    if type(number) not in _PLAIN:
        raise InvalidDataTypeException(type(value).__name__, f"{_spelt(place)} cannot be stored. {_FIX}")
    return number


def _storable(tensor: torch.Tensor, place: _Place) -> torch.Tensor:
    """The tensor itself, or an equal one without pending operations; an error if it is not plain, dense memory."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        name = type(tensor).__name__
        advice = (
            "Use the sharded checkpoint of the parallel strategy, or gather it with full_tensor()"
            if name == "DTensor"
            else "Store a plain tensor, for example tensor.detach().as_subclass(torch.Tensor).clone()"
        )
        raise InvalidDataTypeException(name, f"{_spelt(place)} is a tensor of a class of its own. {advice}")
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout)
        raise InvalidDataTypeException(kind, f"{_spelt(place)} is not a dense tensor. Store tensor.to_dense()")
    if tensor.is_quantized:
        raise InvalidDataTypeException(
            str(tensor.dtype), f"{_spelt(place)} is quantized. Store int_repr(), q_scale() and q_zero_point() of it"
        )
    if tensor.device.type == "meta":
        raise InvalidDataTypeException("meta tensor", f"{_spelt(place)} has no values. Materialise the model first")
    if tensor.is_conj() or tensor.is_neg():
        return tensor.resolve_conj().resolve_neg()
    return tensor


def _spelt(place: _Place) -> str:
    parts: list[str] = []
    while place is not None:
        place, key = place
        parts.append(f"[{key!r}]")
    return "state" + "".join(reversed(parts))


# Writing


class _TensorRecord:
    """Stands for a tensor in the pickle."""

    __slots__ = ("extent", "key", "tensor")

    def __init__(self, tensor: torch.Tensor, key: str, extent: Extent) -> None:
        self.tensor = tensor
        self.key = key
        self.extent = extent


class _StorageRecord:
    """Stands for a storage in the pickle: becomes torch's persistent id."""

    __slots__ = ("persistent_id",)

    def __init__(self, key: str, storage_class: Any, length: int) -> None:
        self.persistent_id = ("storage", storage_class, key, "cpu", length)


class _StatePickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return obj.persistent_id if type(obj) is _StorageRecord else None

    def reducer_override(self, obj: Any) -> Any:
        return _reduced(obj) if type(obj) is _TensorRecord else NotImplemented


def _reduced(record: _TensorRecord) -> Any:
    tensor, extent = record.tensor, record.extent
    offset, size, stride = extent.offset_of(tensor), tuple(tensor.shape), tensor.stride()
    is_parameter = type(tensor) is torch.nn.Parameter
    requires_grad = tensor.requires_grad and not is_parameter
    hooks: OrderedDict[Any, Any] = OrderedDict()
    class_name = torch.storage._dtype_to_storage_type_map().get(tensor.dtype)
    rebuilt: Any
    if class_name is None or len(extent.dtypes) > 1:
        # Types without a storage class of their own, and memory seen as several types: bytes, and the type beside.
        storage = _StorageRecord(record.key, torch.UntypedStorage, extent.nbytes)
        arguments = (storage, offset, size, stride, requires_grad, hooks, tensor.dtype)
        rebuilt = (torch._utils._rebuild_tensor_v3, arguments)
    else:
        storage = _StorageRecord(record.key, getattr(torch, class_name), extent.nbytes // tensor.dtype.itemsize)
        rebuilt = (torch._utils._rebuild_tensor_v2, (storage, offset, size, stride, requires_grad, hooks))
    if is_parameter:
        return torch._utils._rebuild_parameter, (_Reduced(rebuilt), tensor.requires_grad, OrderedDict())
    return rebuilt


class _Reduced:
    """A reduction ready to be pickled in place of an object."""

    __slots__ = ("reduction",)

    def __init__(self, reduction: Any) -> None:
        self.reduction = reduction

    def __reduce__(self) -> Any:
        return self.reduction


class _Record(NamedTuple):
    name: str
    nbytes: int
    contents: Callable[[], memoryview]


def _records(obj: Any) -> list[_Record]:
    extents: dict[int, Extent] = {}
    keys: dict[int, str] = {}

    def stand_in(tensor: torch.Tensor) -> _TensorRecord:
        storage = storage_id(tensor)
        extent = extents.get(storage)
        if extent is None:
            extent = extents[storage] = Extent(tensor.untyped_storage())
            keys[storage] = str(len(keys))
        extent.include(tensor)
        return _TensorRecord(tensor, keys[storage], extent)

    state = plain_copy(obj, stand_in)
    pickled = io.BytesIO()
    try:
        _StatePickler(pickled, protocol=2).dump(state)
    except RecursionError:
        raise InvalidDataTypeException(
            "deep nesting", "The state is nested too deeply to be stored. Flatten it"
        ) from None
    records = [
        _constant("data.pkl", pickled.getbuffer()),
        _constant(".format_version", b"1"),
        _constant(".storage_alignment", str(_ALIGNMENT).encode()),
        _constant("byteorder", sys.byteorder.encode()),
    ]
    for storage, extent in extents.items():
        records.append(_Record(f"data/{keys[storage]}", extent.nbytes, _Contents(extent)))
    records.append(_constant("version", b"3\n"))
    return records


def _constant(name: str, data: bytes | memoryview) -> _Record:
    view = memoryview(data)
    return _Record(name, len(view), lambda: view)


class _Contents:
    __slots__ = ("_extent",)

    def __init__(self, extent: Extent) -> None:
        self._extent = extent

    def __call__(self) -> memoryview:
        extent = self._extent
        storage = extent.storage if extent.storage.device.type == "cpu" else extent.storage.cpu()  # type: ignore[no-untyped-call]
        return memory_of(storage, extent.start, extent.nbytes)


def memory_of(storage: torch.UntypedStorage, start: int, nbytes: int) -> memoryview:
    """The bytes of a CPU storage, without a copy; the storage stays alive as long as the view."""
    if not nbytes:
        return memoryview(b"")
    array = (ctypes.c_char * nbytes).from_address(storage.data_ptr() + start)
    array._storage = storage  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


class _Layout:
    """Where each record goes. The same rules as torch's own writer, which lets its reader compute the places."""

    def __init__(self, records: list[_Record]) -> None:
        self._entries: list[tuple[_Record, bytes, int, bytes]] = []
        position = 0
        for record in records:
            name = f"archive/{record.name}".encode()
            header = _local_header(name, record.nbytes, position)
            self._entries.append((record, name, position, header))
            position += len(header) + record.nbytes + _descriptor_size(record.nbytes, position)
        self._directory_at = position
        self.size = position + len(self._directory([0] * len(records)))

    def pieces(self) -> Iterator[memoryview]:
        checksums: list[int] = []
        for record, _, position, header in self._entries:
            yield memoryview(header)
            contents = record.contents()
            # The zip's own checksum takes seven times as long as the digest that is verified, and torch's reader does
            # not look at it: large records go without, as they do in torch with set_crc32_options(False).
            checksum = zlib.crc32(contents) if record.nbytes < CHUNK_BYTES else 0
            for start in range(0, record.nbytes, CHUNK_BYTES):
                yield contents[start : start + CHUNK_BYTES]
            checksums.append(checksum)
            if record.nbytes:
                sizes = "<IIQQ" if _is_big(record.nbytes, position) else "<IIII"
                yield memoryview(struct.pack(sizes, 0x08074B50, checksum, record.nbytes, record.nbytes))
        yield memoryview(self._directory(checksums))

    def _directory(self, checksums: list[int]) -> bytes:
        out = bytearray()
        for (record, name, position, _), checksum in zip(self._entries, checksums, strict=True):
            extra = _zip64_extra(record.nbytes, position)
            size, at = min(record.nbytes, _UINT32_MAX), min(position, _UINT32_MAX)
            flags = 0x0808 if record.nbytes else 0x0800
            fields = (0x02014B50, 45 if extra else 20, 45 if extra else 20, flags, 0, 0, 0x21)
            out += struct.pack("<IHHHHHH", *fields)
            out += struct.pack("<IIIHHHHHII", checksum, size, size, len(name), len(extra), 0, 0, 0, 0, at)
            out += name + extra
        count, size, at = len(self._entries), len(out), self._directory_at
        if count >= _UINT16_MAX or at + size >= _UINT32_MAX:
            out += struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, at)
            out += struct.pack("<IIQI", 0x07064B50, 0, at + size, 1)
        few, size32, at32 = min(count, _UINT16_MAX), min(size, _UINT32_MAX), min(at, _UINT32_MAX)
        out += struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, few, few, size32, at32, 0)
        return bytes(out)


def _is_big(nbytes: int, position: int) -> bool:
    return nbytes >= _UINT32_MAX or position >= _UINT32_MAX


def _descriptor_size(nbytes: int, position: int) -> int:
    return 0 if not nbytes else 24 if _is_big(nbytes, position) else 16


def _zip64_extra(nbytes: int, position: int) -> bytes:
    values = ([nbytes, nbytes] if nbytes >= _UINT32_MAX else []) + ([position] if position >= _UINT32_MAX else [])
    return struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values) if values else b""


def _local_header(name: bytes, nbytes: int, position: int) -> bytes:
    extra = _zip64_extra(nbytes, position)
    start = position + 30 + len(name) + len(extra) + 4
    padding = -start % _ALIGNMENT
    extra += b"FB" + struct.pack("<H", padding) + b"Z" * padding
    size = min(nbytes, _UINT32_MAX)
    flags = 0x0808 if nbytes else 0x0800
    fixed = struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, flags, 0, 0, 0x21, 0, size, size, len(name), len(extra))
    return fixed + name + extra


def _reserve(fd: int, size: int) -> None:
    """Claim the space first: a full disk is found before any work, and writing into ready blocks is steady."""
    try:
        os.posix_fallocate(fd, 0, size)
    except AttributeError:  # not on this system
        return
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV):
            raise


class _ChunkWriter:
    """Gathers pieces into chunks of 1 MiB of the file; hashes and writes each while it is in the cache.

    Calls of 1 MiB on purpose: larger ones were found erratic, up to ten times slower.
    """

    def __init__(self, fd: int) -> None:
        self.position = 0
        self._fd = fd
        self._parts: list[bytearray | memoryview] = []
        self._gathered = 0
        self._digests: list[bytes] = []

    def add(self, piece: memoryview) -> None:
        while len(piece):
            part = piece[: CHUNK_BYTES - self._gathered]
            if len(part) >= _SMALL:
                self._parts.append(part)
            elif self._parts and isinstance(self._parts[-1], bytearray):
                self._parts[-1] += part
            else:
                self._parts.append(bytearray(part))
            self._gathered += len(part)
            piece = piece[len(part) :]
            if self._gathered == CHUNK_BYTES:
                self._flush()

    def finish(self) -> str:
        if self._gathered:
            self._flush()
        return _combined(self._digests)

    def _flush(self) -> None:
        self._digests.append(_chunk_digest(self._parts))
        views = [memoryview(part) for part in self._parts]
        while views:
            written = os.pwritev(self._fd, views, self.position)
            self.position += written
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if views:
                views[0] = views[0][written:]
        self._parts = []
        self._gathered = 0


def _chunk_digest(parts: Sequence[bytes | bytearray | memoryview]) -> bytes:
    if len(parts) == 1:
        return xxhash.xxh3_128_digest(parts[0])
    running = xxhash.xxh3_128()
    for part in parts:
        running.update(part)
    return running.digest()


def _combined(digests: Sequence[bytes]) -> str:
    return PREFIX + xxhash.xxh3_128_hexdigest(b"".join(digests))


# Reading


class _Region(NamedTuple):
    """A stretch of the file and the memory it belongs in."""

    start: int
    end: int
    memory: memoryview


class _Entry(NamedTuple):
    start: int
    nbytes: int


def _wrong_digest(source: Path) -> InvalidCheckpointException:
    return InvalidCheckpointException(
        f"{source} is not the file that was saved: its hash differs from the one in the manifest. "
        "It was damaged or changed; use another checkpoint"
    )


def _damaged(source: str, why: str) -> InvalidCheckpointException:
    return InvalidCheckpointException(
        f"{source} is damaged or not a checkpoint: {why}. Use another checkpoint, or restore this one from a copy"
    )


def _open_state(fd: int, size: int, source: str, into: Any) -> tuple[Any, list[_Region]]:
    """Unpickle the state with tensors over memory yet to be filled, and tell what goes where."""
    entries = _entries(fd, size, source)
    names = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(names) != 1:
        raise _damaged(source, "it holds no state (data.pkl)")
    prefix = names[0].removesuffix("data.pkl")
    order = entries.get(f"{prefix}byteorder")
    if order is not None and _pread(fd, order, source) != sys.byteorder.encode():
        raise _damaged(source, "it was written on a machine with another byte order")
    handles: dict[str, pickles.StorageHandle] = {}
    regions: dict[str, _Region] = {}

    def make_storage(pid: tuple[Any, ...]) -> pickles.StorageHandle:
        dtype, key, _, length = pid[:4]
        if key not in handles:
            entry = entries.get(f"{prefix}data/{key}")
            if entry is None or type(length) is not int or length * dtype.itemsize != entry.nbytes:
                raise _damaged(source, f"the record of tensor storage {key!r} is missing or has the wrong size")
            storage = new_storage(entry.nbytes)
            handles[key] = pickles.StorageHandle(storage, dtype)
            memory = memory_of(storage, 0, entry.nbytes)
            regions[key] = _Region(entry.start, entry.start + entry.nbytes, memory)
        handle = handles[key]
        return handle if handle.dtype == dtype else pickles.StorageHandle(handle.storage, dtype)

    state = pickles.loads(_pread(fd, entries[names[0]], source), source=source, storage=make_storage)
    if into is not None:
        by_storage = {handle.storage._cdata: key for key, handle in handles.items()}
        _adopt(state, into, by_storage, regions)
    return state, sorted((region for region in regions.values() if region.end > region.start), key=lambda r: r.start)


def new_storage(nbytes: int) -> torch.UntypedStorage:
    """Memory for a tensor; large ones in large pages, which saves most of the cost of the first touch."""
    storage = torch.UntypedStorage(nbytes)  # type: ignore[no-untyped-call]
    if nbytes >= _HUGE_PAGES_FROM:
        advise_huge_pages(storage.data_ptr(), nbytes)
    return storage


def advise_huge_pages(address: int, nbytes: int) -> None:
    """Ask for large pages where that is possible; it is only a hint."""
    if _madvise is not None:
        page = 4096
        start = -(-address // page) * page
        _madvise(ctypes.c_void_p(start), ctypes.c_size_t((address + nbytes - start) // page * page), _MADV_HUGEPAGE)


_madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None


def _adopt(state: Any, into: Any, by_storage: dict[int, str], regions: dict[str, _Region]) -> None:
    """Point tensors of `state` at the memory of their like in `into`, where nothing else looks at either."""
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    uses: Counter[int] = Counter()
    targets: Counter[int] = Counter()
    _pair(state, into, pairs, uses, set())
    for _, target in pairs:
        targets[storage_id(target)] += 1
    for tensor, target in pairs:
        storage = storage_id(tensor)
        fits = (
            tensor.dtype == target.dtype
            and tensor.shape == target.shape
            and target.device.type == "cpu"
            and target.layout is torch.strided
            and tensor.is_contiguous()
            and target.is_contiguous()
            and tensor.numel() > 0
            and tensor.nbytes == tensor.untyped_storage().nbytes()
        )
        if not fits or uses[storage] > 1 or targets[storage_id(target)] > 1 or storage not in by_storage:
            continue
        old = regions[by_storage[storage]]
        home = target.untyped_storage()
        at = int(target.storage_offset())
        memory = memory_of(home, at * target.dtype.itemsize, tensor.nbytes)
        regions[by_storage[storage]] = _Region(old.start, old.end, memory)
        with torch.no_grad():
            tensor.set_(home, at, tensor.shape, tensor.stride())


def _pair(
    value: Any, target: Any, pairs: list[tuple[torch.Tensor, torch.Tensor]], uses: Counter[int], seen: set[int]
) -> None:
    if isinstance(value, torch.Tensor):
        if id(value) not in seen:
            seen.add(id(value))
            uses[storage_id(value)] += 1
            if type(target) in (torch.Tensor, torch.nn.Parameter):
                pairs.append((value, target))
    elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, dict):
            for key, item in value.items():
                _pair(item, target.get(key) if isinstance(target, dict) else None, pairs, uses, seen)
        else:
            like = target if isinstance(target, (list, tuple)) else ()
            for n, item in enumerate(value):
                _pair(item, like[n] if n < len(like) else None, pairs, uses, seen)


def _entries(fd: int, size: int, source: str) -> dict[str, _Entry]:
    """The records of the zip, each checked to lie inside the file, uncompressed and apart from the others."""
    try:
        found = dict(_directory(fd, size, source))
    except (struct.error, UnicodeDecodeError, IndexError, ValueError, OverflowError) as error:
        raise _damaged(source, f"its table of contents cannot be read ({error})") from None
    end = 0
    for name, entry in sorted(found.items(), key=lambda item: item[1]):
        if entry.start < end or entry.start + entry.nbytes > size:
            raise _damaged(source, f"the record {name} lies outside the file or across another")
        end = entry.start + entry.nbytes
    return found


def _directory(fd: int, size: int, source: str) -> Iterator[tuple[str, _Entry]]:
    tail_start = max(0, size - _UINT16_MAX - 22)
    tail = _pread(fd, _Entry(tail_start, size - tail_start), source)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0:
        raise _damaged(source, "its end is missing, it was probably cut short")
    _, _, _, _, count, length, start, _ = struct.unpack_from("<IHHHHIIH", tail, at)
    if at >= 20 and tail[at - 20 : at - 16] == b"PK\x06\x07":
        (at64,) = struct.unpack_from("<Q", tail, at - 12)
        end64 = _pread(fd, _Entry(at64, 56), source)
        if end64[:4] != b"PK\x06\x06":
            raise _damaged(source, "its end is missing")
        count, length, start = struct.unpack_from("<QQQ", end64, 32)
    if start + length > size or count * 46 > length:
        raise _damaged(source, "its table of contents lies outside the file")
    directory = _pread(fd, _Entry(start, length), source)
    names: set[str] = set()
    position = 0
    for _ in range(count):
        fields = struct.unpack_from("<IHHHHHHIIIHHHHHII", directory, position)
        signature, flags, method = fields[0], fields[3], fields[4]
        packed, nbytes, name_length, extra_length, comment_length, local = *fields[8:13], fields[16]
        if signature != 0x02014B50 or method != 0 or flags & 1:
            raise _damaged(source, "a record is compressed, encrypted or not a record")
        position += 46
        name = directory[position : position + name_length].decode()
        extra = directory[position + name_length : position + name_length + extra_length]
        packed, nbytes, local = _zip64_values(extra, packed, nbytes, local)
        position += name_length + extra_length + comment_length
        if name in names or packed != nbytes:
            raise _damaged(source, f"the record {name!r} is there twice or compressed")
        names.add(name)
        header = _pread(fd, _Entry(local, 30), source)
        signature, local_name_length, local_extra_length = *struct.unpack_from("<I", header), *header_lengths(header)
        if signature != 0x04034B50:
            raise _damaged(source, f"the record {name!r} has no header")
        yield name, _Entry(local + 30 + local_name_length + local_extra_length, nbytes)


def header_lengths(header: bytes) -> tuple[int, int]:
    name_length, extra_length = struct.unpack_from("<HH", header, 26)
    return name_length, extra_length


def _zip64_values(extra: bytes, packed: int, nbytes: int, local: int) -> tuple[int, int, int]:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            values = iter(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            # Each is there only if its 32-bit field says so, in this order: unpacked, packed, place.
            nbytes = next(values, nbytes) if nbytes == _UINT32_MAX else nbytes
            packed = next(values, packed) if packed == _UINT32_MAX else packed
            local = next(values, local) if local == _UINT32_MAX else local
            break
        at += 4 + length
    return packed, nbytes, local


def _pread(fd: int, entry: _Entry, source: str) -> bytes:
    if entry.start < 0 or entry.start + entry.nbytes > os.fstat(fd).st_size:
        raise _damaged(source, "a record lies outside the file")
    data = os.pread(fd, entry.nbytes, entry.start)
    while len(data) < entry.nbytes:
        more = os.pread(fd, entry.nbytes - len(data), entry.start + len(data))
        if not more:
            raise _damaged(source, "it was cut short while being read")
        data += more
    return data


def _fill(fd: int, size: int, regions: list[_Region], *, hashed: bool) -> str:
    """Read the file once, straight into the memory its parts belong in; return its digest if `hashed`.

    Two threads share the chunks: reading, the page faults of fresh memory and hashing all run without the
    interpreter's lock. Each chunk is hashed while it is in the cache.
    """
    chunks = -(-size // CHUNK_BYTES)
    digests: list[bytes] = [b""] * chunks
    starts = [region.start for region in regions]
    failures: list[BaseException] = []

    numbers = iter(range(chunks))  # shared: a thread that is kept waiting by the system holds up one chunk only

    def work() -> None:
        scratch = memoryview(bytearray(CHUNK_BYTES))
        try:
            for number in numbers:
                if failures:
                    return
                start = number * CHUNK_BYTES
                end = min(size, start + CHUNK_BYTES)
                parts, copies, wanted = _parts(regions, starts, start, end, scratch)
                if not wanted and not hashed:
                    continue
                _read_exactly(fd, parts, start)
                if hashed:
                    digests[number] = _chunk_digest(parts)
                for memory, source in copies:
                    memory[:] = source
        except BaseException as error:
            failures.append(error)

    threads = 2 if chunks >= 16 else 1
    others = [threading.Thread(target=work, daemon=True) for _ in range(1, threads)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
    if failures:
        raise failures[0]
    return _combined(digests) if hashed else ""


def _parts(
    regions: list[_Region], starts: list[int], start: int, end: int, scratch: memoryview
) -> tuple[list[memoryview], list[tuple[memoryview, memoryview]], bool]:
    """Where the bytes start..end of the file go: a list for one scattered read, and what to copy afterwards.

    Small regions are read with their surroundings and copied: a system call takes only so many destinations.
    """
    parts: list[memoryview] = []
    copies: list[tuple[memoryview, memoryview]] = []
    wanted = False
    pending = start  # from where bytes are yet to be given a place
    n = max(0, bisect_right(starts, start) - 1)
    while n < len(regions) and regions[n].start < end:
        region = regions[n]
        n += 1
        low, high = max(region.start, start), min(region.end, end)
        if high <= low:
            continue
        wanted = True
        memory = region.memory[low - region.start : high - region.start]
        if high - low < _SMALL:
            copies.append((memory, scratch[low - start : high - start]))
            continue
        if low > pending:
            parts.append(scratch[pending - start : low - start])
        parts.append(memory)
        pending = high
    if end > pending:
        parts.append(scratch[pending - start : end - start])
    return parts, copies, wanted


def _read_exactly(fd: int, parts: list[memoryview], start: int) -> None:
    left = list(parts)
    while left:
        count = os.preadv(fd, left, start)
        if count == 0:
            raise InvalidCheckpointException("The checkpoint was cut short while it was being read. Use another one")
        start += count
        while left and count >= len(left[0]):
            count -= len(left.pop(0))
        if left:
            left[0] = left[0][count:]
