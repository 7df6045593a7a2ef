"""A local run is a real run: a folder, an epoch, a way to go on, whoever started it and however it ended."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from determined import core, errors
from determined.core import connect
from determined.core.run_folder import RunFolder, runs_in
from determined.testing.storage import contents, write
from determined.wire.node_spec import NodeSpec, TrialSpec
from tests.unit.core.gang import run_gang


@pytest.fixture(autouse=True)
def script(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Pretend that a script of its own folder was started, not pytest."""
    write(tmp_path / "project", {"train.py": b"print(1)\n"})
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "project" / "train.py")])
    return tmp_path / "project" / "train.py"


def only_run(runs_dir: pathlib.Path) -> RunFolder:
    (run,) = runs_in(runs_dir)
    return run


def save(context: core.Context, steps: int) -> str:
    with context.checkpoint.store_path({"steps_completed": steps}) as (path, storage_id):
        (path / "weights").write_text(str(steps))
    return storage_id


def train(context: core.Context, start: int, stop: int) -> str:
    storage_id = ""
    for step in range(start + 1, stop + 1):
        context.train.report_training_metrics(step, {"loss": 1 / step})
        if step % 10 == 0:
            context.train.report_validation_metrics(step, {"acc": step / 100})
            storage_id = save(context, step)
    return storage_id


def test_a_run_leaves_everything_behind(runs_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"name": "digits", "searcher": {"metric": "acc", "smaller_is_better": False}}
    with core.init(config=config, hparams={"lr": 0.1}) as context:
        train(context, 0, 20)
        assert (context.hparams, context.seed, context.info) == ({"lr": 0.1}, 0, None)
        assert context.spec.trial is not None and context.spec.trial.hparams == {"lr": 0.1}
    run = only_run(runs_dir)
    assert run.path.name == f"digits-{run.id}" and run.label.state == "completed"
    assert [row["steps_completed"] for row in run.rows("training")] == list(range(1, 21))
    assert run.read("config.json") == config
    assert "python" in run.read("environment.json")
    assert contents(run.code) == {"train.py": b"print(1)\n"}
    assert len(list(run.tensorboard.iterdir())) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"run digits-{run.id}: {run.path}"
    assert "best acc 0.2" in told[-1] and str(run.path) in told[-1] and "completed" in told[-1]


def test_connecting_costs_nothing_noticeable(runs_dir: pathlib.Path) -> None:
    best = 1.0
    for _ in range(5):
        begun = time.perf_counter()
        context = core.init()
        best = min(best, time.perf_counter() - begun)
        context.close()
    assert best < 0.02


def test_the_same_run_goes_on_from_its_cut(runs_dir: pathlib.Path) -> None:
    with core.init() as context:
        cut = train(context, 0, 25)
        context.train.report_validation_metrics(25, {"acc": 0.9})
    with core.init(latest_checkpoint="latest") as context:
        assert context.found is not None
        assert (context.found.storage_id, context.found.steps_completed) == (cut, 20)
        assert context.run.run_epoch == 2
        # Before anything new is reported, nothing past the cut is there.
        assert max(row["steps_completed"] for row in context.run.rows()) == 20
        with context.checkpoint.restore_path(cut) as path:
            assert (path / "weights").read_text() == "20"
        train(context, 20, 30)
    run = only_run(runs_dir)
    assert [row["steps_completed"] for row in run.rows("training")] == list(range(1, 31))
    assert [row["run_epoch"] for row in run.rows("training")] == [1] * 20 + [2] * 10


def test_reporting_the_cut_again_is_once(runs_dir: pathlib.Path) -> None:
    with core.init() as context:
        train(context, 0, 10)
    with core.init(latest_checkpoint="latest") as context:
        context.train.report_validation_metrics(10, {"acc": 0.1})
        context.train.report_training_metrics(10, {"loss": 0.5})  # another value supersedes, without an error
    rows = list(only_run(runs_dir).rows())
    assert [(row["group"], row["run_epoch"]) for row in rows if row["steps_completed"] == 10] == [
        ("training", 1),
        ("validation", 1),
        ("training", 2),
    ]


