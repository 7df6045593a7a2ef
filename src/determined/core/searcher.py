"""How long to train, as the search asks: the interface of scripts older than max_length arguments."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from determined.core.train import TrainContext

if TYPE_CHECKING:
    from determined.core.ranks import DistributedContext


class Unit(enum.Enum):
    """What the configured length counts."""

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


class SearcherMode(enum.Enum):
    """Who iterates over operations: all ranks together, or the chief alone."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"


class SearcherOperation:
    """Train until ``length`` in all, then report the metric."""

    def __init__(self, length: int, whole: int, train: TrainContext, is_chief: bool) -> None:
        self._length = length
        self._whole = whole
        self._train = train
        self._is_chief = is_chief
        self._completed = False

    @property
    def length(self) -> int:
        """Up to where to train, counted from the start of the trial, in the configured unit."""
        return self._length

    @property
    def max_length(self) -> int:
        """Where training ends if the search goes on with this trial; ``length`` may be less."""
        return self._whole

    @property
    def completed(self) -> bool:
        return self._completed

    def report_progress(self, length: float) -> None:
        """Say up to where training has come. On the chief only."""
        self._require_chief("report_progress")
        if self._completed:
            raise RuntimeError("report_progress() was called after report_completed(); report progress before it")
        self._train.report_progress(length / self._whole)

    def report_completed(self, searcher_metric: Any) -> None:
        """Say that training has come to ``length``, with the metric the search decides by. On the chief, once."""
        self._require_chief("report_completed")
        if self._completed:
            raise RuntimeError("report_completed() was called twice for one operation; call it once")
        self._completed = True
        self._train.report_progress(self._length / self._whole)

    def _require_chief(self, method: str) -> None:
        if not self._is_chief:
            raise RuntimeError(f"{method}() was called on a non-chief rank; call it on rank 0 only")


class SearcherContext:
    """Gives the operations of the search: one, up to the trial's target where a search has set one, else of the
    config's searcher.max_length, or of length 1."""

    def __init__(
        self,
        distributed: DistributedContext,
        train: TrainContext,
        config: Mapping[str, Any] | None,
        trial: Mapping[str, Any] | None = None,
    ) -> None:
        self._distributed = distributed
        self._train = train
        searcher = (config or {}).get("searcher") or {}
        self._whole, self._unit = _length(searcher.get("max_length"))
        self._length = self._whole
        target = (trial or {}).get("target")
        if target is not None:
            length, unit = max(math.ceil(target), 1), _unit((trial or {}).get("target_unit"))
            if searcher.get("max_length") is None:
                self._whole, self._length, self._unit = length, length, unit
            elif unit is None or self._unit is None or unit is self._unit:
                self._length = min(length, self._whole)

    def operations(
        self, searcher_mode: SearcherMode = SearcherMode.WorkersAskChief, auto_ack: bool = True
    ) -> Iterator[SearcherOperation]:
        """Iterate over what to train. Each operation must be completed before the next is asked for."""
        mode = SearcherMode(searcher_mode)
        ranks = self._distributed
        is_chief = ranks.rank == 0
        if mode is SearcherMode.ChiefOnly and not is_chief:
            raise RuntimeError(
                "operations() with SearcherMode.ChiefOnly was called on a non-chief rank; "
                "call it on rank 0 only or use SearcherMode.WorkersAskChief"
            )
        return self._operations(mode, is_chief)

    def get_configured_units(self) -> Unit | None:
        """What the lengths count; None when the config does not say."""
        return self._unit

    def _operations(self, mode: SearcherMode, is_chief: bool) -> Iterator[SearcherOperation]:
        operation = SearcherOperation(self._length, self._whole, self._train, is_chief)
        yield operation
        problem = None
        if is_chief and not operation.completed:
            problem = "report_completed() was not called for the last operation; call it before asking for the next"
        if mode is SearcherMode.WorkersAskChief and self._distributed.size > 1:
            problem = self._distributed.broadcast(problem)
        if problem is not None:
            raise RuntimeError(problem)


def _length(max_length: Any) -> tuple[int, Unit | None]:
    if max_length is None:
        return 1, Unit.EPOCHS
    if isinstance(max_length, Mapping):
        (name, value), *_ = max_length.items()
        return int(value), Unit[name.upper()]
    return int(max_length), None


def _unit(name: str | None) -> Unit | None:
    return None if name is None else Unit[name.upper()]
