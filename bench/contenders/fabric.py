"""Lightning Fabric: your own loop, with Fabric's backward and its wrapped model, optimizer and loaders."""

from __future__ import annotations

import itertools

import torch
from lightning.fabric import Fabric

from bench.contenders import Marks
from bench.work import Work


def train(work: Work, pace: Marks) -> None:
    case, loss_of = work.case, work.loss
    fabric = Fabric(accelerator="cpu", devices=work.size, strategy="ddp" if work.size > 1 else "auto")
    fabric.launch()
    bare_model = work.model()
    model, optimizer = fabric.setup(bare_model, work.optimizer(bare_model))
    data = work.training_data()
    validation_data = work.validation_data()
    if case.loads:
        data, validation_data = fabric.setup_dataloaders(data, validation_data)
    losses: list[float] = []
    done = 0
    for _ in itertools.count():
        for inputs, labels in data:
            if done % case.chunk == 0:
                if done and case.validates:
                    model.eval()
                    with torch.no_grad():
                        sum(loss_of(model(inputs), labels).item() for inputs, labels in validation_data)
                    model.train()
                if losses:
                    sum(losses)
                    losses.clear()
                pace.mark()
            loss = loss_of(model(inputs), labels)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if case.reports_loss:
                losses.append(loss.item())
            done += 1
            if done == work.batches:
                return
