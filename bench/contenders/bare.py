"""Nothing but PyTorch: the bare loop against itself, which shows how much of a ratio is noise."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from bench.contenders import Marks
from bench.work import Work


def train(work: Work, pace: Marks) -> None:
    case, loss_of = work.case, work.loss
    model = work.model()
    ready = nn.parallel.DistributedDataParallel(model) if work.size > 1 else model
    optimizer = work.optimizer(ready)
    data = work.training_data()
    validation_data = work.validation_data()
    losses: list[float] = []
    done = 0
    for _ in itertools.count():
        for inputs, labels in data:
            if done % case.chunk == 0:
                if done and case.validates:
                    ready.eval()
                    with torch.no_grad():
                        sum(loss_of(ready(inputs), labels).item() for inputs, labels in validation_data)
                    ready.train()
                if losses:
                    sum(losses)
                    losses.clear()
                pace.mark()
            loss = loss_of(ready(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            if case.reports_loss:
                losses.append(loss.item())
            done += 1
            if done == work.batches:
                return
