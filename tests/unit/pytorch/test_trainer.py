"""The trainer does what is documented, in the documented order, and says clearly what is wrong."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import determined as det
from determined import errors, pytorch


class Ones(torch.utils.data.Dataset[Any]):
    def __init__(self, length: int = 64) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.ones(1), torch.ones(1)


class OneVariable(pytorch.PyTorchTrial):
    """A line through the origin, fitted to y = x."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Linear(1, 1, bias=False))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.events: list[str] = []

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(Ones(), batch_size=8)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(Ones(16), batch_size=8)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.events.append(f"batch {batch_idx} of epoch {epoch_idx}")
        data, labels = batch
        loss = nn.functional.mse_loss(self.model(data), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:
        data, labels = batch
        return {"loss": nn.functional.mse_loss(self.model(data), labels)}


@pytest.fixture
def context() -> Iterator[pytorch.TrainingContext]:
    with pytorch.init(hparams={"global_batch_size": 8}) as context:
        yield context


def fit(trial: pytorch.PyTorchTrial, context: pytorch.PyTorchTrialContext, **arguments: Any) -> Any:
    arguments.setdefault("max_length", pytorch.Batch(4))
    return pytorch.Trainer(trial, context).fit(**arguments)


def _weight(trial: Any) -> torch.Tensor:
    weight = trial.model.weight
    assert isinstance(weight, torch.Tensor)
    return weight


def run_folder() -> pathlib.Path:
    (folder,) = pathlib.Path(os.environ["DET_RUNS_DIR"]).iterdir()
    return folder


def rows(group: str) -> list[tuple[int, dict[str, Any]]]:
    found = [json.loads(line) for line in (run_folder() / "metrics.jsonl").read_text().splitlines()]
    return [(row["steps_completed"], row["metrics"]) for row in found if row["group"] == group]


class Recorder(pytorch.PyTorchCallback):
    def __init__(self, events: list[str]) -> None:
        self.events = events

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: Any) -> None:
        self.events.append(f"trial_startup {first_batch_idx} {checkpoint_uuid}")

    def on_trial_shutdown(self) -> None:
        self.events.append("trial_shutdown")

    def on_training_start(self) -> None:
        self.events.append("training_start")

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        self.events.append(f"epoch_start {epoch_idx}")

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        self.events.append(f"epoch_end {epoch_idx}")

    def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
        self.events.append(f"workload_end {avg_metrics['batches']} {len(batch_metrics)}")

    def on_validation_start(self) -> None:
        self.events.append("validation_start")

    def on_validation_epoch_start(self) -> None:
        self.events.append("validation_epoch_start")

    def on_validation_epoch_end(self, outputs: Any) -> None:
        self.events.append(f"validation_epoch_end {len(outputs)}")

    def on_validation_end(self, metrics: Any) -> None:
        self.events.append("validation_end")

    def on_checkpoint_load_start(self, checkpoint: Any) -> None:
        self.events.append(f"load_start {checkpoint is not None}")

    def on_checkpoint_save_start(self, checkpoint: Any) -> None:
        self.events.append("save_start")

    def on_checkpoint_write_end(self, checkpoint_dir: pathlib.Path) -> None:
        assert (checkpoint_dir / "state_dict.pth").exists()
        self.events.append("write_end")

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.events.append("upload_end")


class Recorded(OneVariable):
    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"recorder": Recorder(self.events)}


