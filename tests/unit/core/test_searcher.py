"""Scripts that ask the searcher how long to train get one operation off-cluster."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from determined.core.ranks import DistributedContext
from determined.core.run_folder import RunFolder
from determined.core.searcher import SearcherContext, SearcherMode, Unit
from tests.unit.core.gang import run_gang
from tests.unit.core.test_train import Quiet
from tests.unit.core.test_train import make as make_train


def make(
    folder: pathlib.Path, distributed: DistributedContext | None = None, config: dict[str, Any] | None = None
) -> SearcherContext:
    train = make_train(RunFolder.create(folder, "a"), Quiet(), None)
    return SearcherContext(distributed or DistributedContext(), train, config)


def test_one_operation_of_length_one(runs_dir: pathlib.Path) -> None:
    searcher = make(runs_dir)
    lengths = []
    for operation in searcher.operations():
        lengths.append(operation.length)
        operation.report_progress(17)
        operation.report_completed(0.5)
    assert lengths == [1]
    assert searcher.get_configured_units() is Unit.EPOCHS


@pytest.mark.parametrize(
    ("max_length", "length", "unit"), [(7, 7, None), ({"batches": 9}, 9, Unit.BATCHES), ({"epochs": 2}, 2, Unit.EPOCHS)]
)
def test_the_config_says_how_long(runs_dir: pathlib.Path, max_length: Any, length: int, unit: Unit | None) -> None:
    searcher = make(runs_dir, config={"searcher": {"max_length": max_length}})
    assert next(searcher.operations()).length == length
    assert searcher.get_configured_units() is unit


def test_an_operation_is_completed_once_and_before_the_next(runs_dir: pathlib.Path) -> None:
    operations = make(runs_dir).operations()
    operation = next(operations)
    with pytest.raises(RuntimeError, match="report_completed"):
        next(operations)
    operation.report_completed(1)
    with pytest.raises(RuntimeError, match="twice"):
        operation.report_completed(1)
    with pytest.raises(RuntimeError, match="before"):
        operation.report_progress(1)


def test_all_ranks_iterate_and_the_chief_completes(runs_dir: pathlib.Path) -> None:
    def work(distributed: DistributedContext) -> list[int]:
        lengths = []
        for operation in make(runs_dir, distributed).operations():
            lengths.append(operation.length)
            if distributed.rank == 0:
                operation.report_completed(1)
            else:
                with pytest.raises(RuntimeError, match="non-chief"):
                    operation.report_completed(1)
        return lengths

    assert run_gang(2, work) == [[1], [1]]


def test_a_forgotten_completion_is_everybodys_error(runs_dir: pathlib.Path) -> None:
    for result in run_gang(2, lambda distributed: list(make(runs_dir, distributed).operations())):
        assert isinstance(result, RuntimeError) and "report_completed" in str(result)


def test_the_chief_alone(runs_dir: pathlib.Path) -> None:
    def work(distributed: DistributedContext) -> int:
        done = 0
        for operation in make(runs_dir, distributed).operations(SearcherMode.ChiefOnly):
            operation.report_completed(1)
            done += 1
        return done

    chief, other = run_gang(2, work)
    assert chief == 1 and isinstance(other, RuntimeError) and "non-chief" in str(other)
