"""Checkpoint: a handle on one checkpoint of a master."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Union

from determined import errors
from determined.client.download import download
from determined.client.enums import CheckpointSortBy, CheckpointState, DownloadMode, OrderBy
from determined.client.master import Master
from determined.client.metrics import TrialMetrics, as_trial_metrics
from determined.wire import requests
from determined.wire.views import CheckpointView, Page

_PAGE = 200


@dataclasses.dataclass(frozen=True)
class CheckpointTrainingMetadata:
    """What a checkpoint was made by."""

    experiment_config: dict[str, Any]
    experiment_id: int
    trial_id: int
    hparams: dict[str, Any]
    validation_metrics: dict[str, Any]


class Checkpoint:
    """One checkpoint. What its attributes say was true when it was fetched; ``reload`` asks anew."""

    def __init__(self, master: Master, view: CheckpointView) -> None:
        self._master = master
        self._view = view

    @property
    def uuid(self) -> str:
        """Its id."""
        return self._view.uuid

    @property
    def state(self) -> CheckpointState:
        """Where it is."""
        return CheckpointState(self._view.state)

    @property
    def resources(self) -> dict[str, int]:
        """Its files, with their sizes."""
        return self._view.resources

    @property
    def metadata(self) -> dict[str, Any]:
        """What was noted about it."""
        return self._view.metadata

    @property
    def training(self) -> CheckpointTrainingMetadata | None:
        """The trial that made it; None if none did."""
        view = self._full()
        if view.trial_id is None or view.experiment_id is None:
            return None
        return CheckpointTrainingMetadata(
            experiment_config=view.experiment_config or {},
            experiment_id=view.experiment_id,
            trial_id=view.trial_id,
            hparams=view.hparams or {},
            validation_metrics={"avgMetrics": view.validation_metrics} if view.validation_metrics else {},
        )

    @property
    def validation_metrics(self) -> dict[str, Any] | None:
        """The validation at exactly its step."""
        return self._full().validation_metrics

    @property
    def steps_completed(self) -> int:
        """Batches that had been trained."""
        return self._view.steps_completed

    @property
    def report_time(self) -> datetime.datetime:
        """When it was complete."""
        return datetime.datetime.fromtimestamp(self._view.reported_at, datetime.timezone.utc)

    @property
    def task_id(self) -> str | None:
        """The task that made it."""
        return self._view.task_id

    def reload(self) -> None:
        """Fetch it again."""
        self._view = self._master.checkpoint(self.uuid)

    def download(
        self,
        path: Union[str, os.PathLike[str], None] = None,
        mode: Union[DownloadMode, str] = DownloadMode.AUTO,
    ) -> str:
        """Fetch its files into a folder (``checkpoints/<uuid>``), verified; returns the folder.

        Does nothing if the folder has them already. See ``download.download`` for what it raises.
        """
        target = pathlib.Path(path) if path is not None else pathlib.Path("checkpoints") / self.uuid
        download(self._master, self._view, target, DownloadMode(mode))
        if not (target / "metadata.json").exists():
            self.write_metadata_file(str(target / "metadata.json"))
        return str(target)

    def write_metadata_file(self, path: str) -> None:
        """Write its metadata as JSON."""
        pathlib.Path(path).write_text(json.dumps(self.metadata, indent=2))

    def add_metadata(self, metadata: dict[str, Any]) -> None:
        """Note something about it; top-level keys that are there are replaced whole."""
        self._view = self._master.edit_checkpoint_metadata(self.uuid, requests.EditMetadata(set=metadata))

    def remove_metadata(self, keys: Sequence[str]) -> None:
        """Forget top-level keys."""
        self._view = self._master.edit_checkpoint_metadata(self.uuid, requests.EditMetadata(remove=list(keys)))

    def delete(self) -> None:
        """Delete it; in the background. Raises CheckpointStateException if it is still needed."""
        self._delete([])

    def remove_files(self, globs: Sequence[str]) -> None:
        """Delete those of its files that match one of the patterns."""
        self._delete(list(globs))

    def get_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """What its trial had reported up to it."""
        if self._view.trial_id is None:
            return iter(())
        rows = self._master.all_trial_metrics(self._view.trial_id, group)
        last = self._view.steps_completed
        return (as_trial_metrics(row) for row in rows if row.steps_completed <= last)

    def _delete(self, globs: list[str]) -> None:
        for done in self._master.delete_checkpoints(requests.DeleteCheckpoints(uuids=[self.uuid], globs=globs)):
            if done.error is not None:
                raise errors.CheckpointStateException(done.error)

    def _full(self) -> CheckpointView:
        # Lists leave out what would make them long.
        if self._view.trial_id is not None and self._view.experiment_config is None:
            self.reload()
        return self._view

    def __repr__(self) -> str:
        return f"Checkpoint(uuid={self.uuid})"


def list_checkpoints(
    master: Master,
    fetch: Callable[..., Page[CheckpointView]],
    sort_by: Union[str, CheckpointSortBy, None],
    order_by: OrderBy | None,
    max_results: int | None,
) -> list[Checkpoint]:
    """Checkpoints of a trial or an experiment; ``fetch`` asks for a page of them."""
    if (sort_by is None) != (order_by is None):
        raise AssertionError("sort_by and order_by go together: give both or neither")
    # Any other name is that of a validation metric.
    by = sort_by.value if isinstance(sort_by, CheckpointSortBy) else None if sort_by is None else f"metric:{sort_by}"
    order = None if order_by is None else OrderBy(order_by).value
    found: list[Checkpoint] = []
    while max_results is None or len(found) < max_results:
        size = _PAGE if max_results is None else min(_PAGE, max_results - len(found))
        page = fetch(states=["COMPLETED"], sort_by=by, order=order, offset=len(found), limit=size)
        found += [Checkpoint(master, view) for view in page.items]
        if len(page.items) < size:
            break
    return found
