"""What is removed, and when: checkpoints that no policy keeps, deleted experiments, and whatever is too old.

Rows first say that something is going, then its files go, then the rows say that they are gone: after a crash at any
moment the next round goes on. Files that are gone already are as good as removed.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import shutil
import time
from collections.abc import Callable

from determined import errors
from determined.master.engine.launching import Site
from determined.master.lifecycle import checkpoints, experiments
from determined.master.records import Checkpoint, CheckpointState, Experiment
from determined.master.states import ExperimentState
from determined.master.store import answers, changes, metrics, series, users
from determined.master.store import checkpoints as checkpoint_rows
from determined.master.store import experiments as experiment_rows
from determined.master.store import tasks as task_rows
from determined.master.store import trials as trial_rows
from determined.master.store.database import Database, StoreUnavailable, Tx
from determined.storage import CheckpointStorage, build_storage

_log = logging.getLogger("determined.master")

# A removal that failed is tried again after so long, and then after twice as long, and so on.
_RETRY_SECONDS = 5.0
_LONGEST_RETRY_SECONDS = 3600.0
# As many rows of metrics as are deleted before others get their turn.
_ROWS_AT_ONCE = 20_000
_DAY = 86400.0
_KEEP_TOKENS_SECONDS = 30 * _DAY
_KEEP_ANSWERS_SECONDS = _DAY
_KEEP_CHANGES = 1000


class Retention:
    """Removes files, on one thread. ``remove`` does what has become due; ``expire`` what only time makes due."""

    def __init__(self, database: Database, site: Site, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._site = site
        self._clock = clock
        self._seen: int | None = None  # the last change that was looked at
        self._failures: dict[str, tuple[int, float]] = {}  # how often, and when to try again

    def remove(self) -> None:
        """Mark what the policies do not keep, and remove what is marked."""
        for experiment_id, trial_id in self._to_collect():
            try:
                self._database.write_now(_mark, experiment_id, trial_id)
            except errors.NotFound:
                continue
        for checkpoint in self._database.read_now(checkpoint_rows.deleting):
            if self._is_due(checkpoint.uuid):
                self._try(checkpoint.uuid, lambda: self._remove_checkpoint(checkpoint))  # noqa: B023
        for experiment in self._database.read_now(_deleting):
            name = f"experiment {experiment.id}"
            try:
                self._remove_experiment(experiment)
            except StoreUnavailable:
                raise
            except (OSError, errors.DeterminedError) as error:
                _log.warning("%s could not be deleted: %s", name, error)
                self._database.write_now(experiments.record_delete_failed, experiment.id, str(error))

    def expire(self) -> None:
        """Drop old changes, answers, tokens and logs."""
        now = self._database.clock()
        settings = self._site.settings
        self._database.write_now(changes.drop_before, now - settings.change_retention_hours * 3600, _KEEP_CHANGES)
        self._database.write_now(answers.delete_before, now - _KEEP_ANSWERS_SECONDS)
        self._database.write_now(users.delete_tokens_before, now - _KEEP_TOKENS_SECONDS)
        with contextlib.suppress(FileNotFoundError):
            for folder in settings.logs_dir.iterdir():
                ended_at, days = self._database.read_now(_log_retention, folder.name, settings.log_retention_days)
                if ended_at is not None and days >= 0 and ended_at + days * _DAY < now:
                    shutil.rmtree(folder, ignore_errors=True)

    # Checkpoints.

    def _to_collect(self) -> set[tuple[int, int | None]]:
        """Experiments and trials whose checkpoints have become more, or which have ended, since the last look."""
        if self._seen is None:
            self._seen, unended = self._database.read_now(_first_look)
            return {(experiment_id, None) for experiment_id in unended}
        found: set[tuple[int, int | None]] = set()
        while news := self._database.read_now(changes.after, self._seen):
            self._seen = news[-1].seq
            for change in news:
                if change.experiment_id is None:
                    continue
                if change.noun == "checkpoint" and change.fields.get("state") == CheckpointState.COMPLETED.value:
                    checkpoint = self._database.read_now(checkpoint_rows.get, change.id)
                    if checkpoint is not None:
                        found.add((change.experiment_id, checkpoint.trial_id))
                elif change.noun == "experiment" and _is_end(change.fields.get("state")):
                    found.add((change.experiment_id, None))
                elif change.noun == "trial" and _is_end(change.fields.get("state")):
                    found.add((change.experiment_id, int(change.id)))
        whole = {experiment_id for experiment_id, trial_id in found if trial_id is None}
        return {(experiment, trial) for experiment, trial in found if trial is None or experiment not in whole}

    def _remove_checkpoint(self, checkpoint: Checkpoint) -> None:
        storage = build_storage(self._site.storage(checkpoint.storage))
        left = None
        if checkpoint.globs:
            left = _remove_files(storage, checkpoint)
        else:
            with contextlib.suppress(errors.CheckpointNotFound, FileNotFoundError):
                storage.delete(checkpoint.uuid)
        self._database.write_now(checkpoints.record_deleted, checkpoint.uuid, left)

    # Experiments.

    def _remove_experiment(self, experiment: Experiment) -> None:
        for checkpoint in self._database.read_now(_checkpoints_of, experiment.id):
            storage = build_storage(self._site.storage(checkpoint.storage))
            with contextlib.suppress(errors.CheckpointNotFound, FileNotFoundError):
                storage.delete(checkpoint.uuid)
        for trial in self._database.read_now(trial_rows.of_experiment, experiment.id):
            task_id = f"trial-{trial.id}"
            _remove_folder(self._site.run_folder(task_id))
            _remove_folder(self._site.settings.logs_dir / task_id)
            for epoch in range(1, trial.run_epoch + 1):
                _remove_folder(self._site.allocation_folder(f"{task_id}.{epoch}"))
            while self._database.write_now(metrics.delete_some, trial.id, _ROWS_AT_ONCE):
                pass
            self._database.write_now(series.delete, trial.id)
        self._database.write_now(experiments.record_deleted, experiment.id)

    # Trying again.

    def _is_due(self, name: str) -> bool:
        return self._failures.get(name, (0, 0.0))[1] <= self._clock()

    def _try(self, name: str, do: Callable[[], None]) -> None:
        try:
            do()
        except StoreUnavailable:
            raise
        except Exception as error:
            count = self._failures.get(name, (0, 0.0))[0] + 1
            if count == 1:
                _log.warning("checkpoint %s cannot be removed and is tried again: %s", name, error)
            wait = min(_RETRY_SECONDS * 2.0 ** (count - 1), _LONGEST_RETRY_SECONDS)
            self._failures[name] = (count, self._clock() + wait)
        else:
            self._failures.pop(name, None)


def _mark(tx: Tx, experiment_id: int, trial_id: int | None) -> None:
    """Say that what the policy does not keep is going, as long as nothing needs it."""
    experiment = experiment_rows.require(tx, experiment_id)
    if experiment.state in (ExperimentState.DELETING, ExperimentState.DELETE_FAILED):
        return
    for uuid in checkpoints.deletable(tx, experiment_id, trial_id):
        with contextlib.suppress(errors.Refused):
            checkpoints.mark_deleting(tx, uuid)


def _first_look(tx: Tx) -> tuple[int, list[int]]:
    """Where the changes are now; and every experiment that runs, or ended while nobody looked."""
    recent = changes.after(tx, max(changes.newest(tx) - 10_000, 0), 10_000)
    ended = {
        change.experiment_id
        for change in recent
        if change.noun == "experiment" and change.experiment_id is not None and _is_end(change.fields.get("state"))
    }
    running = experiment_rows.ids(tx, [ExperimentState.ACTIVE, ExperimentState.PAUSED, ExperimentState.STOPPING])
    return changes.newest(tx), sorted({*ended, *running})


def _deleting(tx: Tx) -> list[Experiment]:
    return [experiment_rows.require(tx, found) for found in experiment_rows.ids(tx, [ExperimentState.DELETING])]


def _checkpoints_of(tx: Tx, experiment_id: int) -> list[Checkpoint]:
    there = [state for state in CheckpointState if state is not CheckpointState.DELETED]
    return checkpoint_rows.all_of(tx, experiment_id=experiment_id, states=there)


def _is_end(state: object) -> bool:
    return state in ("completed", "canceled", "error")


def _log_retention(tx: Tx, task_id: str, usual_days: int) -> tuple[float | None, int]:
    """When a trial or task ended, and for how many days its logs are kept then."""
    if not task_id.startswith("trial-"):
        task = task_rows.get(tx, task_id)
        return (task.ended_at, usual_days) if task is not None and task.state.has_ended else (None, usual_days)
    number = task_id.removeprefix("trial-")
    trial = trial_rows.get(tx, int(number)) if number.isdigit() else None
    if trial is None or not trial.state.has_ended:
        return None, usual_days
    experiment = experiment_rows.require(tx, trial.experiment_id)
    days = (experiment.config.get("retention_policy") or {}).get("log_retention_days")
    return trial.ended_at, usual_days if days is None else days


def _remove_files(storage: CheckpointStorage, checkpoint: Checkpoint) -> dict[str, int]:
    """Remove the files that are to go, and tell what is left."""
    doomed = {*checkpoints.matching(checkpoint, checkpoint.globs or [])}
    left = {path: size for path, size in checkpoint.resources.items() if path not in doomed}
    with contextlib.suppress(errors.CheckpointNotFound, FileNotFoundError):
        storage.remove_files(checkpoint.uuid, doomed)
        if not left:
            storage.delete(checkpoint.uuid)
    return left


def _remove_folder(folder: pathlib.Path) -> None:
    """Remove a folder of ours, whatever is in it; it may be gone."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
