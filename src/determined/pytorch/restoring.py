"""Checkpoints read back: ours verified and loaded without running code, the predecessor's through a restricted door."""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
from typing import Any

from determined import core, errors
from determined.pytorch import archive, legacy_checkpoint, sharded, state
from determined.storage import manifest

logger = logging.getLogger("determined.pytorch")

STATE = "state_dict.pth"
COUNTERS = "trial_state.json"


@dataclasses.dataclass
class Saved:
    """What a checkpoint holds, whoever wrote it, in the documented layout."""

    folder: pathlib.Path
    uuid: str
    state: dict[str, Any]
    counters: dict[str, Any] | None  # how far the trial had come; None for another trial's checkpoint
    load_data: dict[str, Any] | None
    is_sharded: bool = False


def open_checkpoint(core_context: core.Context, wanted: str | None, *, trial_id: int, into: Any) -> Saved | None:
    """The checkpoint to go on from, or None to start afresh.

    Another trial's checkpoint gives its weights and state, but counting starts at 0. ``into`` is the present state,
    whose tensors may be filled in place.
    """
    found = core_context.resume(wanted) if wanted else core_context.found
    if found is None:
        return None
    with core_context.checkpoint.reading(found.path, trusting=(STATE,)) as folder:
        saved = read(folder, uuid=found.storage_id, into=into)
    if saved.counters is not None and saved.counters.get("trial_id") != trial_id:
        saved.counters = None
        state.forget_window(saved.state)
    if core_context.distributed.rank == 0:
        at = saved.counters["batches_trained"] if saved.counters is not None else 0
        logger.info("trial %d: resumed from checkpoint %s at batch %d", trial_id, saved.uuid, at)
    return saved


def verify(folder: pathlib.Path) -> None:
    """Check a checkpoint of ours but for the file that ``read`` verifies while it reads."""
    if manifest.exists(folder):
        manifest.verify(folder, trusting=(STATE,))


def read(folder: pathlib.Path, *, uuid: str, trusted: bool = False, into: Any = None) -> Saved:
    """Everything in a checkpoint folder but the pieces of sharded models."""
    if not folder.is_dir():
        raise errors.CheckpointNotFound(f"there is no checkpoint folder {folder}")
    if not (folder / COUNTERS).exists():
        return _read_predecessors(folder, uuid, trusted)
    known = manifest.read(folder).get(STATE)
    held = archive.read(folder / STATE, verify_digest=known.digest, into=into) if known is not None else None
    if not isinstance(held, dict) or not isinstance(held.get("models_state_dict"), list):
        raise errors.InvalidCheckpointException(f"{folder / STATE} does not hold what a trainer saves; it is damaged")
    load_data_file = folder / "load_data.json"
    return Saved(
        folder=folder,
        uuid=uuid,
        state=held,
        counters=_read_facts(folder / COUNTERS),
        load_data=_read_facts(load_data_file) if load_data_file.exists() else None,
        is_sharded=(folder / sharded.FOLDER).is_dir(),
    )


def _read_facts(path: pathlib.Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise errors.InvalidCheckpointException(f"{path} is damaged: {error}") from None
    if not isinstance(facts, dict):
        raise errors.InvalidCheckpointException(f"{path} holds a {type(facts).__name__} where a dict is expected")
    return facts


def _read_predecessors(folder: pathlib.Path, uuid: str, trusted: bool) -> Saved:
    old = legacy_checkpoint.read(folder, trusted=trusted)
    documented: dict[str, Any] = {
        "models_state_dict": old["models"],
        "optimizers_state_dict": old["optimizers"],
        "lr_schedulers_state_dict": old["lr_schedulers"],
        "callbacks": old["callbacks"] or {},
    }
    if old["rng"]:
        documented["rng_state"] = old["rng"]
    if old["scaler"]:
        documented["scaler_state_dict"] = old["scaler"]
    return Saved(folder, uuid, documented, old["trial_state"], old["load_data"])
