"""Keras' fit() reports, is checkpointed, stopped and resumed, with the same result as if it had not been."""

from __future__ import annotations

import doctest
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

# Before Keras is imported: it reads both once.
os.environ["KERAS_BACKEND"] = "torch"
os.environ.setdefault("KERAS_HOME", os.path.join(tempfile.gettempdir(), "resolute-tests-keras"))

import keras

import determined as det
from determined import core, errors
from determined.keras import DeterminedCallback
from determined.keras import callback as callback_module
from determined.wire import reports
from tests.parity.forks import Child, free_port, rank_environment
from tests.unit.core.paper_master import PaperMaster

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("float32")[:, None]


def make_model() -> Any:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1, "sigmoid")]
    )
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="binary_crossentropy")
    return model


def fit(
    epochs: int,
    checkpoint: str | None = None,
    continue_id: int | str = "mine",
    *others: Any,
    **options: Any,
) -> tuple[Any, DeterminedCallback]:
    with core.init() as context:
        callback = DeterminedCallback(context, checkpoint, continue_id, **options)
        model = make_model()
        for other in others:
            other.core_context = context
        model.fit(X, Y, batch_size=8, epochs=epochs, validation_data=(X, Y), callbacks=[callback, *others], verbose=0)
    return model, callback


class Asking(keras.callbacks.Callback):  # type: ignore[misc]
    """Asks to stop during an epoch, as Ctrl-C would."""

    core_context: core.Context

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.epoch:
            self.core_context.preempt.ask("the test asks")


def weights(model: Any) -> list[Any]:
    return [np.array(each) for each in [*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)]]


def rows(runs_dir: pathlib.Path, group: str) -> dict[int, dict[str, Any]]:
    (folder,) = runs_dir.iterdir()
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["steps_completed"]: row["metrics"] for row in found if row["group"] == group}


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    yield
    keras.utils.clear_session()


def test_the_documented_example_runs() -> None:
    assert doctest.testmod(callback_module).failed == 0


def test_each_epoch_is_reported(runs_dir: pathlib.Path) -> None:
    fit(2)
    training, validation = rows(runs_dir, "training"), rows(runs_dir, "validation")
    assert list(training) == list(validation) == [4, 8]
    assert training[8].keys() == {"loss", "batches", "epochs"}
    assert validation[8].keys() == {"val_loss", "batches", "epochs"}
    assert (validation[8]["batches"], validation[8]["epochs"]) == (8, 2)


def test_training_metrics_may_be_reported_by_batches(runs_dir: pathlib.Path) -> None:
    fit(2, train_metrics_report_period=3)
    assert list(rows(runs_dir, "training")) == [3, 6]


