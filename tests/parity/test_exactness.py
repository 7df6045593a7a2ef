"""Whatever interrupts training, and whoever goes on with it, it ends bit for bit where it would have ended."""

from __future__ import annotations

import pathlib
import random

import pytest

from tests.parity import trials
from tests.parity.forks import Child, free_port, rank_environment


def train_alone(runs: pathlib.Path, workers: int, interruption: tuple[str, int] | None, resume: bool) -> int:
    return Child(
        trials.train,
        workers,
        interruption,
        "latest" if resume else None,
        environment={"DET_RUNS_DIR": str(runs)},
        log=runs.parent / "log.txt",
    ).wait()


def train_on_two(runs: pathlib.Path, interruption: tuple[str, int] | None, victim: int, resume: bool) -> list[int]:
    port = free_port()
    ranks = [
        Child(
            trials.train,
            0,
            interruption if rank == victim else None,
            "latest" if resume else None,
            environment={"DET_RUNS_DIR": str(runs), **rank_environment(rank, 2, port)},
            log=runs.parent / f"log{rank}.txt",
        )
        for rank in (0, 1)
    ]
    return [rank.wait() for rank in ranks]


def logs(folder: pathlib.Path) -> str:
    return "\n".join(path.read_text()[-4000:] for path in folder.glob("log*.txt"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    runs = tmp_path_factory.mktemp("undisturbed") / "runs"
    assert train_alone(runs, 0, None, resume=False) == 0, logs(runs.parent)
    return trials.remains(runs)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("tens", range(0, trials.STEPS, 10))
def test_interrupted_at_any_step_it_ends_the_same(
    tens: int, workers: int, tmp_path: pathlib.Path, undisturbed: dict[str, str]
) -> None:
    for step in range(tens + 1, tens + 11):
        how = ("preempt", "kill", "exception")[(step + workers) % 3]
        folder = tmp_path / str(step)
        folder.mkdir()
        runs = folder / "runs"
        code = train_alone(runs, workers, (how, step), resume=False)
        assert code == {"kill": -9, "preempt": 0, "exception": 1}[how], logs(folder)
        other_workers = (workers + step) % 3
        code = train_alone(runs, other_workers, None, resume=trials.has_checkpoint(runs))
        assert code == 0, logs(folder)
        assert trials.remains(runs) == undisturbed, f"{how} at step {step}, workers {workers} then {other_workers}"


def test_loader_workers_do_not_change_the_result(tmp_path: pathlib.Path, undisturbed: dict[str, str]) -> None:
    assert train_alone(tmp_path / "runs", 2, None, resume=False) == 0, logs(tmp_path)
    assert trials.remains(tmp_path / "runs") == undisturbed


@pytest.mark.slow
def test_two_ranks_interrupted_at_random_steps_end_the_same(tmp_path: pathlib.Path) -> None:
    whole = tmp_path / "whole" / "runs"
    whole.parent.mkdir()
    assert train_on_two(whole, None, 0, resume=False) == [0, 0], logs(whole.parent)
    expected = trials.remains(whole)
    draw = random.Random(11)
    for case in range(10):
        how = ("kill", "preempt")[case % 2]
        step, victim = draw.randint(1, trials.STEPS), draw.randint(0, 1)
        folder = tmp_path / f"case{case}"
        folder.mkdir()
        codes = train_on_two(folder / "runs", (how, step), victim, resume=False)
        assert (codes == [0, 0]) == (how == "preempt"), f"{codes}\n{logs(folder)}"
        resume = trials.has_checkpoint(folder / "runs")
        assert train_on_two(folder / "runs", None, 0, resume=resume) == [0, 0], logs(folder)
        assert trials.remains(folder / "runs") == expected, f"{how} of rank {victim} at step {step}"