def test_callbacks_come_in_the_documented_order(context: pytorch.TrainingContext) -> None:
    trial = Recorded(context)
    fit(
        trial,
        context,
        max_length=pytorch.Batch(10),
        checkpoint_period=pytorch.Batch(4),
        validation_period=pytorch.Epoch(1),
        reporting_period=pytorch.Batch([3, 7]),
        checkpoint_policy="all",
    )
    validation = ["validation_start", "validation_epoch_start", "validation_epoch_end 2", "validation_end"]
    checkpoint = ["save_start", "write_end", "upload_end"]
    assert trial.events == [
        "trial_startup 0 None",
        "load_start False",
        "training_start",
        "epoch_start 0",
        *[f"batch {i} of epoch 0" for i in range(3)],
        "workload_end 3 3",
        "batch 3 of epoch 0",
        "workload_end 4 1",
        *checkpoint,
        *[f"batch {i} of epoch 0" for i in range(4, 7)],
        "workload_end 7 3",
        "batch 7 of epoch 0",
        "epoch_end 0",
        "workload_end 8 1",
        *validation,
        *checkpoint,
        "epoch_start 1",
        *[f"batch {i} of epoch 1" for i in range(8, 10)],
        "workload_end 10 2",
        *validation,
        *checkpoint,
        "trial_shutdown",
    ]


def test_training_metrics_are_reported_at_every_boundary(context: pytorch.TrainingContext) -> None:
    fit(OneVariable(context), context, max_length=pytorch.Batch(5), reporting_period=pytorch.Batch(2))
    context.close()
    training = rows("training")
    assert [steps for steps, _ in training] == [2, 4, 5]
    assert training[0][1]["batches"] == 2
    assert rows("validation")[0][0] == 5


def test_fit_returns_the_last_validation_metrics(context: pytorch.TrainingContext) -> None:
    assert fit(OneVariable(context), context, max_length=pytorch.Epoch(5))["loss"] < 0.01


def test_a_local_run_is_seeded() -> None:
    def weights() -> Any:
        with pytorch.init(hparams={}) as context:
            context.get_trial_seed()
            trial = OneVariable(context)
            fit(trial, context)
            return next(trial.model.parameters()).detach().clone(), torch.rand(1), np.random.rand()

    assert weights() == weights()


def test_without_with_everything_works_as_well() -> None:
    context = pytorch.init(hparams={"lr": 1})
    trial = context.build_trial(OneVariable)
    metrics = context.train(trial, max_length=det.Epochs(2), min_validation_period=det.Epochs(1))
    assert set(metrics) >= {"loss"}
    assert context.training.hparams["lr"] == 1
    context.close()


def test_loaders_may_be_passed_instead_of_defined(context: pytorch.TrainingContext) -> None:
    class WithoutLoaders(pytorch.PyTorchTrial):
        __init__ = OneVariable.__init__
        train_batch = OneVariable.train_batch
        evaluate_batch = OneVariable.evaluate_batch

    trial = context.build_trial(WithoutLoaders)
    with pytest.raises(errors.InvalidExperimentException, match=r"no training data.*pass loaders"):
        context.fit(trial, max_length=det.Batches(2))
    context.fit(trial, pytorch.DataLoader(Ones(), 4), pytorch.DataLoader(Ones(), 4), max_length=det.Batches(2))
    assert trial.events[-1] == "batch 1 of epoch 0"


def test_resuming_stops_exactly_at_max_length() -> None:
    with pytorch.init(hparams={}) as context:
        fit(OneVariable(context), context, max_length=pytorch.Batch(10))
    with pytorch.init(hparams={}) as context:
        trial = OneVariable(context)
        fit(trial, context, max_length=pytorch.Batch(25), latest_checkpoint="latest")
    assert trial.events[0] == "batch 10 of epoch 1"
    assert len(trial.events) == 15


def test_resuming_a_finished_run_trains_and_validates_nothing() -> None:
    with pytorch.init(hparams={}) as context:
        fit(OneVariable(context), context)
    with pytorch.init(hparams={}) as context:
        trial = Recorded(context)
        fit(trial, context, latest_checkpoint="latest")
    assert [event.split()[0] for event in trial.events] == [
        "trial_startup",
        "load_start",
        "training_start",
        "trial_shutdown",
    ]


def test_a_stop_asked_for_in_init_trains_one_stretch(context: pytorch.TrainingContext) -> None:
    trial = OneVariable(context)
    context.set_stop_requested(True)
    fit(trial, context, max_length=pytorch.Batch(50), reporting_period=pytorch.Batch(5))
    assert len(trial.events) == 5
    with pytest.raises(AssertionError):
        context.set_stop_requested("yes")  # type: ignore[arg-type]


