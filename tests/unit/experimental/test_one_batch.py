"""A trial class is tried out on one batch of everything."""

from __future__ import annotations

import doctest
import pathlib
from typing import Any

import pytest
import torch

from determined import errors, experimental, pytorch
from determined.experimental import one_batch


class Line(pytorch.PyTorchTrial):
    seen: list[str]

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        type(self).seen = []
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), context.get_hparam("lr")))

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 1)), batch_size=2)

    def build_validation_data_loader(self) -> Any:
        return self.build_training_data_loader()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.seen.append(f"train {self.optimizer.param_groups[0]['lr']}")
        loss = self.model(batch[0]).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Any) -> Any:
        self.seen.append("evaluate")
        return {"error": 0.5}


def test_the_documented_example_runs() -> None:
    assert doctest.testmod(one_batch).failed == 0


def test_one_batch_is_trained_validated_and_saved(runs_dir: pathlib.Path) -> None:
    searched = {"hyperparameters": {"lr": {"type": "categorical", "vals": [0.25, 0.5]}}}
    assert experimental.test_one_batch(Line, searched)["error"] == 0.5
    assert Line.seen == ["train 0.25", "evaluate"]
    (folder,) = runs_dir.iterdir()
    assert len(list(folder.glob("checkpoints/*/state_dict.pth"))) == 1


def test_a_config_may_be_a_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "const.yaml"
    path.write_text(
        "name: line\nentrypoint: model_def:Line\nhyperparameters:\n  lr: 0.125\n"
        "searcher:\n  name: single\n  metric: error\n  max_length:\n    batches: 100\n"
    )
    experimental.test_one_batch(Line, path)
    assert Line.seen == ["train 0.125", "evaluate"]


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ValueError, match="there is no hyperparameter 'lr'"):
        experimental.test_one_batch(Line, {})


class Careless(Line):
    def evaluate_full_dataset(self, data_loader: Any) -> Any:
        return {}


def test_the_checks_of_a_real_training_apply() -> None:
    with pytest.raises(errors.InvalidExperimentException, match="exactly one of evaluate_batch"):
        experimental.test_one_batch(Careless, {"hyperparameters": {"lr": 1.0}})


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        experimental.nothing  # type: ignore[attr-defined]  # noqa: B018
