"""The examples of the API reference, in the order of the page; `docs/reference/generate_api.py` makes the page of them.

A cell (`# %% names`) is the example of the public names in its header. A comment after `print(...)`, or on the lines
below it, is what it prints; `tests/docs/test_api.py` runs every cell, on its own, after the cell called "setting".
"""

# ruff: noqa: E402

# %% [markdown]
# # The Python API
#
# <!-- Made by `python docs/reference/generate_api.py` from the docstrings and api_examples.py; do not edit. -->
#
# Every public name with its signature, what it promises, and an example. The tests run the examples; a comment
# after `print` is what is printed.
#
# [The package](#the-package) · [Starting](#starting) · [Trainer](#trainer) · [PyTorchTrial](#pytorchtrial) ·
# [The trial's context](#the-trials-context) · [Callbacks](#callbacks) · [Data](#data) · [Metrics](#metrics) ·
# [Learning rates](#learning-rates) · [Checkpoints outside training](#checkpoints-outside-training) ·
# [The oldest API](#the-oldest-api) · [Core: starting](#core-starting) · [Core: metrics](#core-metrics) ·
# [Core: checkpoints](#core-checkpoints) · [Core: ranks](#core-ranks) · [Core: stopping](#core-stopping) ·
# [Core: the search](#core-the-search) · [Core: the rest](#core-the-rest) · [On a cluster](#on-a-cluster) ·
# [Errors](#errors) · [Commands](#commands)
#
# Each example begins where this ends:

# %% setting
import pathlib

import torch
from torch import nn

import determined as det
from determined import core, errors, pytorch

points = torch.linspace(-1, 1, 64).unsqueeze(1)
line = torch.utils.data.TensorDataset(points, 3 * points + 1)