def test_sigterm_checkpoints_at_the_next_batch_and_returns(context: pytorch.TrainingContext) -> None:
    class Terminated(OneVariable):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().train_batch(batch, epoch_idx, batch_idx)

    trial = Terminated(context)
    fit(trial, context, max_length=pytorch.Batch(50))
    assert len(trial.events) <= 7
    (metadata,) = run_folder().glob("checkpoints/*/metadata.json")
    assert json.loads(metadata.read_text())["steps_completed"] == len(trial.events)


def test_a_users_exception_comes_through_and_shutdown_still_runs(context: pytorch.TrainingContext) -> None:
    class Broken(Recorded):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            raise ZeroDivisionError("mine")

    trial = Broken(context)
    with pytest.raises(ZeroDivisionError, match="mine"):
        fit(trial, context)
    assert trial.events[-1] == "trial_shutdown"
    assert not list(run_folder().glob("checkpoints/*/metadata.json"))


@pytest.mark.parametrize("length", [10, 5.5, "3"])
def test_lengths_must_be_units(context: pytorch.TrainingContext, length: Any) -> None:
    with pytest.raises(TypeError, match="max_length"):
        fit(OneVariable(context), context, max_length=length)


def test_a_missing_length_is_an_error(context: pytorch.TrainingContext) -> None:
    with pytest.raises(ValueError, match="max_length is missing"):
        fit(OneVariable(context), context, max_length=None)


def test_test_mode_does_one_batch_of_each(context: pytorch.TrainingContext) -> None:
    trial = Recorded(context)
    fit(trial, context, test_mode=True, max_length=None)
    assert [e for e in trial.events if e.startswith(("batch", "validation_epoch_end"))] == [
        "batch 0 of epoch 0",
        "validation_epoch_end 1",
    ]
    assert list(run_folder().glob("checkpoints/*/metadata.json"))


def test_step_zero_validation_comes_first(context: pytorch.TrainingContext) -> None:
    trial = Recorded(context)
    fit(trial, context, step_zero_validation=True)
    assert trial.events.index("validation_end") < trial.events.index("batch 0 of epoch 0")


def test_nothing_wrapped_is_said_so(context: pytorch.TrainingContext) -> None:
    class NoModel(OneVariable):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            self.context = context

    with pytest.raises(errors.InvalidExperimentException, match=r"wrapped no model.*wrap_model"):
        fit(NoModel(context), context)

    class NoOptimizer(OneVariable):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            context.wrap_model(nn.Linear(1, 1))

    with pytest.raises(errors.InvalidExperimentException, match=r"wrapped no optimizer.*wrap_optimizer"):
        fit(NoOptimizer(context), context)


def test_validation_has_exactly_one_form(context: pytorch.TrainingContext) -> None:
    class Both(OneVariable):
        def evaluate_full_dataset(self, data_loader: Any) -> Any:
            return {}

    class Neither(pytorch.PyTorchTrial):
        __init__ = OneVariable.__init__
        train_batch = OneVariable.train_batch

    with pytest.raises(errors.InvalidExperimentException, match="it defines both"):
        fit(Both(context), context)
    with pytest.raises(errors.InvalidExperimentException, match="it defines neither"):
        fit(Neither(context), context)


def test_unwrapped_models_and_optimizers_are_warned_of(
    context: pytorch.TrainingContext, caplog: pytest.LogCaptureFixture
) -> None:
    trial = OneVariable(context)
    trial.forgotten = nn.Linear(2, 2)  # type: ignore[attr-defined]
    trial.loss_function = nn.MSELoss()  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING):
        fit(trial, context)
    assert "self.forgotten is a model that was not wrapped" in caplog.text
    assert "loss_function" not in caplog.text


