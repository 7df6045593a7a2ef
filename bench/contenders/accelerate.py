"""Hugging Face accelerate: your own loop, with everything through ``prepare``."""

from __future__ import annotations

import itertools

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]

from bench.contenders import Marks
from bench.work import Work


def train(work: Work, pace: Marks) -> None:
    case, loss_of = work.case, work.loss
    accelerator = Accelerator(cpu=True)
    bare_model = work.model()
    model, optimizer = accelerator.prepare(bare_model, work.optimizer(bare_model))
    data = work.training_data()
    validation_data = work.validation_data()
    if case.loads:
        data, validation_data = accelerator.prepare(data, validation_data)
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
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if case.reports_loss:
                losses.append(loss.item())
            done += 1
            if done == work.batches:
                return