class Line(pytorch.PyTorchTrial):
    """Fits y = 3x + 1."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_training_data_loader(self):
        return pytorch.DataLoader(line, batch_size=8, shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(line, batch_size=8)

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        x, y = batch
        return {"validation_loss": nn.functional.mse_loss(self.model(x), y)}


def train(trial_class, batches=8, **options):
    """Train for some batches (8 are an epoch), and return the trial."""
    with pytorch.init(hparams={"global_batch_size": 8, "learning_rate": 0.1}) as context:
        trial = trial_class(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(batches), **options)
    return trial


# %% [markdown]
# ## The package
#
# `import determined as det` costs a millisecond: what follows is fetched when it is first used.

# %% det.__version__
#: The version of Resolute, as text.
major, minor, patch = det.__version__.split(".")

# %% det.LOG_FORMAT
#: A format for `logging.basicConfig`: level, process, logger, message.
import logging

record = logging.LogRecord("trial", logging.INFO, "train.py", 1, "epoch %d", (3,), None)
print(logging.Formatter(det.LOG_FORMAT).format(record))  # INFO: [...] trial: epoch 3

# %% det.TrainUnit, det.Batch, det.Batches, det.Epoch, det.Epochs, pytorch.TrainUnit, pytorch.Batch, pytorch.Epoch
train(Line, batches=16, validation_period=det.Epochs(1), checkpoint_period=det.Batches(4))
# The plural is the same class. A container is a schedule: validate after batches 1, 2 and 5.
train(Line, batches=6, validation_period=pytorch.Batch([1, 2, 5]))
print(det.Epochs(3) == pytorch.Epoch(3))  # True

# %% det.Record, det.Records
# Records become batches once the global batch size is known: 64 records are 8 batches of 8.
train(Line, checkpoint_period=det.Records(64))
print(det.Records(64).to_batches(global_batch_size=8))  # Batch(8)

# %% det.TrainUnit.should_stop
print([step for step in range(10) if det.Batches(3).should_stop(step)])  # [3, 6, 9]

# %% det.import_from_path
folder = pathlib.Path("other_code")
folder.mkdir()
(folder / "settings.py").write_text("width = 128")
with det.import_from_path(folder):
    import settings
print(settings.width)  # 128

# %% det.InvalidHP, errors.InvalidHP


class TooDeep(Line):
    def __init__(self, context):
        raise det.InvalidHP("37 layers do not fit on this device")


# The run ends by itself, with exit code 0: the script has nothing to add.
try:
    train(TooDeep)
except SystemExit as ended:
    print(ended.code)  # 0

# %% det.TrialContext
#: The oldest name of `pytorch.PyTorchTrialContext`, for annotations.
print(det.TrialContext is pytorch.PyTorchTrialContext)  # True

# %% det.ExperimentConfig
config = det.ExperimentConfig.model_validate(
    {"name": "lines", "entrypoint": "python3 train.py", "searcher": {"name": "single", "metric": "validation_loss"}}
)
print(config.name)  # lines

# %% [markdown]
# ## Starting

# %% pytorch.init
with pytorch.init(hparams={"learning_rate": 0.1}, name="lines") as context:
    trial = Line(context)
    metrics = pytorch.Trainer(trial, context).fit(max_length=pytorch.Epoch(4))
print(metrics["validation_loss"] < 0.1)  # True

# %% pytorch.TrainingContext, .close
# Without `with` it is closed when the process ends, or by close().
context = pytorch.init()
trial = context.build_trial(Line)
context.fit(trial, max_length=det.Batches(8))
context.close()

# %% pytorch.TrainingContext.build_trial


class Sized(Line):
    def __init__(self, context, batch_size):
        super().__init__(context)
        self.batch_size = batch_size


with pytorch.init() as context:
    trial = context.build_trial(Sized, batch_size=16)
print(trial.batch_size)  # 16

# %% pytorch.TrainingContext.train, .fit
with pytorch.init() as context:
    metrics = context.train(
        context.build_trial(Line),
        pytorch.DataLoader(line, batch_size=4, shuffle=True),
        pytorch.DataLoader(line, batch_size=64),
        max_length=det.Epochs(2),
        min_validation_period=det.Epochs(1),
    )
print(metrics["batches"])  # 32

# %% pytorch.TrainingContext.training
with pytorch.init(hparams={"learning_rate": 0.1}) as context:
    print(context.training.hparams["learning_rate"])  # 0.1

# %% pytorch.TrainingContext.config_data
with pytorch.init(exp_conf={"data": {"folder": "/data/lines"}}) as context:
    print(context.config_data["folder"])  # /data/lines

# %% pytorch.TrainingContext.load_checkpoint_trial, .predict
train(Line, batches=80)
with pytorch.init() as context:
    trial = context.load_checkpoint_trial(Line, checkpoint="latest")
    predictions = context.predict(trial, pytorch.DataLoader(line, batch_size=16))
print(predictions.shape)  # torch.Size([64, 1])

# %% [markdown]
# ## Trainer

# %% pytorch.Trainer
with pytorch.init() as context:
    trainer = pytorch.Trainer(Line(context), context)

# %% pytorch.Trainer.fit
with pytorch.init() as context:
    metrics = pytorch.Trainer(Line(context), context).fit(
        max_length=pytorch.Epoch(3),
        validation_period=pytorch.Epoch(1),
        checkpoint_period=pytorch.Batch(10),
        reporting_period=pytorch.Batch(4),
        checkpoint_policy="all",
        latest_checkpoint="latest",  # nothing to go on from yet: it begins at the beginning
    )
print(metrics["epochs"])  # 3

# %% pytorch.Trainer.configure_profiler
with pytorch.init() as context:
    trainer = pytorch.Trainer(Line(context), context)
    trainer.configure_profiler()  # says in the log what to use instead
    trainer.fit(max_length=pytorch.Batch(2), profiling_enabled=True)

# %% [markdown]
# ## PyTorchTrial

# %% pytorch.PyTorchTrial
trial = train(Line, batches=80)
print(f"y = {trial.model.weight.item():.1f}x + {trial.model.bias.item():.1f}")  # y = 3.0x + 1.0

# %% pytorch.PyTorchTrial.train_batch


class Timid(Line):
    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        error = self.model(x) - y
        loss = error.abs().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss, "largest_error": error.abs().max()}


train(Timid)

# %% pytorch.PyTorchTrial.build_training_data_loader, .build_validation_data_loader


class Halves(Line):
    def build_training_data_loader(self):
        half = torch.utils.data.Subset(line, range(32))
        return pytorch.DataLoader(half, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        half = torch.utils.data.Subset(line, range(32, 64))
        return pytorch.DataLoader(half, batch_size=self.context.get_per_slot_batch_size())


train(Halves)

# %% pytorch.PyTorchTrial.evaluate_batch


class Both(Line):
    def evaluate_batch(self, batch, batch_idx):
        x, y = batch
        error = self.model(x) - y
        return {"squared": error.square().mean(), "absolute": error.abs().mean()}


train(Both)

# %% pytorch.PyTorchTrial.evaluate_full_dataset


class Whole(pytorch.PyTorchTrial):
    """As Line, but validates on everything at once: a class has this or evaluate_batch, not both."""

    __init__ = Line.__init__
    train_batch = Line.train_batch
    build_training_data_loader = Line.build_training_data_loader
    build_validation_data_loader = Line.build_validation_data_loader

    def evaluate_full_dataset(self, data_loader):
        errors = torch.cat([self.model(x) - y for x, y in data_loader])
        return {"validation_loss": errors.square().mean(), "median_error": errors.abs().median()}


train(Whole)

# %% pytorch.PyTorchTrial.evaluation_reducer, pytorch.Reducer


class Worst(Line):
    def evaluate_batch(self, batch):
        x, y = batch
        error = (self.model(x) - y).abs()
        return {"mean_error": error.mean(), "worst_error": error.max()}

    def evaluation_reducer(self):
        return {"mean_error": pytorch.Reducer.AVG, "worst_error": pytorch.Reducer.MAX}


train(Worst)

# %% pytorch.PyTorchTrial.build_callbacks


class Counter(pytorch.PyTorchCallback):
    def __init__(self):
        self.validations = 0

    def on_validation_end(self, metrics):
        self.validations += 1


class Counted(Line):
    def build_callbacks(self):
        self.counter = Counter()
        return {"counter": self.counter}


print(train(Counted, batches=12, validation_period=pytorch.Batch(4)).counter.validations)  # 3

# %% pytorch.PyTorchTrial.get_batch_length


class Named(Line):
    def get_batch_length(self, batch):
        return len(batch["pixels"])


with pytorch.init() as context:
    print(Named(context).get_batch_length({"name": "a", "pixels": torch.zeros(5, 3)}))  # 5

# %% [markdown]
# ## The trial's context

# %% pytorch.PyTorchTrialContext


class Curious(Line):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.place = (context.distributed.rank, context.device.type)
        self.wrapped = (len(context.models), len(context.optimizers), len(context.lr_schedulers))


trial = train(Curious)
print(trial.wrapped)  # (1, 1, 0)

# %% pytorch.PyTorchTrialContext.wrap_model


class TwoModels(Line):
    def __init__(self, context):
        self.context = context
        self.encoder = context.wrap_model(nn.Linear(1, 4))
        # A function of the model, or "fsdp" to shard it; a single rank trains it as it is.
        self.decoder = context.wrap_model(nn.Linear(4, 1), strategy="fsdp")
        self.model = nn.Sequential(self.encoder, self.decoder)
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters()))


train(TwoModels)

# %% pytorch.PyTorchTrialContext.wrap_optimizer


class TwoOptimizers(Line):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(nn.Linear(1, 1))
        self.slow = context.wrap_optimizer(torch.optim.SGD([self.model.weight], lr=0.01))
        self.fast = context.wrap_optimizer(torch.optim.SGD([self.model.bias], lr=0.1))

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.slow)
        self.context.step_optimizer(self.fast)
        return loss


train(TwoOptimizers)

# %% pytorch.PyTorchTrialContext.wrap_lr_scheduler


class Decaying(Line):
    def __init__(self, context):
        super().__init__(context)
        self.schedule = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.5),
            step_mode=pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )


print(train(Decaying, batches=16).schedule.get_last_lr())  # [0.025]

# %% pytorch.PyTorchTrialContext.backward, .step_optimizer


class Clipped(Line):
    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0)
        )
        return {"loss": loss}


train(Clipped)

# %% pytorch.PyTorchExperimentalContext, .use_amp


class Half(Line):
    def __init__(self, context):
        context.experimental.use_amp(dtype=torch.bfloat16)  # before wrap_model
        super().__init__(context)


train(Half)

# %% pytorch.PyTorchExperimentalContext.disable_dataset_reproducibility_checks


class PlainLoader(Line):
    def __init__(self, context):
        super().__init__(context)
        context.experimental.disable_dataset_reproducibility_checks()

    def build_training_data_loader(self):
        return torch.utils.data.DataLoader(line, batch_size=8, shuffle=True)


train(PlainLoader)

# %% pytorch.PyTorchExperimentalContext.disable_auto_to_device, pytorch.PyTorchTrialContext.to_device


class Staying(Line):
    def __init__(self, context):
        super().__init__(context)
        context.experimental.disable_auto_to_device()

    def train_batch(self, batch, epoch_idx, batch_idx):
        return super().train_batch(self.context.to_device(batch), epoch_idx, batch_idx)


train(Staying)

# %% pytorch.PyTorchTrialContext.wrap_scaler


class Scaled(Line):
    def __init__(self, context):
        self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu"))  # before wrap_model
        super().__init__(context)

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(self.model(x).float(), y)
        self.context.backward(self.scaler.scale(loss))
        self.context.step_optimizer(self.optimizer, scaler=self.scaler)
        self.scaler.update()
        return {"loss": loss}


train(Scaled)

# %% pytorch.PyTorchTrialContext.configure_apex_amp


class Apex(Line):
    """Written when mixed precision meant apex: torch's own does what level O1 did."""

    def __init__(self, context):
        super().__init__(context)
        self.model, self.optimizer = context.configure_apex_amp(self.model, self.optimizer, opt_level="O1")


