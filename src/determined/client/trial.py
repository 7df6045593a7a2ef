"""Trial: a handle on one trial of a master."""

from __future__ import annotations

import datetime
import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union

from determined import errors
from determined.client.checkpoint import Checkpoint, list_checkpoints
from determined.client.enums import CheckpointSortBy, LogLevel, OrderBy, TrialState
from determined.client.master import Master
from determined.client.metrics import TrialMetrics, as_trial_metrics, to_pandas, to_parquet
from determined.wire.views import LogLine, SeriesView, TrialView

if TYPE_CHECKING:
    import pandas

    from determined.client.experiment import Experiment

Moment = Union[str, int, float, datetime.datetime, None]

_LOG_PAGE = 1000


class Trial:
    """One trial. What its attributes say was true when it was fetched; ``reload`` asks anew."""

    def __init__(self, master: Master, view: TrialView) -> None:
        self._master = master
        self._view = view

    @property
    def id(self) -> int:
        """Its number."""
        return self._view.id

    @property
    def trial_id(self) -> int:
        """Its number, by its older name."""
        return self._view.id

    @property
    def experiment_id(self) -> int:
        """The experiment it belongs to."""
        return self._view.experiment_id

    @property
    def hparams(self) -> dict[str, Any]:
        """Its hyperparameters."""
        return self._view.hparams

    @property
    def state(self) -> TrialState:
        """Where it is."""
        return TrialState(self._view.state)

    @property
    def summary_metrics(self) -> dict[str, Any]:
        """By group and name: count, min, max, last and mean of what was reported."""
        return self._view.summary_metrics

    @property
    def steps_completed(self) -> int:
        """Batches it has trained."""
        return self._view.steps_completed

    @property
    def progress(self) -> float:
        """How much of it is done, from 0 to 1."""
        return self._view.progress

    @property
    def metadata(self) -> dict[str, Any]:
        """The document its code keeps with it."""
        return self._view.metadata

    @property
    def best_metric(self) -> float | None:
        """Its best value of the searcher's metric."""
        return self._view.best_metric

    @property
    def error(self) -> str | None:
        """Why it failed, if it did."""
        return self._view.error

    def reload(self) -> None:
        """Fetch it again."""
        self._view = self._master.trial(self.id)

    def kill(self) -> None:
        """End it at once."""
        self._view = self._master.operate_trial(self.id, "kill")

    def get_experiment(self) -> Experiment:
        """The experiment it belongs to."""
        from determined.client.experiment import Experiment

        return Experiment(self._master, self._master.experiment(self.experiment_id))

    def iter_logs(
        self,
        follow: bool = False,
        *,
        head: int | None = None,
        tail: int | None = None,
        container_ids: Sequence[str] | None = None,
        rank_ids: Sequence[int] | None = None,
        stdtypes: Sequence[str] | None = None,
        min_level: LogLevel | None = None,
        timestamp_before: Moment = None,
        timestamp_after: Moment = None,
        sources: Sequence[str] | None = None,
        search_text: str | None = None,
    ) -> Iterator[str]:
        """What it printed, line by line; with ``follow`` until it ends.

        ``head`` and ``tail`` ask for the first or last so many lines. ``container_ids`` is for clusters of containers
        and must be left out here.
        """
        lines = self._log_lines(
            follow, head, tail, container_ids, rank_ids, stdtypes, min_level, timestamp_before, timestamp_after,
            sources, search_text,
        )  # fmt: skip
        return (line.text if line.text.endswith("\n") else f"{line.text}\n" for line in lines)

    def logs(self, *args: Any, **kwargs: Any) -> Iterator[str]:
        """``iter_logs`` by its older name."""
        return self.iter_logs(*args, **kwargs)

    def list_checkpoints(
        self,
        sort_by: Union[str, CheckpointSortBy, None] = None,
        order_by: OrderBy | None = None,
        max_results: int | None = None,
    ) -> list[Checkpoint]:
        """Its complete checkpoints; see ``Experiment.list_checkpoints``."""
        return list_checkpoints(
            self._master,
            lambda **query: self._master.trial_checkpoints(self.id, **query),
            sort_by,
            order_by,
            max_results,
        )

    def get_checkpoints(
        self, sort_by: Union[str, CheckpointSortBy, None] = None, order_by: OrderBy | None = None
    ) -> list[Checkpoint]:
        """``list_checkpoints`` by its older name."""
        return self.list_checkpoints(sort_by, order_by)

    def top_checkpoint(
        self, sort_by: Union[str, CheckpointSortBy, None] = None, smaller_is_better: bool | None = None
    ) -> Checkpoint:
        """Deprecated: ``list_checkpoints(max_results=1)[0]``."""
        return self.select_checkpoint(best=True, sort_by=sort_by, smaller_is_better=smaller_is_better)

    def select_checkpoint(
        self,
        latest: bool = False,
        best: bool = False,
        uuid: str | None = None,
        sort_by: Union[str, CheckpointSortBy, None] = None,
        smaller_is_better: bool | None = None,
    ) -> Checkpoint:
        """Deprecated: ``list_checkpoints``. Exactly one of ``latest``, ``best`` and ``uuid``."""
        warnings.warn("select_checkpoint is deprecated; use list_checkpoints", FutureWarning, stacklevel=2)
        if sum((latest, best, uuid is not None)) != 1:
            raise AssertionError("exactly one of latest, best and uuid must be given")
        if uuid is not None:
            return Checkpoint(self._master, self._master.checkpoint(uuid))
        if latest:
            found = self.list_checkpoints(CheckpointSortBy.BATCH_NUMBER, OrderBy.DESCENDING, 1)
        elif sort_by is None:
            found = self.list_checkpoints(max_results=1)
        else:
            smaller = True if smaller_is_better is None else smaller_is_better
            found = self.list_checkpoints(sort_by, OrderBy.ASCENDING if smaller else OrderBy.DESCENDING, 1)
        if not found:
            raise errors.CheckpointNotFound(f"trial {self.id} has no such checkpoint")
        return found[0]

    def iter_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """Every report of metrics, of all groups or of one; complete, in order of group and steps."""
        return map(as_trial_metrics, self._master.all_trial_metrics(self.id, group))

    def metrics_to_pandas(self, group: str | None = None) -> pandas.DataFrame:
        """All its metrics as one table (needs ``resolute[export]``)."""
        return to_pandas(self._master.all_trial_metrics(self.id, group))

    def metrics_to_parquet(self, path: Union[str, os.PathLike[str]], group: str | None = None) -> pathlib.Path:
        """All its metrics as a Parquet file (needs ``resolute[export]``)."""
        return to_parquet(self._master.all_trial_metrics(self.id, group), path)

    def series(self, name: str, group: str = "validation", points: int = 1000) -> SeriesView:
        """One metric over steps, thinned for a chart; every peak is kept."""
        return self._master.series(self.id, name, group, points=points)

    def _log_lines(
        self,
        follow: bool,
        head: int | None,
        tail: int | None,
        container_ids: Sequence[str] | None,
        rank_ids: Sequence[int] | None,
        stdtypes: Sequence[str] | None,
        min_level: LogLevel | None,
        before: Moment,
        after: Moment,
        sources: Sequence[str] | None,
        search_text: str | None,
    ) -> Iterable[LogLine]:
        if container_ids:
            raise ValueError("there are no containers here; choose lines by rank_ids")
        if head is not None and tail is not None:
            raise ValueError("head and tail cannot both be given")
        if head is not None and follow:
            raise ValueError("head cannot be followed: the first lines do not change")
        wanted: dict[str, Any] = {
            "rank": rank_ids,
            "stdtype": stdtypes,
            "level": None if min_level is None else LogLevel(min_level).value,
            "source": sources,
            "search": search_text,
            "since": _seconds(after),
            "until": _seconds(before),
        }
        if follow:
            return self._master.follow_trial_logs(self.id, tail=tail, **wanted)
        if tail is not None:
            return self._master.trial_logs(self.id, tail=tail, **wanted)
        return _pages(lambda **page: self._master.trial_logs(self.id, **wanted, **page), head)

    def __repr__(self) -> str:
        return f"Trial(id={self.id}, experiment_id={self.experiment_id})"


def _pages(fetch: Callable[..., list[LogLine]], head: int | None) -> Iterator[LogLine]:
    after: int | None = None
    left = head
    while left is None or left > 0:
        size = _LOG_PAGE if left is None else min(left, _LOG_PAGE)
        lines = fetch(after=after, limit=size)
        yield from lines
        if len(lines) < size:
            return
        after = lines[-1].id
        left = None if left is None else left - len(lines)


def _seconds(moment: Moment) -> float | None:
    if moment is None or isinstance(moment, (int, float)):
        return moment
    if isinstance(moment, str):
        moment = datetime.datetime.fromisoformat(moment.replace("Z", "+00:00"))
    # A moment without a zone is UTC, as all times of the master are.
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    return moment.timestamp()
