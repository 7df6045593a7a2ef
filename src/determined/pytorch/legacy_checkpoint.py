"""Reads checkpoint folders of Determined 0.14 to 0.38 and of before, without running anything from them."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import torch

from determined.errors import InvalidCheckpointException
from determined.pytorch import archive, pickles

STATE_FILES = ("state_dict.pth", "determined/state_dict.pth", "pedl/state_dict.pth", "checkpoint.pt")
COUNTER_FILES = ("trial_state.pkl", "workload_sequencer.pkl")

# New name (a list, in the order in which things were wrapped) and the name of before 0.14 (the only one).
_LISTS = {
    "models": ("models_state_dict", "model_state_dict"),
    "optimizers": ("optimizers_state_dict", "optimizer_state_dict"),
    "lr_schedulers": ("lr_schedulers_state_dict", "lr_scheduler"),
}
# Classes of the predecessor that hold counters; their attributes are read, the classes never imported.
_INERT = ("determined.", "pedl.")

_STREAM_MAGIC = 0x1950A86A20F9469CFC6C
_STREAM_PROTOCOL = 1001


def read(folder: str | Path, *, trusted: bool = False) -> dict[str, Any]:
    """Return what the checkpoint holds under one set of names, whichever release wrote it.

    The names: models, optimizers, lr_schedulers (lists), callbacks, rng (as saved), scaler, amp, trial_state,
    load_data, metadata (dicts or None) and format ("lists", or "single" before 0.14). Raises
    InvalidCheckpointException for a folder that holds no such checkpoint, a damaged one, or one with anything but
    data in it. With `trusted`, that last kind is loaded by torch and may run code from the file.
    """
    folder = Path(folder)
    path = next((folder / name for name in STATE_FILES if (folder / name).is_file()), None)
    if path is None:
        raise InvalidCheckpointException(
            f"{folder} is not a checkpoint of a PyTorch trial: it has none of {', '.join(STATE_FILES)}. "
            "Name the folder that holds the file"
        )
    saved = _read_state(path, trusted)
    if not isinstance(saved, dict):
        raise InvalidCheckpointException(f"{path} holds a {type(saved).__name__} where a checkpoint holds a dict")
    metadata = _read_json(folder / "metadata.json")
    load_data = _read_json(folder / "load_data.json")
    return {
        **{name: _list(saved, name, path) for name in _LISTS},
        "callbacks": _dict(saved, "callbacks", path) or {},
        "rng": _dict(saved, "rng_state", path),
        "scaler": _dict(saved, "scaler_state_dict", path),
        "amp": _dict(saved, "amp_state", path),
        "trial_state": _counters(folder, trusted, metadata),
        # Up to 0.17.7 one file said both.
        "load_data": metadata if load_data is None else load_data,
        "metadata": metadata,
        "format": "lists" if "models_state_dict" in saved else "single",
    }


def _read_state(path: Path, trusted: bool) -> Any:
    try:
        return archive.read(path) if archive.looks_like_one(path) else _read_stream(path)
    except InvalidCheckpointException:
        if not trusted:
            raise
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise InvalidCheckpointException(
            f"{path} cannot be loaded even though it is trusted ({type(error).__name__}: {error}). "
            "It is damaged, or needs code that is not installed here"
        ) from error


def _list(saved: dict[Any, Any], name: str, path: Path) -> list[Any]:
    new, old = _LISTS[name]
    if new in saved and old in saved:
        raise InvalidCheckpointException(
            f"{path} has both {new} and {old}, which no release wrote; remove the one that is wrong"
        )
    if new in saved:
        values = saved[new]
        if not isinstance(values, (list, tuple)):
            raise InvalidCheckpointException(f"{path}: {new} is a {type(values).__name__} instead of a list")
        return list(values)
    if old in saved:
        return [saved[old]] if saved[old] is not None else []
    if name == "models":
        raise InvalidCheckpointException(f"{path} has no model: neither {new} nor {old} is in it")
    return []


def _dict(saved: dict[Any, Any], name: str, path: Path) -> dict[str, Any] | None:
    value = saved.get(name)
    if value is not None and not isinstance(value, dict):
        raise InvalidCheckpointException(f"{path}: {name} is a {type(value).__name__} instead of a dict")
    return value


def _counters(folder: Path, trusted: bool, metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    """How far the trial had come, or None if the checkpoint does not say."""
    path = next((folder / name for name in COUNTER_FILES if (folder / name).is_file()), None)
    if path is None:
        return None
    counters = pickles.loads(path.read_bytes(), source=str(path), inert=_INERT)
    if isinstance(counters, pickles.InertObject):
        counters = counters.attributes
    if not isinstance(counters, dict):
        raise InvalidCheckpointException(f"{path} holds a {type(counters).__name__} where counters were expected")
    steps = (metadata or {}).get("steps_completed")
    if "batches_trained" not in counters:
        steps = counters.get("total_batches_processed", steps)
        if type(steps) is int:
            counters["batches_trained"] = steps
    return counters


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpointException(
            f"{path} is damaged: {error}. Restore it, or remove it to go on without"
        ) from None
    if document is not None and not isinstance(document, dict):
        raise InvalidCheckpointException(f"{path} holds a {type(document).__name__} where an object was expected")
    return document


def _read_stream(path: Path) -> Any:
    """What torch.save wrote before 1.6: several pickles, then the storages one after the other."""
    data = path.read_bytes()
    file = io.BytesIO(data)
    source = str(path)
    if pickles.load(file, source=source) != _STREAM_MAGIC or pickles.load(file, source=source) != _STREAM_PROTOCOL:
        raise InvalidCheckpointException(f"{path} is damaged or not a file of torch.save. Use another checkpoint")
    system = pickles.load(file, source=source)
    if not isinstance(system, dict) or not system.get("little_endian", False):
        raise InvalidCheckpointException(f"{path} was written on a machine with another byte order. Convert it there")
    handles: dict[Any, pickles.StorageHandle] = {}

    def make_storage(pid: tuple[Any, ...]) -> pickles.StorageHandle:
        dtype, key, _, length, view = (*pid, None)[:5]
        if type(length) is not int or not 0 <= length * dtype.itemsize <= len(data):
            raise ValueError("a storage is larger than the file")
        if key not in handles:
            handles[key] = pickles.StorageHandle(archive.new_storage(length * dtype.itemsize), dtype)
        whole = handles[key]
        if view is None:
            return whole
        _, offset, size = view
        start, end = offset * dtype.itemsize, (offset + size) * dtype.itemsize
        if not 0 <= start <= end <= whole.storage.nbytes():
            raise ValueError("a view lies outside its storage")
        return pickles.StorageHandle(whole.storage[start:end], dtype)

    state = pickles.load(file, source=source, storage=make_storage)
    keys = pickles.load(file, source=source)
    if not isinstance(keys, list) or set(keys) != set(handles):
        raise InvalidCheckpointException(f"{path} is damaged: its list of storages is wrong. Use another checkpoint")
    at = file.tell()
    for key in keys:
        storage, dtype = handles[key].storage, handles[key].dtype
        nbytes = storage.nbytes()
        if at + 8 + nbytes > len(data) or struct.unpack_from("<q", data, at)[0] * dtype.itemsize != nbytes:
            raise InvalidCheckpointException(f"{path} was cut short or is damaged. Use another checkpoint")
        archive.memory_of(storage, 0, nbytes)[:] = data[at + 8 : at + 8 + nbytes]
        at += 8 + nbytes
    return state