def test_a_resumed_training_ends_exactly_as_an_undisturbed_one(runs_dir: pathlib.Path) -> None:
    undisturbed, _ = fit(4)
    expected = rows(runs_dir, "validation")
    (folder,) = runs_dir.iterdir()
    folder.rename(runs_dir.with_name("elsewhere"))

    _, callback = fit(4, None, "mine", Asking(1))
    assert callback.was_preempted
    assert list(rows(runs_dir, "validation")) == [4, 8]
    resumed, callback = fit(4, "latest")
    assert not callback.was_preempted
    assert rows(runs_dir, "validation") == expected
    for mine, theirs in zip(weights(resumed), weights(undisturbed), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_environment_may_say_what_to_resume(runs_dir: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(1)
    monkeypatch.setenv("DET_LATEST_CHECKPOINT", "latest")
    fit(3)
    assert list(rows(runs_dir, "validation")) == [4, 8, 12]


def test_another_continue_id_starts_at_the_first_epoch_with_those_weights(runs_dir: pathlib.Path) -> None:
    trained, _ = fit(2)
    (first,) = runs_dir.iterdir()
    storage_id = json.loads((first / "checkpoints.jsonl").read_text().splitlines()[-1])["checkpoint"]
    with core.init() as context:
        callback = DeterminedCallback(context, storage_id, "other")
        model = make_model()
        callback.set_model(model)
        callback.on_train_begin()
        for mine, theirs in zip(weights(model), weights(trained), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    with core.init() as context:
        callback = DeterminedCallback(context, storage_id, "other")
        history = make_model().fit(X, Y, batch_size=8, epochs=1, callbacks=[callback], verbose=0)
        assert history.epoch == [0]
        assert context.run.path != first


def test_a_training_that_is_done_does_nothing_more(runs_dir: pathlib.Path) -> None:
    first, _ = fit(2)
    again, _ = fit(2, "latest")
    assert list(rows(runs_dir, "validation")) == [4, 8]
    for mine, theirs in zip(weights(again), weights(first), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_checkpoints_come_as_often_as_asked_and_at_the_end(runs_dir: pathlib.Path) -> None:
    fit(5, checkpoint_epochs=2)
    (folder,) = runs_dir.iterdir()
    journal = [json.loads(line) for line in (folder / "checkpoints.jsonl").read_text().splitlines()]
    assert [entry["steps_completed"] for entry in journal] == [8, 16, 20]


def test_all_ranks_stop_after_the_same_epoch_whoever_was_asked(runs_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def one_rank(rank: int) -> None:
        others = [Asking(1)] if rank == 1 else []
        _, callback = fit(500, None, "mine", *others)
        assert callback.was_preempted
        (tmp_path / f"epochs-{rank}").write_text(str(callback.epochs_completed))

    port = free_port()
    ranks = [
        Child(one_rank, rank, environment=rank_environment(rank, 2, port), log=tmp_path / f"out-{rank}")
        for rank in range(2)
    ]
    for rank in ranks:
        rank.succeed()
    assert (tmp_path / "epochs-0").read_text() == (tmp_path / "epochs-1").read_text()
    assert len(list(runs_dir.iterdir())) == 1


def test_a_callback_is_for_one_fit() -> None:
    with core.init() as context:
        callback = DeterminedCallback(context, None, "mine")
        model = make_model()
        model.fit(X, Y, epochs=1, callbacks=[callback], verbose=0)
        with pytest.raises(RuntimeError, match="make another callback"):
            model.fit(X, Y, epochs=1, callbacks=[callback], verbose=0)


def test_how_models_are_saved_may_be_changed() -> None:
    class Plain(DeterminedCallback):
        def save_model(self, model: Any, path: pathlib.Path, distributed: core.DistributedContext) -> None:
            np.savez(path / "plain.npz", *model.get_weights())

        def load_model(self, model: Any, path: pathlib.Path, distributed: core.DistributedContext) -> None:
            with np.load(path / "plain.npz") as arrays:
                model.set_weights([arrays[name] for name in arrays])

    with core.init() as context:
        model = make_model()
        model.fit(X, Y, epochs=1, callbacks=[Plain(context, None, 1)], verbose=0)
    with core.init() as context:
        again = make_model()
        again.fit(X, Y, epochs=1, callbacks=[Plain(context, "latest", 1)], verbose=0)
    for mine, theirs in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_checkpoint_of_something_else_is_refused() -> None:
    with core.init() as context, context.checkpoint.store_path({"steps_completed": 1}) as (_, storage_id):
        pass
    with pytest.raises(errors.InvalidCheckpointException, match=r"was not saved by determined\.keras"):
        fit(1, storage_id)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"train_metrics_report_period": 0}, "train_metrics_report_period is"),
        ({"checkpoint_epochs": -1}, "checkpoint_epochs must be 0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        fit(1, **options)


def test_the_package_is_reached_from_determined_without_importing_keras(tmp_path: pathlib.Path) -> None:
    assert det.keras.DeterminedCallback is DeterminedCallback
    code = (
        "import sys, determined as det, determined.keras\n"
        "assert 'keras' not in sys.modules\n"
        "sys.modules['keras'] = None\n"
        "try: det.keras.DeterminedCallback\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'resolute[keras]'" in done.stdout


@pytest.mark.parametrize(("target", "unit"), [(2, None), (2, "epochs"), (8, "batches")])
def test_under_a_master_it_leaves_at_its_target_and_goes_on_from_there(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, target: int, unit: str | None
) -> None:
    (tmp_path / "state").mkdir()
    master = PaperMaster(tmp_path / "state", monkeypatch)
    config = {"searcher": {"name": "single", "metric": "val_loss", "max_length": {"epochs": 4}}}
    master.assign(config)
    undisturbed, _ = fit(4, continue_id=7)
    master.run_folder = master.folder / "runs" / "again"
    master.assign(config, target=target, target_unit=unit)
    fit(4, continue_id=7)
    cut = master.of(reports.CheckpointReport)[-1]
    assert cut.steps_completed == 8
    validated = [each.steps_completed for each in master.of(reports.MetricsReport) if each.group == "validation"]
    assert validated == [4, 8]
    assert master.of(reports.ProgressReport)[-1].progress == 0.5
    master.assign(config, latest_checkpoint=cut.uuid, steps_completed=8)
    resumed, _ = fit(4, cut.uuid, continue_id=7)
    for one, other in zip(weights(resumed), weights(undisturbed)):
        np.testing.assert_array_equal(one, other)
