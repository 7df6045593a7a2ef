"""What is trained: the same models, batches and optimizer for every contender, and the bare loop beside them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.utils.data
from torch import Tensor, nn

EPOCH_BATCHES = 1_000
VALIDATION_BATCHES = 10


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to measure. A chunk is the number of batches timed together, and the reporting period."""

    name: str
    title: str
    bar: float
    network: Callable[[], nn.Module]
    shape: tuple[int, ...] = (32,)
    batch_size: int = 32
    chunk: int = 100
    chunks: int = 30
    stretch: int = 60  # chunks without a break
    ready_batches: int = EPOCH_BATCHES
    lr: float = 0.05
    loads: bool = False  # through a data loader, shuffled, instead of a list of ready batches
    reports_loss: bool = False
    validates: bool = False  # after every chunk
    # Growth only:
    metrics: int = 0
    models: int = 1
    callbacks: int = 0


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


def _convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    )


def _wide() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))


ONE_PROCESS = {
    case.name: case
    for case in (
        Case("loop", "loop alone, batches ready", 1.05, _mlp),
        Case("metric", "+ a metric every step", 1.10, _mlp, reports_loss=True),
        Case("loader", "+ a data loader", 0.75, _mlp, loads=True),
        Case(
            "validation",
            "+ loader, metric, validation every 100",
            0.80,
            _mlp,
            loads=True,
            reports_loss=True,
            validates=True,
        ),
        Case(
            "conv",
            "convnet, 28×28, batch 64",
            1.01,
            _convnet,
            shape=(1, 28, 28),
            batch_size=64,
            chunk=20,
            chunks=10,
            stretch=15,
            ready_batches=100,
            reports_loss=True,
        ),
    )
}

TWO_PROCESSES = {
    case.name: case
    for case in (
        Case("ddp-tiny", "DDP, two processes, tiny MLP", 1.05, _mlp, chunks=24, reports_loss=True),
        Case(
            "ddp-mid",
            "DDP, two processes, 1 M parameters",
            1.01,
            _wide,
            shape=(512,),
            chunk=20,
            chunks=24,
            ready_batches=100,
            reports_loss=True,
        ),
    )
}

GROWTH = {
    case.name: case
    for case in (
        *(Case(f"{n} metrics", f"{n} metrics a step", 0, _mlp, metrics=n) for n in (1, 10, 100)),
        *(Case(f"{n} optimizers", f"{n} optimizers", 0, _mlp, models=n) for n in (1, 2, 4, 8)),
        *(
            Case(f"{n} callbacks", f"{n} callbacks, one metric", 0, _mlp, reports_loss=True, callbacks=n)
            for n in (0, 1, 5, 20)
        ),
    )
}

CASES = {**ONE_PROCESS, **TWO_PROCESSES, **GROWTH}