train(Apex)

# %% pytorch.PyTorchTrialContext.wrap_reducer


class Medians(Line):
    def __init__(self, context):
        super().__init__(context)
        self.medians = context.wrap_reducer(
            lambda losses: sorted(losses)[len(losses) // 2], name="median_loss", for_training=False
        )

    def evaluate_batch(self, batch):
        metrics = super().evaluate_batch(batch)
        self.medians.update(metrics["validation_loss"].item())
        return metrics


train(Medians)

# %% pytorch.PyTorchTrialContext.reset_reducers, .reduce_metrics
with pytorch.init() as context:
    total = context.wrap_reducer(sum, name="total")
    total.update(3)
    total.update(4)
    print(context.reduce_metrics(for_training=True))  # {'total': 7}
    context.reset_reducers()
    print(context.reduce_metrics(for_training=True))  # {'total': 0}

# %% pytorch.PyTorchTrialContext.hparams, .get_hparams, .get_hparam
with pytorch.init(hparams={"learning_rate": 0.1}) as context:
    print(context.hparams["learning_rate"], context.get_hparams())  # 0.1 {'learning_rate': 0.1}
    try:
        context.get_hparam("learning_rat")
    except ValueError as error:
        print(error)
        # there is no hyperparameter 'learning_rat'; did you mean 'learning_rate'? (known: learning_rate). Give it ...

# %% pytorch.PyTorchTrialContext.get_per_slot_batch_size, .get_global_batch_size
with pytorch.init(hparams={"global_batch_size": 64}) as context:
    # With four ranks the first would be 16.
    print(context.get_per_slot_batch_size(), context.get_global_batch_size())  # 64 64

# %% pytorch.PyTorchTrialContext.get_experiment_config, .get_data_config
with pytorch.init(exp_conf={"name": "lines", "data": {"points": 64}}) as context:
    print(context.get_experiment_config()["name"], context.get_data_config())  # lines {'points': 64}

# %% pytorch.PyTorchTrialContext.is_epoch_start, .is_epoch_end


class Edges(Line):
    edges = []

    def train_batch(self, batch, epoch_idx, batch_idx):
        if self.context.is_epoch_start() or self.context.is_epoch_end():
            self.edges.append(batch_idx)
        return super().train_batch(batch, epoch_idx, batch_idx)


print(train(Edges, batches=16).edges)  # [0, 7, 8, 15]

# %% pytorch.PyTorchTrialContext.current_train_epoch, .current_train_batch
trial = train(Line, batches=12)
print(trial.context.current_train_epoch(), trial.context.current_train_batch())  # 1 11

# %% pytorch.PyTorchTrialContext.get_initial_batch
train(Line, batches=5)


class Reader(Line):
    def build_training_data_loader(self):
        self.skipped = self.context.get_initial_batch()
        return super().build_training_data_loader()


print(train(Reader, batches=8, latest_checkpoint="latest").skipped)  # 5

# %% pytorch.PyTorchTrialContext.get_trial_seed
with pytorch.init(exp_conf={"reproducibility": {"experiment_seed": 7}}) as context:
    print(context.get_trial_seed())  # 7

# %% pytorch.PyTorchTrialContext.get_experiment_id, .get_trial_id
with pytorch.init() as context:
    print(context.get_experiment_id(), context.get_trial_id())  # 0 0

# %% pytorch.PyTorchTrialContext.set_stop_requested, .get_stop_requested


class Enough(Line):
    def train_batch(self, batch, epoch_idx, batch_idx):
        metrics = super().train_batch(batch, epoch_idx, batch_idx)
        if metrics["loss"] < 0.5 and not self.context.get_stop_requested():
            self.context.set_stop_requested(True)  # heard at the next boundary
        return metrics


trial = train(Enough, batches=800, reporting_period=pytorch.Batch(10))
print(trial.context.current_train_batch() < 100)  # True

# %% pytorch.PyTorchTrialContext.set_enable_tensorboard_logging, .get_enable_tensorboard_logging
with pytorch.init() as context:
    context.set_enable_tensorboard_logging(False)
    print(context.get_enable_tensorboard_logging())  # False

# %% pytorch.PyTorchTrialContext.get_tensorboard_path, .get_tensorboard_writer
with pytorch.init() as context:
    writer = context.get_tensorboard_writer()  # needs the tensorboard package
    writer.add_histogram("weights", torch.randn(100), global_step=1)
    print(context.get_tensorboard_path().name)  # tensorboard

# %% pytorch.PyTorchTrialContext.set_profiler


class Profiled(Line):
    def __init__(self, context):
        super().__init__(context)
        context.set_profiler(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
        )


trial = train(Profiled)
print(len(list(trial.context.get_tensorboard_path().glob("*.pt.trace.json"))))  # 1

# %% [markdown]
# ## Callbacks
#
# Subclass `pytorch.PyTorchCallback`, override what you need, and return it from `build_callbacks`.

# %% pytorch.PyTorchCallback


class Recorder(pytorch.PyTorchCallback):
    """Notes every hook that is called."""

    calls = []


def note(name):
    return lambda self, *arguments, **named: self.calls.append(name)


for name in dir(pytorch.PyTorchCallback):
    if name.startswith("on_") and name != "on_checkpoint_end":  # the deprecated one
        setattr(Recorder, name, note(name))


class Recorded(Line):
    def build_callbacks(self):
        return {"recorder": Recorder()}


train(Recorded, batches=8)  # one epoch
print("\n".join(Recorder.calls))
# on_trial_startup
# on_checkpoint_load_start
# on_training_start
# on_training_epoch_start
# on_training_epoch_end
# on_training_workload_end
# on_validation_start
# on_validation_epoch_start
# on_validation_epoch_end
# on_validation_end
# on_checkpoint_save_start
# on_checkpoint_write_end
# on_checkpoint_upload_end
# on_trial_shutdown

# %% pytorch.PyTorchCallback.on_trial_startup, .on_trial_shutdown


class Resources(pytorch.PyTorchCallback):
    def on_trial_startup(self, first_batch_idx, checkpoint_uuid):
        self.file = open("notes.txt", "a")
        self.file.write(f"starting at batch {first_batch_idx}\n")

    def on_trial_shutdown(self):
        self.file.close()


class Noting(Line):
    def build_callbacks(self):
        return {"resources": Resources()}


train(Noting)
print(pathlib.Path("notes.txt").read_text().strip())  # starting at batch 0

# %% pytorch.PyTorchCallback.on_training_start, .on_training_epoch_start, .on_training_epoch_end


class Epochs(pytorch.PyTorchCallback):
    def __init__(self):
        self.seen = []

    def on_training_start(self):
        self.seen.append("start")

    def on_training_epoch_start(self, epoch_idx):
        self.seen.append(f"epoch {epoch_idx}")

    def on_training_epoch_end(self, epoch_idx):
        self.seen.append(f"end of {epoch_idx}")


class WithEpochs(Line):
    def build_callbacks(self):
        self.epochs = Epochs()
        return {"epochs": self.epochs}


print(train(WithEpochs, batches=12).epochs.seen)  # ['start', 'epoch 0', 'end of 0', 'epoch 1']

# %% pytorch.PyTorchCallback.on_training_workload_end


class Throughput(pytorch.PyTorchCallback):
    def __init__(self):
        self.stretches = []

    def on_training_workload_end(self, avg_metrics, batch_metrics):
        self.stretches.append(len(batch_metrics))


class Watched(Line):
    def build_callbacks(self):
        self.throughput = Throughput()
        return {"throughput": self.throughput}


print(train(Watched, batches=10, reporting_period=pytorch.Batch(4)).throughput.stretches)  # [4, 4, 2]

# %% pytorch.PyTorchCallback.on_validation_start, .on_validation_end


class Plateau(pytorch.PyTorchCallback):
    """Steps a ReduceLROnPlateau, which needs to know the metric."""

    def __init__(self, scheduler):
        self.scheduler = scheduler

    def on_validation_start(self):
        self.learning_rate_before = self.scheduler.get_last_lr()

    def on_validation_end(self, metrics):
        self.scheduler.step(metrics["validation_loss"])


class Patient(Line):
    def build_callbacks(self):
        return {"plateau": Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer))}


