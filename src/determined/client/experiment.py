"""Experiment: a handle on one experiment of a master."""

from __future__ import annotations

import io
import os
import pathlib
import tarfile
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union

from determined import errors
from determined.client.checkpoint import Checkpoint, list_checkpoints
from determined.client.enums import CheckpointSortBy, ExperimentState, OrderBy, TrialSortBy
from determined.client.master import Master, Order
from determined.client.metrics import TrialMetrics, as_trial_metrics, to_pandas, to_parquet
from determined.client.paging import every
from determined.client.trial import Trial
from determined.wire import requests
from determined.wire.views import ExperimentView

if TYPE_CHECKING:
    import pandas

_FIRST_PAUSE = 0.1


class Experiment:
    """One experiment. What its attributes say was true when it was fetched; ``reload`` asks anew."""

    def __init__(self, master: Master, view: ExperimentView) -> None:
        self._master = master
        self._view = view

    @property
    def id(self) -> int:
        """Its number."""
        return self._view.id

    @property
    def config(self) -> dict[str, Any]:
        """What it was asked to do, defaults included; secrets masked."""
        return self._view.config

    @property
    def state(self) -> ExperimentState:
        """Where it is."""
        return ExperimentState(self._view.state)

    @property
    def name(self) -> str:
        """What it is called."""
        return self._view.name

    @property
    def description(self) -> str:
        """A sentence about it."""
        return self._view.description

    @property
    def notes(self) -> str:
        """What people wrote about it."""
        return self._view.notes

    @property
    def labels(self) -> set[str]:
        """Words to find it by."""
        return set(self._view.labels)

    @property
    def progress(self) -> float:
        """How much of it is done, from 0 to 1."""
        return self._view.progress

    @property
    def archived(self) -> bool:
        """Whether it was put away."""
        return self._view.archived

    @property
    def project_id(self) -> int:
        """The project it is in."""
        return self._view.project_id

    @property
    def workspace_id(self) -> int:
        """The workspace of its project."""
        return self._view.workspace_id

    @property
    def error(self) -> str | None:
        """Why it failed, if it did."""
        return self._view.error

    @property
    def best_metric(self) -> float | None:
        """The best value so far of the searcher's metric."""
        return self._view.best_metric

    def reload(self) -> None:
        """Fetch it again."""
        self._view = self._master.experiment(self.id)

    # What may be asked of it.

    def activate(self) -> None:
        """Let it go on."""
        self._view = self._master.operate_experiment(self.id, "activate")

    def pause(self) -> None:
        """Let its trials save and leave their slots, until it is activated."""
        self._view = self._master.operate_experiment(self.id, "pause")

    def cancel(self) -> None:
        """Let its trials save, and end it."""
        self._view = self._master.operate_experiment(self.id, "cancel")

    def kill(self) -> None:
        """End it at once."""
        self._view = self._master.operate_experiment(self.id, "kill")

    def archive(self) -> None:
        """Put it away: lists leave it out unless asked."""
        self._view = self._master.operate_experiment(self.id, "archive")

    def unarchive(self) -> None:
        """Bring it back."""
        self._view = self._master.operate_experiment(self.id, "unarchive")

    def delete(self) -> None:
        """Delete it with its checkpoints, metrics and logs."""
        self._master.delete_experiment(self.id)

    def continue_(self, overrides: Sequence[str] = ()) -> None:
        """Train it on from where it ended, with changes to its config such as ``searcher.max_length.epochs=20``."""
        self._view = self._master.continue_experiment(self.id, overrides)

    def retry(self) -> None:
        """Start its failed trials again."""
        self._view = self._master.operate_experiment(self.id, "retry")

    def set_name(self, name: str) -> None:
        """Call it something else."""
        self._edit(requests.EditExperiment(name=name))

    def set_description(self, description: str) -> None:
        """Say a sentence about it."""
        self._edit(requests.EditExperiment(description=description))

    def set_notes(self, notes: str) -> None:
        """Write about it."""
        self._edit(requests.EditExperiment(notes=notes))

    def set_labels(self, labels: Union[set[str], Sequence[str]]) -> None:
        """Replace its labels."""
        self._edit(requests.EditExperiment(labels=sorted(labels) if isinstance(labels, set) else list(labels)))

    def add_label(self, label: str) -> None:
        """Add a label."""
        self.reload()
        self.set_labels([*dict.fromkeys((*self._view.labels, label))])

    def remove_label(self, label: str) -> None:
        """Remove a label."""
        self.reload()
        self.set_labels([one for one in self._view.labels if one != label])

    def move_to_project(self, project_id: int) -> None:
        """Put it into another project."""
        self._view = self._master.move_experiment(self.id, project_id)

    # Waiting.

    def wait(self, interval: float = 5.0) -> ExperimentState:
        """Wait until it has ended, and say how; looks every ``interval`` seconds, more often at first.

        Raises ValueError if it is paused, because then it would not end.
        """
        pause = min(_FIRST_PAUSE, interval)
        while True:
            self.reload()
            if self.state.has_ended:
                return self.state
            if self.state is ExperimentState.PAUSED:
                raise ValueError(f"experiment {self.id} is paused and will not end; activate it first")
            time.sleep(pause)
            pause = min(pause * 1.5, interval)

    def await_first_trial(self, interval: float = 0.1) -> Trial:
        """Wait until it has a trial; raises ValueError if it ends without one."""
        while True:
            for trial in self.iter_trials(limit=1):
                return trial
            self.reload()
            if self.state.has_ended:
                raise ValueError(f"experiment {self.id} has ended ({self.state.value}) without a trial")
            time.sleep(interval)

    # What it has.

    def list_trials(
        self,
        sort_by: TrialSortBy = TrialSortBy.ID,
        order_by: OrderBy = OrderBy.ASCENDING,
        limit: int | None = None,
    ) -> list[Trial]:
        """Its trials."""
        return list(self.iter_trials(sort_by, order_by, limit))

    def iter_trials(
        self,
        sort_by: TrialSortBy = TrialSortBy.ID,
        order_by: OrderBy = OrderBy.ASCENDING,
        limit: int | None = None,
    ) -> Iterator[Trial]:
        """Its trials, fetched as they are needed."""
        by = TrialSortBy(sort_by).value
        order: Order = "asc" if OrderBy(order_by) is OrderBy.ASCENDING else "desc"
        pages = every(
            lambda after, size: self._master.experiment_trials(
                self.id, sort_by=by, order=order, after=after, limit=size
            ),
            limit,
        )
        return (Trial(self._master, view) for view in pages)

    def list_checkpoints(
        self,
        sort_by: Union[str, CheckpointSortBy, None] = None,
        order_by: OrderBy | None = None,
        max_results: int | None = None,
    ) -> list[Checkpoint]:
        """Its complete checkpoints; by default the best of the searcher's metric first.

        ``sort_by`` may also be the name of a validation metric. It goes with ``order_by``.
        """
        return list_checkpoints(
            self._master,
            lambda **query: self._master.experiment_checkpoints(self.id, **query),
            sort_by,
            order_by,
            max_results,
        )

    def top_checkpoint(
        self, sort_by: Union[str, CheckpointSortBy, None] = None, smaller_is_better: bool | None = None
    ) -> Checkpoint:
        """Deprecated: ``list_checkpoints(max_results=1)[0]``."""
        found = self.top_n_checkpoints(1, sort_by, smaller_is_better)
        if not found:
            raise errors.CheckpointNotFound(f"experiment {self.id} has no such checkpoint")
        return found[0]

    def top_n_checkpoints(
        self, limit: int, sort_by: Union[str, CheckpointSortBy, None] = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """Deprecated: ``list_checkpoints(max_results=limit)``."""
        if sort_by is None:
            return self.list_checkpoints(max_results=limit)
        smaller = self._view.smaller_is_better if smaller_is_better is None else smaller_is_better
        return self.list_checkpoints(sort_by, OrderBy.ASCENDING if smaller else OrderBy.DESCENDING, limit)

    def iter_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """Every report of all its trials, complete."""
        return map(as_trial_metrics, self._master.experiment_metrics(self.id, group))

    def metrics_to_pandas(self, group: str | None = None) -> pandas.DataFrame:
        """All its metrics as one table (needs ``resolute[export]``)."""
        return to_pandas(self._master.experiment_metrics(self.id, group))

    def metrics_to_parquet(self, path: Union[str, os.PathLike[str]], group: str | None = None) -> pathlib.Path:
        """All its metrics as a Parquet file (needs ``resolute[export]``)."""
        return to_parquet(self._master.experiment_metrics(self.id, group), path)

    def download_code(self, output_dir: Union[str, os.PathLike[str], None] = None) -> str:
        """Unpack the code it was submitted with into a folder; returns the folder."""
        sha256 = self._master.experiment_config(self.id).get("context_sha256")
        if not sha256:
            raise errors.NotFound(f"experiment {self.id} was submitted without code")
        target = pathlib.Path(output_dir or f"experiment-{self.id}")
        _unpack(self._master.context(sha256), target)
        return str(target)

    def delete_tensorboard_files(self) -> None:
        """Nothing: TensorBoard files are part of the runs here, and are deleted with the experiment."""

    def _edit(self, body: requests.EditExperiment) -> None:
        self._view = self._master.edit_experiment(self.id, body)

    def __repr__(self) -> str:
        return f"Experiment(id={self.id})"


def _unpack(archive: bytes, target: pathlib.Path) -> None:
    """Files and folders only, each beneath the target: the archive is somebody else's word."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as entries:
        for entry in entries:
            parts = entry.name.rstrip("/").split("/")
            if any(part in ("", ".", "..") for part in parts):
                raise errors.BadRequest(
                    f"the code holds {entry.name!r}, which leads out of it; nothing was done with it"
                )
            place = target.joinpath(*parts)
            if entry.isdir():
                place.mkdir(parents=True, exist_ok=True)
            elif entry.isfile():
                place.parent.mkdir(parents=True, exist_ok=True)
                content = entries.extractfile(entry)
                assert content is not None
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
                with open(os.open(place, flags, 0o755 if entry.mode & 0o100 else 0o644), "wb") as file:
                    file.write(content.read())
