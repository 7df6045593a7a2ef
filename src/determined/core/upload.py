"""Brings a run of this machine to a master: everything its folder says, as often as you like, without doubles."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from determined import errors
from determined.core import uplink
from determined.core.checkpoint import read_metadata
from determined.core.checkpoint_journal import Entry, Journal
from determined.core.run_folder import RunFolder
from determined.storage.folder import FolderStorage

if TYPE_CHECKING:
    from determined.client.transport import Session
    from determined.wire.views import RunView

EXTERNAL = "external.json"  # the ids by which a script calls its run
_IDENTITY = "identity.json"  # one for the others, made at their first upload
# How a run that has ended is shown, and what is said of its end.
_ENDINGS = {
    "completed": ("completed", "completed", 0),
    "stopped": ("completed", "completed", 0),
    "interrupted": ("active", "stopped", 0),
    "invalid_hp": ("error", "invalid_hp", 0),
}
_FAILED = ("error", "failed", 1)


def upload(run_folder: str | os.PathLike[str], session: Session) -> RunView:
    """Bring a run that has ended, its metrics and its checkpoints (not their files), to the session's master.

    Uploaded again, the same run is brought up to date. Raises DeterminedError when the folder is no run's, or the run
    is still being trained.
    """
    path = pathlib.Path(run_folder).expanduser().absolute()
    run = RunFolder.at(path)
    if run is None:
        raise errors.BadRequest(f"{path} is not the folder of a run; `det run list` shows those there are")
    if run.is_being_written():
        raise errors.Refused(f"run {run.name}-{run.id} is still being trained; upload it when that has ended")
    shown, outcome, code = ending_of(run.label.state)
    view = register(run, session, state=shown)
    reporting = session.with_token(view.session_token)
    try:
        send(run, reporting, view)
        tell_end(reporting, view, outcome, code)
    finally:
        reporting.close()
    return view


def ending_of(state: str) -> tuple[str, str, int]:
    """What a run's own state means to a master: how it is shown, its outcome, and an exit code."""
    return _ENDINGS.get(state, _FAILED)


def register(run: RunFolder, session: Session, *, state: str = "active") -> RunView:
    """Make a run known to a master, or take it up there again."""
    from determined.wire.views import RunView

    config: Mapping[str, Any] = run.read("config.json") or {}
    experiment, trial = identity(run)
    first = next(run.rows(), None)
    body = {
        "name": run.name,
        "config": config,
        "hparams": run.read("hparams.json") or {},
        "description": config.get("description"),
        "labels": config.get("labels") or [],
        "workspace": config.get("workspace"),
        "project": config.get("project"),
        "external_experiment_id": experiment,
        "external_trial_id": trial,
        "state": state,
        "started_at": first["time"] if first else run.label.started or None,
    }
    try:
        return RunView.model_validate(session.post("/runs", body))
    except errors.InvalidConfigurationException:
        # A script may put anything into its config; the run is worth more than what its config says.
        return RunView.model_validate(session.post("/runs", {**body, "config": {}}))


def identity(run: RunFolder) -> tuple[str, str | None]:
    """What a run is called by masters: the ids its script gave it, or one of its own, the same for ever."""
    given = run.read(EXTERNAL)
    if isinstance(given, list) and len(given) == 2 and any(given):
        # A trial id alone is of an experiment that has no other.
        return str(given[0] or f"{run.name}/{given[1]}"), given[1]
    kept = run.read(_IDENTITY)
    if not isinstance(kept, str):
        kept = f"{run.name}-{run.id}-{os.urandom(6).hex()}"
        try:
            run.write(_IDENTITY, kept)
        except OSError:
            kept = f"{run.name}-{run.id}"  # a folder that nobody may write into does not change either
    return kept, None


def send(run: RunFolder, session: Session, view: RunView) -> int:
    """Send everything the folder has; the number of lines."""
    path = f"/allocations/{view.allocation_id}/reports"
    acknowledged = _post(session, path, view.run_epoch, 0, [])
    batch: list[bytes] = []
    size = number = 0
    for line in _lines(run):
        number += 1
        if number <= acknowledged:
            continue
        batch.append(line)
        size += len(line)
        if len(batch) == uplink.MOST_LINES or size >= uplink.MOST_BYTES:
            _post(session, path, view.run_epoch, number - len(batch), batch)
            batch, size = [], 0
    if batch:
        _post(session, path, view.run_epoch, number - len(batch), batch)
    return number


def tell_end(session: Session, view: RunView, outcome: str, exit_code: int) -> None:
    """Say how it ended."""
    body = {"run_epoch": view.run_epoch, "ending": {"outcome": outcome, "exit_code": exit_code}}
    session.post(f"/allocations/{view.allocation_id}/exit", body)


def _post(session: Session, path: str, run_epoch: int, first: int, lines: list[bytes]) -> int:
    data = uplink.batch_body(run_epoch, uplink.CHIEF, first, lines)
    answer = session.call("POST", path, data=data[0], headers=data[1])
    acknowledged = int(answer.json()["acknowledged"])
    if acknowledged < first + len(lines):
        raise errors.InternalException(
            f"the master took {acknowledged} of {first + len(lines)} reports; upload the run once more"
        )
    return acknowledged


def _lines(run: RunFolder) -> Iterator[bytes]:
    """The run as reports, each checkpoint after the metrics it came after."""
    storage = FolderStorage(run.checkpoints)
    waiting = sorted(Journal(run.journal).entries(set(storage.list())), key=lambda entry: entry.time)
    for row in run.rows():
        if row["steps_completed"] < 0:
            continue
        while waiting and waiting[0].time < row["time"]:
            yield _checkpoint(storage, waiting.pop(0))
        yield _encode({"kind": "metrics", **{name: row[name] for name in _METRICS}})
    for entry in waiting:
        yield _checkpoint(storage, entry)
    metadata = run.read("metadata.json")
    if isinstance(metadata, dict):
        yield _encode({"kind": "metadata", "metadata": metadata})
    if run.label.state == "completed":
        yield _encode({"kind": "progress", "progress": 1.0})


_METRICS = ("group", "steps_completed", "metrics", "time")


def _checkpoint(storage: FolderStorage, entry: Entry) -> bytes:
    return _encode(
        {
            "kind": "checkpoint",
            "uuid": entry.storage_id,
            "steps_completed": entry.steps_completed or 0,
            "metadata": read_metadata(storage.root / entry.storage_id),
            "resources": {path: record.size for path, record in storage.files(entry.storage_id).items()},
            "storage": {"type": "directory", "container_path": str(storage.root)},
            "time": entry.time,
        }
    )


def _encode(report: Mapping[str, Any]) -> bytes:
    return json.dumps(report, separators=(",", ":"), default=str).encode()
