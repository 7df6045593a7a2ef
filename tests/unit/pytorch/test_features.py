"""What a trial may use besides the plain loop: precision, scalers, several models, batches, profiling, TensorBoard."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as torch_schedulers

from determined import errors, pytorch


class Pairs(torch.utils.data.Dataset[Any]):
    """Made-up records in whatever form ``shape`` gives them."""

    def __init__(self, shape: Callable[[np.ndarray[Any, Any], int], Any]) -> None:
        self.shape = shape
        self.data = np.random.RandomState(0).randn(24, 4).astype(np.float32)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.shape(self.data[index], index % 2)


class Classifier(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.prepare()
        self.model = context.wrap_model(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9))
        self.lrs: list[float] = []

    def prepare(self) -> None:
        """For subclasses: what comes before wrapping."""

    def shape(self, data: np.ndarray[Any, Any], label: int) -> Any:
        return data, label

    def unpack(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return batch[0], batch[1]

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(Pairs(self.shape), batch_size=4, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(Pairs(self.shape), batch_size=4)

    def loss(self, batch: Any) -> torch.Tensor:
        data, labels = self.unpack(batch)
        return nn.functional.cross_entropy(self.model(data), labels)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.lrs.append(self.optimizer.param_groups[0]["lr"])
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Any) -> Any:
        return {"loss": self.loss(batch)}


@pytest.fixture
def context() -> Iterator[pytorch.TrainingContext]:
    with pytorch.init(hparams={}) as context:
        yield context


def fit(trial: pytorch.PyTorchTrial, context: pytorch.PyTorchTrialContext, batches: int = 8, **arguments: Any) -> Any:
    return pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(batches), **arguments)


def test_bfloat16_casts_forward_and_hands_out_float32(context: pytorch.TrainingContext) -> None:
    seen = []

    class Half(Classifier):
        def prepare(self) -> None:
            self.context.experimental.use_amp()

        def loss(self, batch: Any) -> torch.Tensor:
            inner = self.model[0]  # type: ignore[index]
            inner.register_forward_hook(lambda *args: seen.append(args[2].dtype))
            scores = self.model(batch[0])
            assert scores.dtype == torch.float32
            return nn.functional.cross_entropy(scores, batch[1])

    assert fit(Half(context), context)["loss"] < 1
    assert set(seen) == {torch.bfloat16}
    assert context.precision.scaler is None


def test_float16_scales_unscales_clips_and_updates_by_itself(context: pytorch.TrainingContext) -> None:
    norms = []

    class Scaled(Classifier):
        def prepare(self) -> None:
            self.context.experimental.use_amp(dtype=torch.float16)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.context.backward(loss)
            self.context.step_optimizer(
                self.optimizer,
                clip_grads=lambda parameters: norms.append(float(nn.utils.clip_grad_norm_(parameters, 1.0))),
            )
            return loss

    fit(Scaled(context), context)
    scaler = context.precision.scaler
    assert scaler is not None and scaler.state_dict()["_growth_tracker"] == 8
    assert max(norms) < 100  # unscaled: the scale alone is 65536


def test_a_scaler_of_the_users_own_is_saved_and_left_to_them(context: pytorch.TrainingContext) -> None:
    class Manual(Classifier):
        def prepare(self) -> None:
            self.scaler = self.context.wrap_scaler(torch.amp.GradScaler("cpu", growth_interval=3))

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.context.backward(self.scaler.scale(loss))
            self.context.step_optimizer(self.optimizer, scaler=self.scaler)
            self.scaler.update()
            return loss

    trial = Manual(context)
    fit(trial, context)
    scale = trial.scaler.get_scale()
    assert scale == 65536.0 * 4
    with pytest.raises(errors.InvalidExperimentException, match="once"):
        context.wrap_scaler(torch.amp.GradScaler("cpu"))
    context.close()
    with pytorch.init(hparams={}) as again:
        resumed = Manual(again)
        fit(resumed, again, latest_checkpoint="latest")
        assert resumed.scaler.get_scale() == scale


def test_a_scaler_after_a_model_is_refused(context: pytorch.TrainingContext) -> None:
    Classifier(context)
    with pytest.raises(errors.InvalidExperimentException, match="before the first wrap_model"):
        context.wrap_scaler(torch.amp.GradScaler("cpu"))


def test_apex_calls_become_torchs_own_mixed_precision(context: pytorch.TrainingContext) -> None:
    trial = Classifier(context)
    untouched = context.configure_apex_amp(trial.model, trial.optimizer, enabled=False)
    assert untouched == (trial.model, trial.optimizer)
    with pytest.warns(FutureWarning, match="use_amp"):
        models, optimizers = context.configure_apex_amp([trial.model], [trial.optimizer])
    assert (models, optimizers) == ([trial.model], [trial.optimizer])
    assert context.precision.dtype is torch.bfloat16
    fit(trial, context)


def test_several_models_and_optimizers_train_and_resume_together() -> None:
    class Two(pytorch.PyTorchTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            self.context = context
            self.encoder = context.wrap_model(nn.Linear(4, 8))
            self.head = context.wrap_model(nn.Linear(8, 2))
            self.slow = context.wrap_optimizer(torch.optim.Adam(self.encoder.parameters(), lr=0.01))
            self.fast = context.wrap_optimizer(torch.optim.SGD(self.head.parameters(), lr=0.1))

        build_training_data_loader = Classifier.build_training_data_loader
        build_validation_data_loader = Classifier.build_validation_data_loader
        shape = Classifier.shape

        def loss(self, batch: Any) -> torch.Tensor:
            return nn.functional.cross_entropy(self.head(self.encoder(batch[0])), batch[1])

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.context.backward(loss)
            self.context.step_optimizer(self.slow)
            self.context.step_optimizer(self.fast)
            return loss

        def evaluate_batch(self, batch: Any) -> Any:
            return {"loss": self.loss(batch)}

    def weights(*lengths: int) -> list[torch.Tensor]:
        for n, length in enumerate(lengths):
            with pytorch.init(hparams={}, name=f"two{len(lengths)}") as context:
                trial = Two(context)
                fit(trial, context, length, latest_checkpoint="latest" if n else None)
        return [p.detach().clone() for model in (trial.encoder, trial.head) for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(weights(12), weights(5, 12)))


@pytest.mark.parametrize(
    ("shape", "unpack"),
    [
        (lambda data, label: {"x": data, "y": label}, lambda batch: (batch["x"], batch["y"])),
        (lambda data, label: (data, {"deep": [label]}), lambda batch: (batch[0], batch[1]["deep"][0])),
    ],
    ids=["dict", "nested"],
)
def test_batches_may_have_any_shape(
    shape: Callable[..., Any], unpack: Callable[..., Any], context: pytorch.TrainingContext
) -> None:
    class Shaped(Classifier):
        def shape(self, data: Any, label: int) -> Any:
            return shape(data, label)

        def unpack(self, batch: Any) -> Any:
            return unpack(batch)

    assert "loss" in fit(Shaped(context), context)


def test_numpy_batches_become_tensors(context: pytorch.TrainingContext) -> None:
    class Numpy(Classifier):
        def build_training_data_loader(self) -> Any:
            self.context.experimental.disable_dataset_reproducibility_checks()
            return [(np.ones((4, 4), dtype=np.float32), np.array([0, 1, 0, 1]))] * 3

    fit(Numpy(context), context)


def test_an_iterable_without_length_trains_by_batches(context: pytorch.TrainingContext) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for i in range(10):
                yield torch.full((4,), float(i)), i % 2

    class Streaming(Classifier):
        def build_training_data_loader(self) -> Any:
            self.context.experimental.disable_dataset_reproducibility_checks()
            return torch.utils.data.DataLoader(Stream(), batch_size=4)

    trial = Streaming(context)
    fit(trial, context, 7)
    assert len(trial.lrs) == 7
    with pytest.raises(errors.InvalidExperimentException, match="no length"):
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Epoch(2))


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: torch_schedulers.StepLR(o, 3),
    "multistep": lambda o: torch_schedulers.MultiStepLR(o, [2, 5, 9]),
    "exponential": lambda o: torch_schedulers.ExponentialLR(o, 0.9),
    "cosine": lambda o: torch_schedulers.CosineAnnealingLR(o, 10),
    "warm restarts": lambda o: torch_schedulers.CosineAnnealingWarmRestarts(o, 4),
    "one cycle": lambda o: torch_schedulers.OneCycleLR(o, max_lr=0.5, total_steps=30),
    "cyclic": lambda o: torch_schedulers.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "lambda": lambda o: torch_schedulers.LambdaLR(o, lambda step: 0.9**step),
    "warm-up then decay": lambda o: torch_schedulers.SequentialLR(
        o, [torch_schedulers.LinearLR(o, 0.1, total_iters=4), torch_schedulers.ExponentialLR(o, 0.8)], [4]
    ),
    "chained": lambda o: torch_schedulers.ChainedScheduler(
        [torch_schedulers.ConstantLR(o, 0.5, 3), torch_schedulers.ExponentialLR(o, 0.9)]
    ),
    "polynomial": lambda o: torch_schedulers.PolynomialLR(o, 12),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_goes_on_where_it_was(name: str) -> None:
    class Scheduled(Classifier):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            context.wrap_lr_scheduler(SCHEDULERS[name](self.optimizer), pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH)

    def rates(*lengths: int) -> list[float]:
        seen: list[float] = []
        for n, length in enumerate(lengths):
            with pytorch.init(hparams={}, name=f"lr{len(lengths)}") as context:
                trial = Scheduled(context)
                fit(trial, context, length, latest_checkpoint="latest" if n else None)
                seen += trial.lrs
        return seen

    assert rates(7, 16) == rates(16)


def test_a_scheduler_needs_its_optimizer_wrapped_first(context: pytorch.TrainingContext) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1)
    with pytest.raises(errors.InvalidExperimentException, match="wrap the optimizer before"):
        context.wrap_lr_scheduler(torch_schedulers.StepLR(optimizer, 1), pytorch.LRScheduler.StepMode.MANUAL_STEP)


def test_torchs_profiler_leaves_its_trace_with_the_run(context: pytorch.TrainingContext) -> None:
    context.set_profiler(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
    )
    fit(Classifier(context), context)
    assert list(context.get_tensorboard_path().glob("*.pt.trace.json*"))


def test_tensorboard_holds_what_was_reported_and_what_the_user_wrote(context: pytorch.TrainingContext) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Writing(Classifier):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.get_tensorboard_writer().add_scalar("mine", 3.0, batch_idx)
            return super().train_batch(batch, epoch_idx, batch_idx)

    fit(Writing(context), context)
    path: pathlib.Path = context.get_tensorboard_path()
    context.close()
    tags = set()
    for file in path.iterdir():
        tags |= set(EventAccumulator(str(file)).Reload().Tags()["scalars"])
    assert {"Determined/loss", "Determined/val_loss", "mine"} <= tags


def test_a_step_cannot_leave_gradients_to_an_aggregation_window() -> None:
    class Keeping(Classifier):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.backward(self.loss(batch))
            self.context.step_optimizer(self.optimizer, auto_zero_grads=False)
            return {}

    with pytorch.init(hparams={}, aggregation_frequency=2) as context:
        with pytest.raises(errors.InvalidExperimentException, match="auto_zero_grads"):
            fit(Keeping(context), context)
