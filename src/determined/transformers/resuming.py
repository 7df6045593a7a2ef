"""Puts the checkpoint a run goes on from where Hugging Face's Trainer looks for it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
from collections.abc import Mapping

from determined import core, errors
from determined.core.checkpoint import METADATA, Found
from determined.storage import digest, manifest
from determined.storage import folder as folder_storage

TRAINER_STATE = "trainer_state.json"
_OURS = (METADATA, manifest.NAME)
_NAME = re.compile(r"checkpoint-(\d+)")


def place(core_context: core.Context, found: Found, output_dir: pathlib.Path) -> pathlib.Path:
    """Have the checkpoint in ``output_dir`` as the Trainer would have left it there, and return its folder.

    All ranks call this. A copy that is there already, from before an interruption, is used when it is whole.
    """
    ranks = core_context.distributed
    placed: pathlib.Path | None = None
    failure: Exception | None = None
    if ranks.local_rank == 0:
        try:
            placed = _place(core_context, found, output_dir)
        except Exception as error:
            failure = error
    said = ranks.allgather((placed, str(failure) if failure is not None else None))
    if failure is not None:
        raise failure
    for rank, (_, problem) in enumerate(said):
        if problem is not None:
            raise errors.InvalidCheckpointException(f"rank {rank} cannot resume from {found.storage_id}: {problem}")
    paths: list[pathlib.Path] = [path for path, _ in said if path is not None]
    return paths[0]


def steps_in(checkpoint: pathlib.Path) -> int:
    """How many steps a checkpoint of the Trainer stands for."""
    try:
        return int(json.loads((checkpoint / TRAINER_STATE).read_bytes())["global_step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise errors.InvalidCheckpointException(
            f"{checkpoint} is no checkpoint of Hugging Face's Trainer: its {TRAINER_STATE} cannot be read ({error})"
        ) from None


def newest(folder: pathlib.Path) -> pathlib.Path:
    """The ``checkpoint-<steps>`` with the most steps in a folder."""
    found = [(int(match[1]), each) for each in folder.glob("checkpoint-*") if (match := _NAME.fullmatch(each.name))]
    if not found:
        raise errors.CheckpointNotFound(f"there is no checkpoint-<steps> folder in {folder}")
    return max(found)[1]


def _place(core_context: core.Context, found: Found, output_dir: pathlib.Path) -> pathlib.Path:
    source = _trainers_folder(found.path)
    target = output_dir / f"checkpoint-{steps_in(source)}"
    if source == found.path and _holds(target, folder_storage.list_files(found.path, unverified=True)):
        return target
    # No sharing between ranks: whoever calls this is the only one of its machine.
    with core_context.checkpoint.reading(found.path, core.DownloadMode.NoSharedDownload):
        partial = output_dir / f".{target.name}.{os.urandom(4).hex()}"
        try:
            shutil.copytree(source, partial, ignore=shutil.ignore_patterns(*_OURS))
            _swap_in(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def _trainers_folder(path: pathlib.Path) -> pathlib.Path:
    """Where in a checkpoint the Trainer's files are: at its top, or, in Determined's, in ``checkpoint-<steps>/``."""
    if (path / TRAINER_STATE).is_file():
        return path
    try:
        return newest(path)
    except errors.CheckpointNotFound:
        raise errors.InvalidCheckpointException(
            f"checkpoint {path} was not made by Hugging Face's Trainer (it has no {TRAINER_STATE}), so the Trainer "
            "cannot go on from it; name another one, or none to start anew"
        ) from None


def _holds(target: pathlib.Path, files: Mapping[str, manifest.FileRecord]) -> bool:
    """Whether a folder has exactly these files, byte for byte."""
    wanted = {path: record for path, record in files.items() if path not in _OURS and not path.endswith("/")}
    there = {path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir()}
    try:
        return there == wanted.keys() and all(
            digest.digest_file(target / path) == record for path, record in wanted.items()
        )
    except OSError:
        return False


def _swap_in(partial: pathlib.Path, target: pathlib.Path) -> None:
    """Put a whole folder in the place of another one. Another machine may be doing the same with the same content."""
    old = partial.with_name(f"{partial.name}.old")
    try:
        target.rename(old)
    except FileNotFoundError:
        pass
    try:
        partial.rename(target)
    except OSError:
        if not target.is_dir():
            raise
    shutil.rmtree(old, ignore_errors=True)