def test_a_plain_torch_loader_needs_the_check_disabled(context: pytorch.TrainingContext) -> None:
    class Plain(OneVariable):
        def build_training_data_loader(self) -> Any:
            return torch.utils.data.DataLoader(Ones(24), batch_size=8)

    with pytest.raises(RuntimeError, match="you can disable this check by calling"):
        fit(Plain(context), context)
    context.models.clear()
    context.optimizers.clear()
    trial = Plain(context)
    context.experimental.disable_dataset_reproducibility_checks()
    fit(trial, context, max_length=pytorch.Batch(10))
    assert trial.events[-1] == "batch 9 of epoch 3"


def test_evaluate_full_dataset_gets_a_torch_loader(context: pytorch.TrainingContext) -> None:
    class Whole(pytorch.PyTorchTrial):
        __init__ = OneVariable.__init__
        train_batch = OneVariable.train_batch
        build_training_data_loader = OneVariable.build_training_data_loader
        build_validation_data_loader = OneVariable.build_validation_data_loader

        def evaluate_full_dataset(self, data_loader: Any) -> Any:
            assert isinstance(data_loader, torch.utils.data.DataLoader)
            return {"batches_seen": sum(1 for _ in data_loader)}

    assert fit(Whole(context), context)["batches_seen"] == 2


def test_metrics_must_be_the_same_for_every_validation_batch(context: pytorch.TrainingContext) -> None:
    class Changing(OneVariable):
        def evaluate_batch(self, batch: Any, batch_idx: int = 0) -> Any:
            return {f"m{batch_idx}": 1}

    with pytest.raises(ValueError, match="same metrics for every batch"):
        fit(Changing(context), context)


def test_an_empty_validation_set_is_an_error(context: pytorch.TrainingContext) -> None:
    class Empty(OneVariable):
        def build_validation_data_loader(self) -> Any:
            return pytorch.DataLoader(Ones(3), batch_size=8, drop_last=True)

    with pytest.raises(RuntimeError, match="no batch"):
        fit(Empty(context), context)


def test_unknown_hyperparameters_list_the_known_ones() -> None:
    with pytorch.init(hparams={"learning_rate": 1}) as context:
        with pytest.raises(ValueError, match="did you mean 'learning_rate'"):
            context.get_hparam("learning_rat")
        with pytest.raises(KeyError, match="learning_rate"):
            context.hparams["lr"]


def test_batch_sizes_come_from_the_hyperparameter() -> None:
    with pytorch.init(hparams={"global_batch_size": 7}) as context:
        assert (context.get_per_slot_batch_size(), context.get_global_batch_size()) == (7, 7)
    with pytorch.init(hparams={"global_batch_size": "7"}) as context:
        with pytest.raises(errors.InvalidExperimentException, match="whole number"):
            context.get_per_slot_batch_size()
    with pytorch.init(hparams={}) as context:
        with pytest.raises(ValueError, match="global_batch_size"):
            context.get_global_batch_size()


def test_questions_about_the_current_batch_need_a_started_training(context: pytorch.TrainingContext) -> None:
    with pytest.raises(errors.InternalException):
        context.current_train_batch()
    seen = []

    class Asking(OneVariable):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            c = self.context
            seen.append((c.current_train_epoch(), c.current_train_batch(), c.is_epoch_start(), c.is_epoch_end()))
            return super().train_batch(batch, epoch_idx, batch_idx)

    fit(Asking(context), context, max_length=pytorch.Batch(9))
    assert seen[0] == (0, 0, True, False)
    assert seen[7] == (0, 7, False, True)
    assert seen[8] == (1, 8, True, False)
    assert context.current_train_batch() == 8


def test_accumulated_gradients_equal_one_large_batch() -> None:
    def final(aggregation: int, batch_size: int, batches: int) -> float:
        class Sized(OneVariable):
            def build_training_data_loader(self) -> Any:
                data = torch.arange(64, dtype=torch.float32).reshape(-1, 1) / 64
                return pytorch.DataLoader(torch.utils.data.TensorDataset(data, 2 * data), batch_size=batch_size)

        with pytorch.init(hparams={}, aggregation_frequency=aggregation) as context:
            trial = Sized(context)
            fit(trial, context, max_length=pytorch.Batch(batches))
            return next(trial.model.parameters()).item()

    assert final(4, 4, 16) == pytest.approx(final(1, 16, 4), rel=1e-6)


