"""A run's folder has one writer, one epoch per start, and rows that end at the cut after a rewind."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from determined import errors
from determined.core.run_folder import RunFolder, RunLabel, runs_in, safe_name
from determined.core.sinks import Row, encode_row


def metrics(run: RunFolder, steps: list[int], group: str = "training") -> None:
    with open(run.metrics, "ab") as file:
        for step in steps:
            file.write(encode_row(Row(group, step, {"loss": 1 / step}, None, 0.0), run.run_epoch))


def test_a_new_run_has_a_folder_of_its_own(runs_dir: pathlib.Path) -> None:
    first, second = (RunFolder.create(runs_dir, "my model/v1") for _ in range(2))
    assert first.path != second.path
    assert first.path.parent == runs_dir
    assert first.path.name == f"my-model-v1-{first.id}"


def test_each_start_has_a_larger_epoch(runs_dir: pathlib.Path) -> None:
    run = RunFolder.create(runs_dir, "a")
    for epoch in (1, 2, 3):
        again = RunFolder.at(run.path) or run
        again.open()
        assert again.run_epoch == epoch
        again.finish("completed")
    label = RunFolder.at(run.path)
    assert label is not None and label.label.state == "completed"


def test_two_processes_do_not_write_one_run(runs_dir: pathlib.Path) -> None:
    run = RunFolder.create(runs_dir, "a")
    run.open()
    with pytest.raises(errors.DeterminedError, match=f"is being written by process {os.getpid()}"):
        RunFolder(run.path, run.label).open()
    run.finish("completed")
    RunFolder(run.path, run.label).open()


def test_a_worker_that_outlives_its_trainer_does_not_hold_the_run(runs_dir: pathlib.Path) -> None:
    script = (
        "import os, pathlib, sys\n"
        "from determined.core.run_folder import RunFolder\n"
        "run = RunFolder.create(pathlib.Path(sys.argv[1]), 'a'); run.open()\n"
        "living, born = os.pipe()\n"
        "pid = os.fork()\n"
        "if pid: os.read(living, 1); print(run.path, flush=True); os.kill(os.getpid(), 9)\n"
        "os.write(born, b'.'); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(runs_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdout is not None
        path = pathlib.Path(trainer.stdout.readline().strip())
        trainer.wait()  # its worker lives until standard input ends
        run = RunFolder.at(path)
        assert run is not None
        run.open()
        assert run.run_epoch == 2


def test_a_place_that_cannot_be_written_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.DeterminedError, match="DET_RUNS_DIR"):
        RunFolder.create(tmp_path / "file", "a")


def test_rewinding_drops_what_is_past_the_cut(runs_dir: pathlib.Path) -> None:
    run = RunFolder.create(runs_dir, "a")
    metrics(run, [10, 20, 30, 40])
    metrics(run, [20, 40], "validation")
    assert run.rewind(20) == 3
    assert [(row["group"], row["steps_completed"]) for row in run.rows()] == [
        ("training", 10),
        ("training", 20),
        ("validation", 20),
    ]
    before = run.metrics.stat().st_ino
    assert run.rewind(20) == 0
    assert run.metrics.stat().st_ino == before


def test_rewinding_drops_a_row_torn_by_a_crash(runs_dir: pathlib.Path) -> None:
    run = RunFolder.create(runs_dir, "a")
    metrics(run, [10])
    with open(run.metrics, "ab") as file:
        file.write(b'{"steps_completed":1')
    run.rewind(100)
    assert [row["steps_completed"] for row in run.rows()] == [10]


@given(st.lists(st.integers(1, 30), max_size=30), st.integers(0, 31))
def test_after_any_rewind_the_rows_are_those_up_to_the_cut(steps: list[int], cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(pathlib.Path(folder), RunLabel("id", "name"))
        metrics(run, steps)
        run.rewind(cut)
        assert [row["steps_completed"] for row in run.rows()] == [step for step in steps if step <= cut]


def test_a_run_that_has_not_begun_becomes_another_without_a_trace(runs_dir: pathlib.Path) -> None:
    old, fresh = RunFolder.create(runs_dir, "a"), RunFolder.create(runs_dir, "a")
    old.open()
    metrics(old, [1])
    old.finish("interrupted")
    fresh.open()
    fresh_path = fresh.path
    fresh.become(RunFolder.at(old.path) or old)
    fresh.open()
    assert (fresh.path, fresh.run_epoch) == (old.path, 2)
    assert not fresh_path.exists()


def test_runs_are_found_by_their_name(runs_dir: pathlib.Path) -> None:
    for name in ("a", "a", "a-b"):
        run = RunFolder.create(runs_dir, name)
        run.open()
        run.finish("completed")
    (runs_dir / "a-notarun").mkdir()
    assert sorted(run.name for run in runs_in(runs_dir)) == ["a", "a", "a-b"]
    assert [run.name for run in runs_in(runs_dir, "a")] == ["a", "a"]
    assert list(runs_in(runs_dir / "nothing")) == []


@pytest.mark.parametrize("name", ["", "..", "../../etc", "\0", "/", "a b", "x" * 500, "ü"])
def test_any_name_makes_a_safe_folder_name(name: str) -> None:
    made = safe_name(name)
    assert made and len(made) <= 60 and "/" not in made and not made.startswith(".")


def test_documents_are_written_whole(runs_dir: pathlib.Path) -> None:
    run = RunFolder.create(runs_dir, "a")
    run.write("config.json", {"a": 1})
    assert run.read("config.json") == {"a": 1} == json.loads((run.path / "config.json").read_text())
    assert run.read("nothing.json") is None
    assert os.listdir(run.path) == ["config.json"]