train(Patient, validation_period=pytorch.Batch(2))

# %% pytorch.PyTorchCallback.on_validation_epoch_start, .on_validation_epoch_end


class Spread(pytorch.PyTorchCallback):
    def on_validation_epoch_start(self):
        self.spread = None

    def on_validation_epoch_end(self, outputs):
        losses = [float(output["validation_loss"]) for output in outputs]
        self.spread = max(losses) - min(losses)


class Spreading(Line):
    def build_callbacks(self):
        self.callback = Spread()
        return {"spread": self.callback}


print(train(Spreading).callback.spread > 0)  # True

# %% pytorch.PyTorchCallback.state_dict, .load_state_dict


class EarlyStopping(pytorch.PyTorchCallback):
    def __init__(self, context, patience):
        self.context, self.patience = context, patience
        self.best, self.bad = float("inf"), 0

    def on_validation_end(self, metrics):
        improves = metrics["validation_loss"] < self.best
        self.best, self.bad = (metrics["validation_loss"], 0) if improves else (self.best, self.bad + 1)
        if self.bad >= self.patience:
            self.context.set_stop_requested(True)

    def state_dict(self):
        return {"best": self.best, "bad": self.bad}

    def load_state_dict(self, state_dict):
        self.best, self.bad = state_dict["best"], state_dict["bad"]


class Stopping(Line):
    def build_callbacks(self):
        return {"early stopping": EarlyStopping(self.context, patience=2)}


train(Stopping, batches=16, validation_period=pytorch.Batch(4))

# %% pytorch.PyTorchCallback.on_checkpoint_save_start, .on_checkpoint_load_start


class Classes(pytorch.PyTorchCallback):
    def on_checkpoint_save_start(self, checkpoint):
        checkpoint["classes"] = ["cat", "dog"]

    def on_checkpoint_load_start(self, checkpoint):
        self.found = checkpoint["classes"] if checkpoint else None


class Labelled(Line):
    def build_callbacks(self):
        self.classes = Classes()
        return {"classes": self.classes}


train(Labelled, batches=4)
print(train(Labelled, batches=8, latest_checkpoint="latest").classes.found)  # ['cat', 'dog']

# %% pytorch.PyTorchCallback.on_checkpoint_write_end, .on_checkpoint_upload_end, .on_checkpoint_end


class Card(pytorch.PyTorchCallback):
    def on_checkpoint_write_end(self, checkpoint_dir):
        (checkpoint_dir / "card.txt").write_text("a line")

    def on_checkpoint_upload_end(self, uuid):
        self.latest = uuid


class Carded(Line):
    def build_callbacks(self):
        self.card = Card()
        return {"card": self.card}


trial = train(Carded)
saved = pathlib.Path(trial.context.core_context.run.checkpoints, trial.card.latest)
print((saved / "card.txt").read_text())  # a line

# %% pytorch.StopOnNaN


class Careful(Line):
    def build_callbacks(self):
        return {"stop on NaN": pytorch.StopOnNaN(self.context)}

    def train_batch(self, batch, epoch_idx, batch_idx):
        return {"loss": float("nan")} if batch_idx >= 10 else super().train_batch(batch, epoch_idx, batch_idx)


trial = train(Careful, batches=800, reporting_period=pytorch.Batch(8))
print(trial.context.current_train_batch())  # 15

# %% [markdown]
# ## Data

# %% pytorch.DataLoader
loader = pytorch.DataLoader(line, batch_size=16, shuffle=True, num_workers=0, drop_last=True)
x, y = next(iter(loader))
print(len(loader), x.shape)  # 4 torch.Size([16, 1])

# %% pytorch.DataLoader.get_data_loader
loader = pytorch.DataLoader(list(range(8)), batch_size=2)
mine = loader.get_data_loader(num_replicas=2, rank=1)
print([batch.tolist() for batch in mine])  # [[2, 3], [6, 7]]

# %% pytorch.adapt_batch_sampler
batches = torch.utils.data.BatchSampler(range(6), batch_size=2, drop_last=False)
adapted = pytorch.adapt_batch_sampler(batches, repeat=True, skip=1, num_replicas=2, rank=0)
iterator = iter(adapted)
print([next(iterator) for _ in range(3)])  # [[4, 5], [2, 3], [0, 1]]

# %% pytorch.RepeatSampler, pytorch.RepeatBatchSampler
numbers = iter(pytorch.RepeatSampler(range(3)))
print([next(numbers) for _ in range(5)])  # [0, 1, 2, 0, 1]
batches = iter(pytorch.RepeatBatchSampler([[0, 1], [2]]))
print([next(batches) for _ in range(3)])  # [[0, 1], [2], [0, 1]]

