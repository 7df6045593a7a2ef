"""The profiler samples the machine in the background, on one rank per machine."""

from __future__ import annotations

import json
import pathlib
import threading

import pytest

from determined.core.profiler import ProfilerContext


def wait_for(path: pathlib.Path) -> None:
    for _ in range(200):
        if path.exists():
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"{path} never came")


def test_it_writes_means_per_group(tmp_path: pathlib.Path) -> None:
    warnings: list[str] = []
    profiler = ProfilerContext(lambda: tmp_path / "profile.jsonl", 0, True, warnings.append)
    profiler.on(sampling_interval=0.1, samples_per_report=1)
    profiler.on()
    assert warnings == ["the profiler is on already"]
    wait_for(tmp_path / "profile.jsonl")
    profiler.off()
    profiler.off()
    rows = [json.loads(line) for line in (tmp_path / "profile.jsonl").read_text().splitlines()]
    assert {"cpu", "memory", "disk", "network"} <= {row["group"] for row in rows}
    assert all(isinstance(value, float) for row in rows for value in row["metrics"].values())


def test_other_ranks_of_the_machine_measure_nothing(tmp_path: pathlib.Path) -> None:
    profiler = ProfilerContext(lambda: tmp_path / "profile.jsonl", 1, False, print)
    profiler.on(0.1, 1)
    profiler.off()
    assert not (tmp_path / "profile.jsonl").exists()


def test_what_cannot_be_is_refused(tmp_path: pathlib.Path) -> None:
    profiler = ProfilerContext(lambda: tmp_path / "profile.jsonl", 0, True, print)
    with pytest.raises(ValueError, match=r"at least 0\.1"):
        profiler.on(sampling_interval=0)
    with pytest.raises(ValueError, match="at least 1"):
        profiler.on(samples_per_report=0)