def test_the_oldest_api_trains_with_the_same_loop() -> None:
    class Oldest(pytorch.PyTorchTrial):
        def __init__(self, context: det.TrialContext) -> None:
            self.context = context

        build_training_data_loader = OneVariable.build_training_data_loader
        build_validation_data_loader = OneVariable.build_validation_data_loader

        def build_model(self) -> nn.Module:
            return nn.Linear(1, 1, bias=False)

        def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=0.1)

        def create_lr_scheduler(self, optimizer: torch.optim.Optimizer) -> pytorch.LRScheduler:
            decay = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            return pytorch.LRScheduler(decay, pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH)

        def train_batch(self, batch: Any, model: nn.Module, epoch_idx: int, batch_idx: int) -> Any:
            data, labels = batch
            return {"loss": nn.functional.mse_loss(model(data), labels), "twice": 2.0}

        def evaluate_batch(self, batch: Any, model: nn.Module) -> Any:
            return {"error": (model(batch[0]) - batch[1]).abs().mean()}

    with pytorch.init(hparams={"clip_grad_l2_norm": 1.0}) as context:
        metrics = fit(Oldest(context), context, max_length=pytorch.Epoch(3))
        assert context.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.1 / 8)
    assert metrics["error"] < 0.5


def test_checkpoints_have_the_documented_layout_and_load_without_running_code(context: pytorch.TrainingContext) -> None:
    fit(OneVariable(context), context)
    (folder,) = (path.parent for path in run_folder().glob("checkpoints/*/metadata.json"))
    state = torch.load(folder / "state_dict.pth", weights_only=True)
    assert {"models_state_dict", "optimizers_state_dict", "lr_schedulers_state_dict", "callbacks", "rng_state"} <= set(
        state
    )
    load_data = json.loads((folder / "load_data.json").read_text())
    assert load_data["trial_type"] == "PyTorchTrial"
    assert load_data["trial_cls_spec"].endswith(":OneVariable")
    trial = pytorch.load_trial_from_checkpoint_path(str(folder), trial_class=OneVariable)
    assert torch.equal(_weight(trial), state["models_state_dict"][0]["weight"])


def test_a_checkpoint_of_another_shape_is_refused_in_one_sentence() -> None:
    with pytorch.init(hparams={}) as context:
        fit(OneVariable(context), context)

    class Wider(OneVariable):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            context.models[0] = nn.Linear(2, 2)

    with pytorch.init(hparams={}) as context, pytest.raises(RuntimeError, match="does not fit model 0"):
        fit(Wider(context), context, latest_checkpoint="latest")


def test_predictions_come_in_the_datasets_order(context: pytorch.TrainingContext) -> None:
    trial = context.build_trial(OneVariable)
    data = torch.arange(10, dtype=torch.float32).reshape(-1, 1)
    dataset = torch.utils.data.TensorDataset(data, data)
    found = context.predict(trial, pytorch.DataLoader(dataset, batch_size=3))
    assert torch.allclose(found, data * _weight(trial).item())


def test_a_trial_is_loaded_from_the_best_checkpoint() -> None:
    with pytorch.init(hparams={"kept": 5}) as context:
        trial = context.build_trial(OneVariable)
        context.fit(trial, max_length=det.Batches(6))
        weight = _weight(trial).item()
    with pytorch.init() as context:
        loaded = context.load_checkpoint_trial(OneVariable)
        assert _weight(loaded).item() == weight
        assert loaded.context.hparams["kept"] == 5


def test_nan_is_reported_as_data_and_can_stop_training(context: pytorch.TrainingContext) -> None:
    class Diverging(OneVariable):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            super().train_batch(batch, epoch_idx, batch_idx)
            return {"loss": float("nan")}

        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"stop": pytorch.StopOnNaN(self.context)}

    trial = Diverging(context)
    fit(trial, context, max_length=pytorch.Batch(50), reporting_period=pytorch.Batch(5))
    assert len(trial.events) == 5