# %% pytorch.DistributedSampler, pytorch.DistributedBatchSampler
print(list(pytorch.DistributedSampler(range(5), num_workers=2, rank=0)))  # [0, 2, 4]
print(list(pytorch.DistributedBatchSampler([[0, 1], [2, 3], [4]], num_workers=2, rank=1)))  # [[2, 3]]

# %% pytorch.SkipSampler, pytorch.SkipBatchSampler
print(list(pytorch.SkipSampler(range(5), skip=3)))  # [3, 4]
print(list(pytorch.SkipBatchSampler([[0, 1], [2, 3], [4]], skip=2)))  # [[4]]

# %% pytorch.ReproducibleShuffleSampler, pytorch.ReproducibleShuffleBatchSampler
sampler = pytorch.ReproducibleShuffleSampler(range(5), seed=1)
print(list(sampler), list(sampler))  # [2, 1, 4, 0, 3] [0, 2, 4, 3, 1]
print(list(pytorch.ReproducibleShuffleBatchSampler([[0, 1], [2, 3], [4]], seed=1)))  # [[0, 1], [4], [2, 3]]

# %% pytorch.data_length
print(pytorch.data_length({"x": torch.zeros(5, 3), "y": torch.zeros(5)}))  # 5

# %% pytorch.to_device
import numpy as np

batch = {"x": np.zeros((2, 3), dtype=np.float32), "y": [torch.zeros(2)]}
moved = pytorch.to_device(batch, torch.device("cpu"))
print(type(moved["x"]).__name__)  # Tensor

# %% pytorch.TorchData
#: What a batch is: a tensor, a sequence of them, or a dict of them; for annotations.


def size_of(batch: pytorch.TorchData) -> int:
    return pytorch.data_length(batch)


print(size_of([torch.zeros(7, 2)]))  # 7

# %% [markdown]
# ## Metrics
#
# What `train_batch` returns is averaged between two reports, every batch counting the same. So is what `evaluate_batch`
# returns, unless `evaluation_reducer` says otherwise: a short last batch counts as much as a full one. A metric that is
# no average over batches wants a reducer. [Custom metrics](../how-to/custom-metrics.md) tells more.

# %% pytorch.MetricReducer, .reset, .per_slot_reduce, .cross_slot_reduce


class Accuracy(pytorch.MetricReducer):
    def reset(self):
        self.right, self.total = 0, 0

    def update(self, right, total):
        self.right += right
        self.total += total

    def per_slot_reduce(self):
        return self.right, self.total

    def cross_slot_reduce(self, per_slot_metrics):
        return sum(right for right, _ in per_slot_metrics) / sum(total for _, total in per_slot_metrics)


class Signs(Line):
    def __init__(self, context):
        super().__init__(context)
        self.accuracy = context.wrap_reducer(Accuracy(), name="accuracy", for_training=False)

    def evaluate_batch(self, batch):
        x, y = batch
        self.accuracy.update(int((self.model(x).sign() == y.sign()).sum()), len(y))
        return super().evaluate_batch(batch)


train(Signs)

# %% [markdown]
# ## Learning rates

# %% pytorch.LRScheduler, .StepMode
print([mode.name for mode in pytorch.LRScheduler.StepMode])
# ['STEP_EVERY_EPOCH', 'STEP_EVERY_BATCH', 'MANUAL_STEP', 'STEP_EVERY_OPTIMIZER_STEP']


class EveryFourth(Line):
    def __init__(self, context):
        super().__init__(context)
        decay = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.5)
        self.schedule = context.wrap_lr_scheduler(decay, pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH, frequency=4)


print(train(EveryFourth, batches=8).schedule.get_last_lr())  # [0.025]

# %% pytorch.LRScheduler.step, .get_last_lr, .state_dict, .load_state_dict


class Warm(Line):
    def __init__(self, context):
        super().__init__(context)
        warm_up = torch.optim.lr_scheduler.LinearLR(self.optimizer, start_factor=0.5, total_iters=4)
        context.wrap_lr_scheduler(warm_up, pytorch.LRScheduler.StepMode.MANUAL_STEP)
        self.schedule = context.lr_schedulers[0]

    def train_batch(self, batch, epoch_idx, batch_idx):
        metrics = super().train_batch(batch, epoch_idx, batch_idx)
        self.schedule.step()
        return metrics


schedule = train(Warm).schedule
print(schedule.get_last_lr(), schedule.state_dict()["last_epoch"])  # [0.1] 8

# %% [markdown]
# ## Checkpoints outside training
#
# To go on training from a checkpoint, give `fit` a `latest_checkpoint`; to predict with one, use
# `context.load_checkpoint_trial`. These two are for everything else.

# %% pytorch.load_trial_from_checkpoint_path
trained = train(Line, batches=80)
checkpoint = trained.context.core_context.checkpoint.latest()
path = trained.context.core_context.run.checkpoints / checkpoint.storage_id
trial = pytorch.load_trial_from_checkpoint_path(str(path), trial_class=Line)
print(torch.equal(trial.model.weight, trained.model.weight))  # True

# %% pytorch.CheckpointLoadContext
context = pytorch.CheckpointLoadContext(hparams={"learning_rate": 0.1})
trial = Line(context)  # outside training: nothing is started, moved or spread over ranks
print(context.get_hparam("learning_rate"))  # 0.1

# %% [markdown]
# ## The oldest API
#
# A class that defines `build_model` and `optimizer` is trained as it was in 2020: `train_batch` is handed the model and
# returns the loss; backward, clipping (by the hyperparameters `clip_grad_l2_norm` or `clip_grad_val`), stepping and
# zeroing are done for it.

# %% pytorch.PyTorchTrial.build_model, .optimizer, .create_lr_scheduler
#: Hooks of the oldest API; they are looked up on your class, `PyTorchTrial` itself does not have them.


