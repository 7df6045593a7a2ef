"""`python -m bench` runs, checks that we train exactly what the bare loop trains, and prints its table."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from bench import ingest, report_call, scheduling, search, series
from tests import masters

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_a_quick_run_trains_what_the_bare_loop_trains_and_prints_the_table(tmp_path: pathlib.Path) -> None:
    arguments = ["--quick", "loop", "--chunks", "1", "--cases", "validation", "--contenders", "bare,resolute"]
    results = tmp_path / "results"
    done = subprocess.run(
        [sys.executable, "-m", "bench", *arguments, "--results", str(results), "--markdown", "-"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| case | bare | ours | best peer | others | bar | verdict |" in done.stdout
    assert "+ loader, metric, validation every 100" in done.stdout
    found = json.loads((results / "loop.json").read_text())
    assert set(found["details"]) == {"bare", "resolute"}
    assert [row["bar"] for row in found["rows"]] == [0.8]
    assert list(results.glob("run-*")) == []


@pytest.mark.slow
def test_a_quick_run_of_the_platform_prints_a_line_for_everything_that_has_a_bar(tmp_path: pathlib.Path) -> None:
    results = tmp_path / "results"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "platform", "--quick", "--results", str(results), "--markdown", "-"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| case | limit | ours | best peer | others | bar | verdict |" in done.stdout
    rows = {
        path.stem: [row for row in json.loads(path.read_text())["rows"] if row["bar"] is not None]
        for path in results.glob("*.json")
    }
    assert {name: len(found) for name, found in rows.items()} == {
        "trials": 4,
        "series": 2,
        "ingest": 2,
        "report_call": 5,
        "search": 9,
        "scheduling": 1,
        "serving": 5,
    }
    assert all(row["ours"] > 0 and row["verdict"] in ("pass", "FAIL") for found in rows.values() for row in found)
    assert [*tmp_path.glob("*bench-*")] == []
    assert masters.processes_of(tmp_path) == []


def test_the_scheduling_measurement_times_every_pass() -> None:
    for name, policy in scheduling.POLICIES.items():
        times = scheduling.measure(policy, queued=50, passes=3)
        assert len(times) == 3, name
        assert all(wall > 0 for wall, _ in times), name
    assert scheduling.percentile([3.0, 1.0, 2.0], 0.99) == 3.0


def test_the_search_measurement_times_ours_and_optuna_in_turns(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search.main(["--rounds", "2", "--trials", "20", "--results", str(tmp_path)])
    assert "One decision, median" in capsys.readouterr().out
    found = json.loads((tmp_path / "search.json").read_text())["details"]
    assert {name.split(",")[0] for name in found} == {"random", "grid", "ASHA", "adaptive ASHA", "TPE"}
    for name, times in found.items():
        assert times["ours"] and len(times["optuna"]) in (0, len(times["ours"])), name


def test_the_report_measurement_times_every_call() -> None:
    for case in report_call.CASES:
        times = report_call.measure(case, calls=50, step_seconds=0.0)
        assert 0 < times.p50 <= times.p99 <= times.longest


@pytest.mark.parametrize("way", [*ingest.MEASUREMENTS])
def test_the_measurement_of_taking_metrics_in_counts_what_is_stored(way: str, tmp_path: pathlib.Path) -> None:
    assert ingest.MEASUREMENTS[way](2, 100, 2, 0.2, tmp_path) > 0


def test_the_measurement_of_reading_series_finds_every_spike(capsys: pytest.CaptureFixture[str]) -> None:
    series.main(["--points", "20000", "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["points"] for row in found] == [10_000, 20_000, 100_000]
