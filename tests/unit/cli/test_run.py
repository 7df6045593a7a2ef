"""`det run` reads run folders as they are, also those being written."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from determined.cli import main, run

OLD, NEW = 1_700_000_000, 1_700_001_000


def make_run(
    parent: pathlib.Path,
    name: str,
    changed: int,
    rows: list[dict[str, object]],
    tail: str = "",
    state: str = "completed",
) -> None:
    folder = parent / name
    folder.mkdir(parents=True)
    label = {"id": name.split("-")[1], "name": name.split("-")[0], "run_epoch": 1, "state": state, "started": OLD}
    (folder / "run.json").write_text(json.dumps(label))
    metrics = folder / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    os.utime(metrics, (changed, changed))


def row(group: str, steps_completed: int, **metrics: object) -> dict[str, object]:
    return {"group": group, "steps_completed": steps_completed, "metrics": metrics, "time": OLD}


@pytest.fixture
def two_runs(runs_dir: pathlib.Path) -> pathlib.Path:
    make_run(runs_dir, "mnist-ab12", OLD, [row("training", 50, loss=2.0), row("training", 100, loss=0.5)])
    make_run(
        runs_dir,
        "mnist-cd34",
        NEW,
        [row("validation", 300, accuracy=0.9), row("validation", 600, accuracy=float("nan"))],
        tail='{"group": "validation", "steps_com',
    )
    checkpoint = runs_dir / "mnist-cd34" / "checkpoints" / "c0ffee"
    checkpoint.mkdir(parents=True)
    (checkpoint / "metadata.json").write_text('{"steps_completed": 600}')
    (checkpoint / "manifest.json").touch()
    (runs_dir / "mnist-cd34" / "checkpoints" / "unfinished").mkdir()
    (runs_dir / "not-a-run").mkdir()
    return runs_dir


def det(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main.main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_list_shows_the_newest_first(two_runs: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = det(capsys, "run", "list")
    assert code == main.DONE
    first, second = out.splitlines()[1:]
    assert first.split()[0] == "mnist-cd34"
    assert "600" in first and "accuracy nan" in first
    assert second.split()[0] == "mnist-ab12" and "100" in second


def test_list_in_json_has_whole_values(two_runs: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(det(capsys, "run", "list", "-o", "json", "--limit", "0")[1])
    assert [(row["name"], row["batches"], row["checkpoints"]) for row in rows] == [
        ("mnist-cd34", 600, 1),
        ("mnist-ab12", 100, 0),
    ]
    assert rows[1]["metrics"] == {"training": {"loss": 0.5}}


def test_no_runs_is_no_error(runs_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert det(capsys, "run", "list") == (main.DONE, "", f"No runs in {runs_dir} yet.\n")


@pytest.mark.parametrize("name", ["latest", "mnist-cd34", "mnist-c", "cd34"])
def test_describe_finds_a_run(name: str, two_runs: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = det(capsys, "run", "describe", name)
    assert code == main.DONE
    assert str(two_runs / "mnist-cd34") in out
    assert "validation accuracy" in out
    assert "c0ffee" in out and "unfinished" not in out


def test_describe_takes_a_path(two_runs: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = det(capsys, "run", "describe", str(two_runs / "mnist-ab12"), "-o", "yaml")
    assert code == main.DONE
    assert "name: mnist-ab12" in out


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mnist", "'mnist' fits 2 runs (mnist-ab12, mnist-cd34); write more of the name"),
        ("mnits-ab12", "did you mean mnist-ab12?"),
        ("zzz", "'det run list' shows all"),
    ],
)
def test_describe_says_what_is_wrong_with_a_name(
    name: str, sentence: str, two_runs: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = det(capsys, "run", "describe", name)
    assert (code, out) == (main.FAILED, "")
    assert sentence in err


def test_latest_of_nothing_says_where_it_looked(runs_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"there are no runs in {runs_dir}" in det(capsys, "run", "describe", "latest")[2]


def test_only_the_end_of_long_metrics_is_read(
    runs_dir: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "TAIL_BYTES", 300)
    make_run(runs_dir, "long-1", NEW, [row("training", step, loss=1.0) for step in range(1000)])
    assert json.loads(det(capsys, "run", "describe", "latest", "-o", "json")[1])["batches"] == 999


def test_a_run_whose_process_is_no_more_is_not_said_to_run(
    runs_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(runs_dir, "mnist-dead1", OLD, [], state="running")
    make_run(runs_dir, "mnist-live1", NEW, [], state="running")
    (runs_dir / "mnist-dead1" / ".lock").write_text(str(2**22 + 1))  # above every process id Linux gives
    (runs_dir / "mnist-live1" / ".lock").write_text(str(os.getpid()))
    rows = json.loads(det(capsys, "run", "list", "-o", "json")[1])
    assert [row["state"] for row in rows] == ["running", "gone"]