class Order(torch.utils.data.Sampler[int]):
    """The order of samples in each epoch, drawn as torch's own random sampler does, but the same for every user."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._epoch = 0

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[int]:
        drawn = torch.Generator().manual_seed(self._epoch)
        self._epoch += 1
        return iter(torch.randperm(self._samples, generator=drawn).tolist())


class Work:
    """One contender's share of a case: how many batches to train, and fresh copies of all it needs for that."""

    def __init__(self, case: Case, batches: int, *, rank: int = 0, size: int = 1) -> None:
        self.case = case
        self.batches = batches
        self.rank = rank
        self.size = size
        self.loss: Callable[[Tensor, Tensor], Tensor] = nn.CrossEntropyLoss()
        self.order: Iterable[int] | None = None  # set by a contender that draws its own: the bare loop follows it
        self.reported_losses: list[float] | None = None  # what a contender said in the end, for us to compare
        self.made: list[nn.Module] = []  # the models it trains
        # Epochs end on a chunk's end.
        self._ready = min(case.ready_batches, max(case.chunk, batches // case.chunk * case.chunk))
        # Ranks differ in their data and in nothing else.
        drawn = torch.Generator().manual_seed(1234 + rank)
        samples = self._ready * case.batch_size
        self._training_set = _random_set(samples, case.shape, drawn)
        # Data never seen in training: its loss soon stops to improve, as it does in life.
        self._validation_set = _random_set(VALIDATION_BATCHES * case.batch_size, case.shape, drawn)

    @property
    def epoch_batches(self) -> int:
        return self._ready

    def models(self) -> list[nn.Module]:
        """The networks before training, the same at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            self.made = [self.case.network() for _ in range(self.case.models)]
        return self.made

    def model(self) -> nn.Module:
        (model,) = self.models()
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.case.lr)

    def dataset(self) -> torch.utils.data.TensorDataset:
        return self._training_set

    def training_data(self) -> Any:
        """A list of ready batches, or torch's data loader where the case says so."""
        size, dataset = self.case.batch_size, self._training_set
        if self.case.loads:
            sampler: Any = self.order if self.order is not None else Order(len(dataset))
            return torch.utils.data.DataLoader(dataset, batch_size=size, sampler=sampler)
        inputs, labels = dataset.tensors
        return [[x.clone(), y.clone()] for x, y in zip(torch.split(inputs, size), torch.split(labels, size))]

    def validation_set(self) -> torch.utils.data.TensorDataset:
        return self._validation_set

    def validation_data(self) -> torch.utils.data.DataLoader[Any]:
        return torch.utils.data.DataLoader(self._validation_set, batch_size=self.case.batch_size)


def _random_set(samples: int, shape: tuple[int, ...], drawn: torch.Generator) -> torch.utils.data.TensorDataset:
    inputs = torch.randn(samples, *shape, generator=drawn)
    return torch.utils.data.TensorDataset(inputs, torch.randint(0, 10, (samples,), generator=drawn))


class Bare:
    """The loop anyone would write with nothing but PyTorch, going on by one chunk at each call."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.models = work.models()
        if work.size > 1:
            self.models = [nn.parallel.DistributedDataParallel(model) for model in self.models]
        self.optimizers = [work.optimizer(model) for model in self.models]
        self.losses: list[float] = []  # the mean of each chunk
        self.validation_losses: list[float] = []
        self._validation_data = work.validation_data() if work.case.validates else None
        data = work.training_data()
        self._batches: Iterator[Any] = _for_ever(data) if work.case.loads else itertools.cycle(data)
        case = work.case
        self._train = self._many if case.models > 1 else self._with_metrics if case.metrics else self._one

    def chunk(self) -> None:
        self._train(itertools.islice(self._batches, self.work.case.chunk))
        if self._validation_data is not None:
            self._validate(self._validation_data)

    def _one(self, batches: Iterator[Any]) -> None:
        (model,), (optimizer,), loss_of = self.models, self.optimizers, self.work.loss
        model.train()
        if not self.work.case.reports_loss:
            for inputs, labels in batches:
                loss = loss_of(model(inputs), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
            return
        losses: list[float] = []
        for inputs, labels in batches:
            loss = loss_of(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        self.losses.append(sum(losses) / len(losses))

    def _with_metrics(self, batches: Iterator[Any]) -> None:
        """Makes the dict of metrics as a trial does, and drops it."""
        (model,), (optimizer,), loss_of = self.models, self.optimizers, self.work.loss
        names = metric_names(self.work.case)
        for inputs, labels in batches:
            loss = loss_of(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            dict.fromkeys(names, loss)

    def _many(self, batches: Iterator[Any]) -> None:
        loss_of, pairs = self.work.loss, list(zip(self.models, self.optimizers))
        for inputs, labels in batches:
            for model, optimizer in pairs:
                loss = loss_of(model(inputs), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()

    def _validate(self, data: Iterable[Any]) -> None:
        (model,), loss_of = self.models, self.work.loss
        model.eval()
        losses: list[float] = []
        with torch.no_grad():
            for inputs, labels in data:
                losses.append(loss_of(model(inputs), labels).item())
        self.validation_losses.append(sum(losses) / len(losses))


def metric_names(case: Case) -> list[str]:
    return [f"metric{number}" for number in range(case.metrics)]


def _for_ever(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def same_parameters(one: list[nn.Module], other: list[nn.Module]) -> bool:
    """Whether two lists of models hold the same numbers, bit for bit."""
    pairs = [
        (a, b)
        for model, twin in zip(one, other)
        for a, b in zip(model.state_dict().values(), twin.state_dict().values())
    ]
    return bool(pairs) and all(torch.equal(a, b) for a, b in pairs)