def test_resuming_after_the_start_is_the_same(runs_dir: pathlib.Path) -> None:
    with core.init() as context:
        cut = train(context, 0, 15)
    with core.init() as context:
        fresh = context.run.path
        found = context.resume("latest")
        assert found is not None and found.storage_id == cut and context.found == found
        assert not fresh.exists()
        assert context.spec.trial is not None and context.spec.trial.steps_completed == 10
        train(context, 10, 20)
    run = only_run(runs_dir)
    assert [row["steps_completed"] for row in run.rows("training")] == list(range(1, 21))
    assert run.run_epoch == 2 and contents(run.code)


def test_the_latest_after_going_back_is_where_one_went_back_to(runs_dir: pathlib.Path) -> None:
    with core.init() as context:
        train(context, 0, 30)
        first = context.checkpoint.list()[0].storage_id
    with core.init(latest_checkpoint=first):
        pass  # stopped before it saved anything
    with core.init(latest_checkpoint="latest") as context:
        assert context.found is not None and context.found.steps_completed == 10


def test_the_environment_may_ask_to_go_on(runs_dir: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_LATEST_CHECKPOINT", "latest")
    with core.init() as context:  # nothing there yet: from the beginning
        assert context.found is None
        train(context, 0, 10)
    with core.init() as context:
        assert context.found is not None and context.found.steps_completed == 10


def test_latest_means_this_script(runs_dir: pathlib.Path) -> None:
    with core.init(name="other") as context:
        train(context, 0, 10)
    with core.init(latest_checkpoint="latest") as context:
        assert context.found is None


def test_a_checkpoint_is_found_by_id_prefix_path_or_run(runs_dir: pathlib.Path) -> None:
    with core.init() as context:
        storage_id = train(context, 0, 10)
        path = context.run.checkpoints / storage_id
    for wanted in (storage_id, storage_id[:8], str(path), str(context.run.path)):
        run, found, where = connect.resolve_checkpoint(wanted, runs_dir)
        assert run is not None and (run.id, found, where) == (context.run.id, storage_id, path)
    with pytest.raises(errors.CheckpointNotFound, match=storage_id):
        connect.resolve_checkpoint("deadbeef", runs_dir)
    with pytest.raises(errors.CheckpointNotFound, match="check the path"):
        connect.resolve_checkpoint("/no/such/folder", runs_dir)
    with pytest.raises(errors.CheckpointNotFound, match="deadbeef"):
        core.init(latest_checkpoint="deadbeef")


def test_a_checkpoint_from_elsewhere_starts_a_new_run(runs_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    write(tmp_path / "gift", {"state_dict.pth": b"x", "metadata.json": b'{"steps_completed": 5}'})
    with core.init(latest_checkpoint=str(tmp_path / "gift")) as context:
        assert context.found is not None and context.found.path == tmp_path / "gift"
        with context.checkpoint.reading(context.found.path) as path:
            assert (path / "state_dict.pth").exists()
    assert only_run(runs_dir).run_epoch == 1


def test_checkpoints_may_be_kept_elsewhere(runs_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with core.init(checkpoint_storage=str(tmp_path / "store")) as context:
        storage_id = train(context, 0, 10)
    assert (tmp_path / "store" / storage_id).is_dir()
    with core.init(checkpoint_storage=str(tmp_path / "store"), latest_checkpoint="latest") as context:
        assert context.found is not None and context.found.storage_id == storage_id
    with pytest.raises(errors.InvalidConfigurationException, match="not available in this version"):
        core.init(checkpoint_storage="s3://bucket")


def test_the_policy_of_the_config_is_kept_over_restarts(runs_dir: pathlib.Path) -> None:
    config: dict[str, Any] = {
        "searcher": {"metric": "acc", "smaller_is_better": False},
        "checkpoint_storage": {"save_trial_best": 1, "save_trial_latest": 1},
    }

    def step(context: core.Context, steps: int, acc: float) -> None:
        context.train.report_validation_metrics(steps, {"acc": acc})
        save(context, steps)

    with core.init(config=config) as context:
        step(context, 1, 0.9)
        step(context, 2, 0.5)
    with core.init(config=config, latest_checkpoint="latest") as context:
        assert context.train.get_experiment_best_validation() == 0.9
        step(context, 3, 0.7)
        assert [entry.steps_completed for entry in context.checkpoint.list()] == [1, 3]


def test_two_processes_do_not_train_one_run(runs_dir: pathlib.Path) -> None:
    with core.init() as context:
        storage_id = train(context, 0, 10)
        with pytest.raises(errors.DeterminedError, match="is being written by process"):
            core.init(latest_checkpoint=storage_id)


def test_invalid_hyperparameters_end_the_process_well(runs_dir: pathlib.Path) -> None:
    with pytest.raises(SystemExit) as exit_info, core.init():
        raise errors.InvalidHP("too large")
    assert exit_info.value.code == 0
    assert only_run(runs_dir).label.state == "invalid_hp"


def test_a_failure_keeps_its_type_and_says_how_to_go_on(
    runs_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyError), core.init() as context:
        train(context, 0, 10)
        raise KeyError("mine")
    assert only_run(runs_dir).label.state == "failed"
    assert "go on with: DET_LATEST_CHECKPOINT=latest python" in capsys.readouterr().err


def test_what_could_not_be_kept_is_raised_at_the_end(runs_dir: pathlib.Path) -> None:
    with pytest.raises(errors.InvalidExperimentException, match="twice"):
        with core.init() as context:
            context.train.report_training_metrics(1, {"x": 1})
            context.train.report_training_metrics(1, {"x": 2})
    with pytest.raises(KeyError), core.init() as context:  # but what ended training comes first
        context.train.report_training_metrics(1, {"x": 1})
        context.train.report_training_metrics(1, {"x": 2})
        raise KeyError


def test_hyperparameters_of_a_config_beside_the_script(
    script: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = (
        "name: beside\nentrypoint: python3 train.py\n"
        "hyperparameters: {lr: {type: double, minval: 0.25, maxval: 1}, width: 3}\n"
        "searcher: {name: single, metric: acc, smaller_is_better: false}\n"
    )
    (script.parent / "const.yaml").write_text(config)
    with core.init() as context:
        assert context.hparams == {"lr": 0.25, "width": 3}
        assert context.run.name == "beside"
    assert "lr" in capsys.readouterr().err
    (script.parent / "const.yaml").unlink()
    (script.parent / "elsewhere.yaml").write_text(config.replace("width: 3", "width: 4"))
    monkeypatch.setenv("DET_EXPERIMENT_CONFIG", str(script.parent / "elsewhere.yaml"))
    with core.init() as context:
        assert context.hparams["width"] == 4
        assert context.checkpoint.retention.metric == "acc"


def test_a_launcher_gives_the_run(
    runs_dir: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = NodeSpec(
        name="launched",
        run_id="abc",
        run_folder=runs_dir / "launched-abc",
        code_folder=tmp_path / "project",
        trial=TrialSpec(seed=7, hparams={"x": 1}),
    )
    spec.write(tmp_path / "spec.json")
    monkeypatch.setenv("DET_NODE_SPEC", str(tmp_path / "spec.json"))
    for epoch in (1, 2):
        with core.init(latest_checkpoint="latest") as context:
            assert (context.run.path, context.run.id, context.seed) == (spec.run_folder, "abc", 7)
            assert context.hparams == {"x": 1} and context.run.run_epoch == epoch
            assert (context.found is not None) == (epoch == 2)
            train(context, 10 * (epoch - 1), 10 * epoch)


def test_ranks_share_one_run_and_one_error(runs_dir: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(distributed: core.DistributedContext) -> Any:
        with core.init(distributed=distributed) as context:
            if distributed.rank == 0:
                context.train.report_training_metrics(1, {"loss": 1})
            with context.checkpoint.store_path({"steps_completed": 1}, shard=True) as (path, storage_id):
                (path / str(distributed.rank)).write_text("")
            assert context.resume("latest") is not None
            return context.run.path, context.run.run_epoch, storage_id

    results = run_gang(2, work)
    assert results[0] == results[1] and results[0][1] == 1
    for result in run_gang(2, lambda distributed: core.init(distributed=distributed, latest_checkpoint="unknown")):
        assert isinstance(result, errors.CheckpointNotFound)


def test_sigterm_asks_for_a_checkpoint_and_says_how_to_go_on(runs_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "project" / "loop.py"
    script.write_text(
        "from determined import core\n"
        "import threading\n"
        "with core.init() as context:\n"
        "    step = context.found.steps_completed if context.found else 0\n"
        "    print('from', step, flush=True)\n"
        "    while not context.preempt.should_preempt():\n"
        "        step += 1\n"
        "        context.train.report_training_metrics(step, {'loss': 1 / step})\n"
        "        threading.Event().wait(0.01)\n"
        "    with context.checkpoint.store_path({'steps_completed': step}):\n"
        "        print('saved', step, flush=True)\n"
    )

    def start_and_stop(**environment: str) -> tuple[str, str]:
        process = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        with process:
            assert process.stdout is not None and process.stderr is not None
            first = process.stdout.readline()
            threading.Event().wait(0.2)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        return first + out, err

    out, err = start_and_stop()
    saved = int(out.split()[-1])
    assert out.startswith("from 0") and saved > 0
    assert only_run(runs_dir).label.state == "interrupted"
    assert f"go on with: DET_LATEST_CHECKPOINT=latest python {script}" in err
    out, err = start_and_stop(DET_LATEST_CHECKPOINT="latest")
    assert out.startswith(f"from {saved}\n")
    rows = [row["steps_completed"] for row in only_run(runs_dir).rows()]
    assert rows == list(range(1, int(out.split()[-1]) + 1))


def test_after_kill_9_the_run_goes_on_at_once(runs_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "project" / "killed.py"
    script.write_text(
        "import os, signal\n"
        "from determined import core\n"
        "with core.init() as context:\n"
        "    start = context.found.steps_completed if context.found else 0\n"
        "    for step in range(start + 1, 101):\n"
        "        context.train.report_training_metrics(step, {'loss': 1 / step})\n"
        "        if step % 20 == 0:\n"
        "            with context.checkpoint.store_path({'steps_completed': step}): pass\n"
        "        if step == start + 33: context.train.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "DET_LATEST_CHECKPOINT": "latest"}
    codes = [subprocess.run([sys.executable, str(script)], env=environment, capture_output=True).returncode]
    while codes[-1] and len(codes) < 10:
        codes.append(subprocess.run([sys.executable, str(script)], env=environment, capture_output=True).returncode)
    assert codes == [-9, -9, -9, -9, 0]
    rows = [json.loads(line) for line in only_run(runs_dir).metrics.read_text().splitlines()]
    assert [row["steps_completed"] for row in rows] == list(range(1, 101))
    assert rows[-1]["run_epoch"] == 5


def test_a_context_without_with_is_closed_at_exit(runs_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "project" / "bare.py"
    script.write_text(
        "from determined import core\ncontext = core.init()\ncontext.train.report_training_metrics(1, {'loss': 1})\n"
    )
    subprocess.run([sys.executable, str(script)], check=True, capture_output=True)
    run = only_run(runs_dir)
    assert run.label.state == "completed" and len(list(run.rows())) == 1


@pytest.mark.parametrize("module", ["core", "pytorch"])
def test_a_context_without_with_knows_of_the_exception_at_exit(
    runs_dir: pathlib.Path, tmp_path: pathlib.Path, module: str
) -> None:
    script = tmp_path / "project" / "bare.py"
    script.write_text(f"from determined import {module}\ncontext = {module}.init()\nraise ValueError('not today')\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 1 and "not today" in done.stderr
    assert only_run(runs_dir).label.state == "failed"


def test_importing_core_imports_nothing_heavy() -> None:
    code = "import sys; from determined import core; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"torch", "numpy", "pydantic", "rich", "yaml", "psutil", "tensorboard"} & set(done.stdout.split())