class Oldest(pytorch.PyTorchTrial):
    def __init__(self, context: det.TrialContext) -> None:
        self.context = context

    def build_model(self):
        return nn.Linear(1, 1)

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def create_lr_scheduler(self, optimizer):
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
        return pytorch.LRScheduler(decay, pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH)

    def train_batch(self, batch, model, epoch_idx, batch_idx):
        x, y = batch
        return {"loss": nn.functional.mse_loss(model(x), y)}

    def evaluate_batch(self, batch, model):
        x, y = batch
        return {"validation_loss": nn.functional.mse_loss(model(x), y)}

    def build_training_data_loader(self):
        return pytorch.DataLoader(line, batch_size=8, shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(line, batch_size=8)


train(Oldest)

# %% pytorch.reset_parameters
model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
before = model[0].weight.clone()
pytorch.reset_parameters(model)
print(torch.equal(model[0].weight, before))  # False

# %% [markdown]
# ## Core: starting
#
# `determined.core` is everything a training loop of your own needs, without a trial. It needs no torch.

# %% core.init
with core.init(hparams={"slope": 3.0}, name="by-hand") as core_context:
    for step in range(1, 4):
        core_context.train.report_training_metrics(steps_completed=step, metrics={"loss": 1 / step})

# %% core.Context, .close
core_context = core.init()
try:
    core_context.train.set_status("thinking")
finally:
    core_context.close()  # what leaving `with` does

# %% core.Context.train, .checkpoint, .distributed, .preempt
#: Parts of the context, described below: metrics, checkpoints, ranks, stopping.
with core.init() as core_context:
    core_context.train.report_progress(0.5)
    print(core_context.distributed.rank, core_context.preempt.should_preempt())  # 0 False

# %% core.Context.searcher, .profiler, .experimental, .info
#: Further parts: how long to train, system metrics, what may still change, and where on a cluster this is, if at all.
with core.init() as core_context:
    print(core_context.info)  # None

# %% core.Context.hparams, .config, .seed
with core.init(config={"name": "lines"}, hparams={"slope": 3.0}) as core_context:
    print(core_context.hparams, core_context.config["name"], core_context.seed)  # {'slope': 3.0} lines 0

# %% core.Context.found, .run
#: The checkpoint this run goes on from, or None; and the folder of the run (`run.path`, `run.id`, `run.name`).
with core.init() as core_context:
    with core_context.checkpoint.store_path({"steps_completed": 3}) as (path, storage_id):
        (path / "note.txt").write_text("three steps")
    first = core_context.run.path
with core.init(latest_checkpoint=storage_id) as core_context:
    print(core_context.found.steps_completed, core_context.run.path == first)  # 3 True

# %% core.Context.resume, .locate
with core.init() as core_context:
    with core_context.checkpoint.store_path({"steps_completed": 3}) as (path, storage_id):
        (path / "note.txt").write_text("three steps")
with core.init() as core_context:
    # locate only finds; resume makes this run go on as that one.
    print(core_context.locate("latest").storage_id == storage_id)  # True
    print(core_context.resume(storage_id).steps_completed)  # 3

# %% core.Context.alert
with core.init() as core_context:
    core_context.alert("the loss has not moved for an hour", level="warn")

# %% [markdown]
# ## Core: metrics

# %% core.TrainContext, .report_training_metrics, .report_validation_metrics
with core.init() as core_context:
    core_context.train.report_training_metrics(
        steps_completed=2, metrics={"loss": 0.3}, batch_metrics=[{"loss": 0.4}, {"loss": 0.2}]
    )
    core_context.train.report_validation_metrics(steps_completed=2, metrics={"accuracy": 0.9})

# %% core.TrainContext.report_metrics
with core.init() as core_context:
    core_context.train.report_metrics("inference", steps_completed=1, metrics={"latency_ms": 4.2})

# %% core.TrainContext.flush
with core.init() as core_context:
    core_context.train.report_metrics("inference", 1, {"latency_ms": 4.2})
    core_context.train.flush()
    print((core_context.run.path / "metrics.jsonl").read_text())
    # {"steps_completed":1,"group":"inference","metrics":{"latency_ms":4.2},...}

# %% core.TrainContext.report_progress, .set_status
with core.init() as core_context:
    core_context.train.set_status("downloading data")
    core_context.train.report_progress(0.25)

# %% core.TrainContext.report_early_exit, core.EarlyExitReason
with core.init() as core_context:
    core_context.train.report_early_exit(core.EarlyExitReason.USER_REQUESTED_STOP)

# %% core.TrainContext.set_metadata, .get_metadata
with core.init() as core_context:
    core_context.train.set_metadata({"dataset": "2024-11"})
    print(core_context.train.get_metadata())  # {'dataset': '2024-11'}

# %% core.TrainContext.get_tensorboard_path, .upload_tensorboard_files, core.TensorboardMode
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as core_context:
    folder = core_context.train.get_tensorboard_path()
    (folder / "events.out.tfevents.mine").touch()
    core_context.train.upload_tensorboard_files()

# %% core.TrainContext.get_experiment_best_validation
config = {"searcher": {"name": "single", "metric": "accuracy", "smaller_is_better": False}}
with core.init(config=config) as core_context:
    for step, accuracy in enumerate([0.7, 0.9, 0.8], start=1):
        core_context.train.report_validation_metrics(step, {"accuracy": accuracy})
    print(core_context.train.get_experiment_best_validation())  # 0.9

# %% [markdown]
# ## Core: checkpoints

# %% core.CheckpointContext, .store_path, .restore_path
with core.init() as core_context:
    with core_context.checkpoint.store_path({"steps_completed": 10}) as (path, storage_id):
        torch.save({"weight": torch.ones(3)}, path / "model.pt")
    with core_context.checkpoint.restore_path(storage_id) as path:
        print(torch.load(path / "model.pt")["weight"])  # tensor([1., 1., 1.])

# %% core.CheckpointContext.upload, .download, core.DownloadMode
with core.init() as core_context:
    pathlib.Path("mine").mkdir()
    pathlib.Path("mine", "model.txt").write_text("weights")
    pathlib.Path("mine", "scratch.txt").write_text("not needed")
    storage_id = core_context.checkpoint.upload(
        "mine", {"steps_completed": 10}, selector=lambda path: path != "scratch.txt"
    )
    core_context.checkpoint.download(storage_id, "copy", core.DownloadMode.NoSharedDownload)
print(sorted(path.name for path in pathlib.Path("copy").iterdir()))
# ['manifest.json', 'metadata.json', 'model.txt']

# %% core.CheckpointContext.get_metadata, .delete
with core.init() as core_context:
    with core_context.checkpoint.store_path({"steps_completed": 10, "epoch": 2}) as (path, storage_id):
        (path / "model.txt").write_text("weights")
    print(core_context.checkpoint.get_metadata(storage_id))  # {'steps_completed': 10, 'epoch': 2}
    core_context.checkpoint.delete(storage_id)

# %% core.CheckpointContext.list, .latest, .best
with core.init() as core_context:
    for step, loss in [(1, 0.5), (2, 0.2), (3, 0.4)]:
        core_context.checkpoint.record_validation(step, loss)
        with core_context.checkpoint.store_path({"steps_completed": step}) as (path, storage_id):
            (path / "model.txt").write_text("weights")
    checkpoints = core_context.checkpoint
    print(len(checkpoints.list()), checkpoints.latest().steps_completed, checkpoints.best().steps_completed)  # 3 3 2

# %% core.CheckpointContext.retain, .record_validation
with core.init() as core_context:
    core_context.checkpoint.retain(best=1, latest=1, metric="loss")
    for step, loss in [(1, 0.5), (2, 0.2), (3, 0.4), (4, 0.3)]:
        core_context.train.report_validation_metrics(step, {"loss": loss})  # also records it
        with core_context.checkpoint.store_path({"steps_completed": step}) as (path, storage_id):
            (path / "model.txt").write_text("weights")
    print([each.steps_completed for each in core_context.checkpoint.list()])  # [2, 4]

# %% [markdown]
# ## Core: ranks
#
# With one rank everything below is trivial, so that the same script runs alone and on many; see
# [Training on several processes](../how-to/distribute.md) for a run on two.

# %% core.DistributedContext
#: Also as attributes: `rank`, `size`, `local_rank`, `local_size`, `cross_rank`, `cross_size`.
with core.DistributedContext(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1) as distributed:
    print(distributed.rank, distributed.size)  # 0 1

# %% core.DistributedContext.from_torch_distributed, .from_deepspeed
import os

# What torchrun and our launcher set; core.init() and pytorch.init() do this by themselves.
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", GROUP_RANK="0", GROUP_WORLD_SIZE="1")
with core.DistributedContext.from_torch_distributed() as distributed:
    print(distributed.size)  # 1
with core.DistributedContext.from_deepspeed() as distributed:
    print(distributed.size)  # 1

# %% core.DistributedContext.from_horovod
import types

# In a script: import horovod.torch as hvd; hvd.init()
numbers = {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1, "cross_rank": 0, "cross_size": 1}
hvd = types.SimpleNamespace(**{name: lambda number=number: number for name, number in numbers.items()})
with core.DistributedContext.from_horovod(hvd) as distributed:
    print(distributed.size)  # 1

# %% core.DistributedContext.from_tf_config
# Returns TensorFlow's strategy too, so it needs TensorFlow.
try:
    distributed, strategy = core.DistributedContext.from_tf_config()
except ModuleNotFoundError as error:
    print(error.name)  # tensorflow

# %% core.DistributedContext.get_rank, .get_local_rank, .get_size, .get_num_agents
with core.init() as core_context:
    ranks = core_context.distributed
    print(ranks.get_rank(), ranks.get_local_rank(), ranks.get_size(), ranks.get_num_agents())  # 0 0 1 1

# %% core.DistributedContext.shard_batch_size
with core.init() as core_context:
    print(core_context.distributed.shard_batch_size(64))  # 64

# %% core.DistributedContext.gather, .allgather, .broadcast
with core.init() as core_context:
    ranks = core_context.distributed
    losses = ranks.gather({"rank": ranks.rank, "loss": 0.25})
    if losses is not None:  # on the chief
        print(sum(each["loss"] for each in losses) / len(losses))  # 0.25
    print(ranks.allgather(ranks.rank), ranks.broadcast("from the chief"))  # [0] from the chief

# %% core.DistributedContext.gather_local, .allgather_local, .broadcast_local
with core.init() as core_context:
    ranks = core_context.distributed
    folder = ranks.broadcast_local("cache" if ranks.local_rank == 0 else None)  # one for each machine
    print(folder, ranks.gather_local(1), ranks.allgather_local(2))  # cache [1] [2]

# %% core.DistributedContext.close
distributed = core.DistributedContext()
distributed.close()  # by whoever made it: core.init() closes what it made itself

# %% [markdown]
# ## Core: stopping

# %% core.PreemptContext, .should_preempt, core.PreemptMode
with core.init(preempt_mode=core.PreemptMode.WorkersAskChief) as core_context:
    for epoch in range(100):
        if epoch == 3:
            core_context.preempt.ask("shown here")  # as Ctrl-C, SIGTERM or a scheduler would
        if core_context.preempt.should_preempt():
            break  # after saving a checkpoint
    print(epoch)  # 3

# %% core.PreemptContext.acknowledge_preemption_signal
with core.init() as core_context:
    core_context.preempt.ask()
    if core_context.preempt.should_preempt(auto_ack=False):
        core_context.preempt.acknowledge_preemption_signal()  # this run ends unfinished, on purpose

# %% core.PreemptContext.ask
with core.init() as core_context:
    core_context.preempt.ask("the disk is nearly full")
    print(core_context.preempt.should_preempt())  # True

# %% core.PreemptContext.stop_line, core.StopLine
# A question that costs one comparison per batch, and stops all ranks at the same batch.
with core.init() as core_context:
    done = 0
    stop = core_context.preempt.stop_line(lambda: done)
    while done < 1000 and not (done >= stop.at and stop.reached()):
        done += 1
        if done == 7:
            core_context.preempt.ask()
    print(done)  # 7

# %% [markdown]
# ## Core: the search
#
# For scripts that train by operations. Without a master there is one, as long as the config's `searcher.max_length`.

# %% core.SearcherContext, .operations, core.SearcherMode, core.SearcherOperation, .length
config = {"searcher": {"name": "single", "metric": "loss", "max_length": {"epochs": 3}}}
with core.init(config=config) as core_context:
    epochs = 0
    for operation in core_context.searcher.operations(core.SearcherMode.WorkersAskChief):
        while epochs < operation.length:
            epochs += 1
        operation.report_completed(0.1)
    print(epochs)  # 3

# %% core.SearcherOperation.report_progress, .report_completed
with core.init() as core_context:
    for operation in core_context.searcher.operations():
        operation.report_progress(operation.length / 2)
        operation.report_completed(searcher_metric=0.1)

# %% core.SearcherContext.get_configured_units, core.Unit
with core.init(config={"searcher": {"name": "single", "max_length": {"batches": 100}}}) as core_context:
    print(core_context.searcher.get_configured_units() is core.Unit.BATCHES)  # True

# %% [markdown]
# ## Core: the rest

# %% core.ProfilerContext, .on, .off
with core.init() as core_context:
    core_context.profiler.on(sampling_interval=0.1, samples_per_report=1)
    torch.randn(200, 200) @ torch.randn(200, 200)
    core_context.profiler.off()  # profile.jsonl in the run's folder has the samples

# %% core.ExperimentalCoreContext, .report_task_using_checkpoint, .report_task_using_model_version
with core.init() as core_context:
    core_context.experimental.report_task_using_checkpoint("4f1c2d0e-0000-4000-8000-000000000000")
    core_context.experimental.report_task_using_model_version("digits v3")

# %% core.import_from_path
#: The same as `det.import_from_path`.
print(core.import_from_path is det.import_from_path)  # True

# %% [markdown]
# ## On a cluster

# %% det.get_cluster_info
info = det.get_cluster_info()
hparams = info.trial.hparams if info else {"learning_rate": 0.1}
print(hparams)  # {'learning_rate': 0.1}

# %% det.ClusterInfo, det.TrialInfo, det.RendezvousInfo, det.ResourcesInfo
# Made by get_cluster_info(); by hand only in tests of your own.
info = det.ClusterInfo(
    master_url="http://127.0.0.1:8080",
    cluster_id="c1",
    agent_id="here",
    slot_ids=[0, 1],
    task_id="t1",
    allocation_id="t1.0",
    session_token="secret",
    task_type="TRIAL",
    trial_info=det.TrialInfo(
        trial_id=4, experiment_id=2, trial_seed=7, hparams={"learning_rate": 0.1}, config={"data": {"points": 64}}
    ),
    rendezvous_info=det.RendezvousInfo(["10.0.0.1", "10.0.0.2"], container_rank=1, container_slot_counts=[2, 2]),
    resources_info=det.ResourcesInfo(gpu_uuids=[]),
)
print(info.trial.trial_id, info.user_data, info.container_rank)  # 4 {'points': 64} 1

# %% det.ClusterInfo.container_addrs, .container_rank, .container_slot_counts
info = det.ClusterInfo(
    master_url="http://127.0.0.1:8080",
    cluster_id="c1",
    agent_id="here",
    slot_ids=[0, 1],
    task_id="t1",
    allocation_id="t1.0",
    session_token="secret",
    task_type="TRIAL",
)
print(info.container_addrs, info.container_rank, info.container_slot_counts)  # ['127.0.0.1'] 0 [2]

# %% det.ClusterInfo.trial, .latest_checkpoint, .user_data, .gpu_uuids
info = det.ClusterInfo(
    master_url="http://127.0.0.1:8080",
    cluster_id="c1",
    agent_id="here",
    slot_ids=[],
    task_id="t2",
    allocation_id="t2.0",
    session_token="secret",
    task_type="COMMAND",
)
print(info.latest_checkpoint, info.user_data, info.gpu_uuids)  # None {} []
try:
    print(info.trial)
except RuntimeError as error:
    print(error)  # this is a task of type COMMAND, not a trial; it has no trial info

# %% [markdown]
# ## Errors
#
# All derive from `errors.DeterminedError`, which is an ordinary `Exception`, and say what to do. Errors of your own
# code pass through `fit` unchanged.

# %% errors.DeterminedError
try:
    train(Line, latest_checkpoint="./nowhere")
except errors.DeterminedError as error:
    print(error.code, "·", error)
    # checkpoint_not_found · there is no checkpoint folder ...nowhere; check the path

# %% errors.InvalidExperimentException


class Unwrapped(Line):
    def __init__(self, context):
        self.context = context
        self.model = nn.Linear(1, 1)


try:
    train(Unwrapped)
except errors.InvalidExperimentException as error:
    print(error)  # Unwrapped wrapped no model; call self.model = context.wrap_model(model) in __init__

# %% errors.InternalException
with pytorch.init() as context:
    try:
        context.current_train_batch()
    except errors.InternalException as error:
        print(error)  # training has not started, so there is no current batch or epoch yet

# %% errors.InvalidModelException
with pytorch.init() as context:
    try:
        context.wrap_model(nn.Linear)
    except errors.InvalidModelException as error:
        print(error)  # wrap_model takes a torch.nn.Module, not type (a class: call it to make a model)

# %% errors.InvalidDataTypeException
with core.init() as core_context:
    try:
        core_context.train.report_training_metrics(1, {"loss": object()})
    except errors.InvalidDataTypeException as error:
        print(error)
        # Invalid data type: builtins.object. Training metric 'loss' must be a number; convert it first, ...

# %% errors.InvalidConfigurationException
from determined import config

try:
    config.load("searcher: {name: single, metrc: loss}\nresources: {slots_per_trail: 2}")
except errors.InvalidConfigurationException as error:
    print(error)
    # the config has 2 mistakes:
    # - searcher.metrc is not a field; did you mean metric? (line 1)
    # - resources.slots_per_trail is not a field; did you mean slots_per_trial? (line 2)

# %% errors.InvalidCheckpointException
trial = train(Line)
run, latest = trial.context.core_context.run, trial.context.core_context.checkpoint.latest()
file = run.checkpoints / latest.storage_id / "state_dict.pth"
content = bytearray(file.read_bytes())
content[len(content) // 2] ^= 1  # one bit
file.write_bytes(content)
try:
    train(Line, batches=16, latest_checkpoint="latest")
except errors.InvalidCheckpointException as error:
    print("state_dict.pth" in str(error))  # True

# %% errors.CheckpointNotFound
with core.init() as core_context:
    try:
        core_context.checkpoint.get_metadata("4f1c2d0e-0000-4000-8000-000000000000")
    except errors.CheckpointNotFound as error:
        print(error.code)  # checkpoint_not_found

# %% errors.CheckpointStateException
with core.init() as core_context:
    with core_context.checkpoint.store_path({"steps_completed": 1}) as (path, storage_id):
        (path / "model.txt").write_text("weights")
    with core_context.checkpoint.restore_path(storage_id):
        try:
            core_context.checkpoint.delete(storage_id)
        except errors.CheckpointStateException as error:
            print(error.code)  # checkpoint_state

# %% errors.NoDirectStorageAccess, errors.ProxiedDownloadFailed, errors.MultipleDownloadsFailed
# Of downloads from a cluster.
failures = (errors.NoDirectStorageAccess, errors.ProxiedDownloadFailed, errors.MultipleDownloadsFailed)
try:
    raise errors.NoDirectStorageAccess("the bucket answers to the master only")
except failures as error:
    print(error.code)  # no_direct_storage_access

# %% errors.EnterpriseOnlyError
print(issubclass(errors.EnterpriseOnlyError, errors.DeterminedError))  # True

# %% [markdown]
# ## Commands
#
# `python -m determined.launch.torch_distributed` starts a script, or `--trial MODULE:CLASS`, once for each rank, and
# looks after the processes; `--help` lists its options. What a rank prints is prefixed.
#
# <!-- file: ranks.py -->
# ```python
# from determined import core
#
# with core.init() as core_context:
#     ranks = core_context.distributed
#     print("the ranks are", ranks.allgather(ranks.rank))
# ```
#
# <!-- run -->
# ```sh
# python -m determined.launch.torch_distributed --nproc 2 ranks.py
# ```
#
# <!-- shows -->
# ```text
# the ranks are [0, 1]
# ```
#
# `python -m determined.launch.wrap_rank` prefixes the output of any command with a rank: a number, or the environment
# variables to look for one in.
#
# <!-- run -->
# ```sh
# RANK=3 python -m determined.launch.wrap_rank RANK echo hello
# ```
#
# <!-- shows -->
# ```text
# [rank=3] hello
# ```
#
# `python -m determined.pytorch MODULE:CLASS --config const.yaml` trains a trial as its configuration says;
# [Coming from Determined](../how-to/port-from-determined.md) shows a run.
