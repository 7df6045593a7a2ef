"""test_one_batch: a trial class through one batch of everything, to find what is wrong with it before it is trained."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Union

from determined import config as config_package
from determined import pytorch


def test_one_batch(
    trial_class: type[pytorch.PyTorchTrial],
    config: Union[Mapping[str, Any], str, os.PathLike[str], None] = None,
) -> dict[str, Any]:
    """Train one batch, validate one batch and save a checkpoint; returns the validation metrics (on the chief).

    ``config`` is an experiment configuration: a dict, which may hold hyperparameters alone, or the path of a YAML
    file. Of hyperparameters with a range the first value is taken.

    >>> import torch
    >>> from determined import experimental, pytorch
    >>> class Line(pytorch.PyTorchTrial):
    ...     def __init__(self, context):
    ...         self.context = context
    ...         self.model = context.wrap_model(torch.nn.Linear(1, 1))
    ...         self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), context.hparams["lr"]))
    ...     def build_training_data_loader(self):
    ...         return pytorch.DataLoader(torch.ones(8, 1), batch_size=4)
    ...     build_validation_data_loader = build_training_data_loader
    ...     def train_batch(self, batch, epoch_idx, batch_idx):
    ...         loss = (self.model(batch) - batch).square().mean()
    ...         self.context.backward(loss)
    ...         self.context.step_optimizer(self.optimizer)
    ...         return loss
    ...     def evaluate_batch(self, batch):
    ...         return {"error": (self.model(batch) - batch).abs().mean()}
    >>> metrics = experimental.test_one_batch(Line, {"hyperparameters": {"lr": 0.1}})
    >>> 0 <= metrics["error"] < 10
    True
    """
    exp_conf: dict[str, Any] | None = None
    if config is not None:
        exp_conf = dict(config) if isinstance(config, Mapping) else config_package.load(config).as_dict()
    with pytorch.init(exp_conf=exp_conf) as context:
        return context.train(context.build_trial(trial_class), test_mode=True)
