"""Checkpoint folders of five generations of the predecessor, written here in the shapes it documented."""

from __future__ import annotations

import json
import pathlib
import pickle
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from determined.errors import InvalidCheckpointException
from determined.pytorch import legacy_checkpoint

TRIAL_STATE = {"trial_id": 7, "last_ckpt": 40, "step_id": 4, "last_val": 40, "batches_trained": 40, "epochs_trained": 2}
LOAD_DATA = {
    "trial_type": "PyTorchTrial",
    "experiment_config": {"searcher": {"name": "single"}},
    "hparams": {"lr": 0.1},
    "trial_cls_spec": "model_def:MyTrial",
    "is_trainer": True,
}


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 4])
    model(torch.randn(6, 4)).square().sum().backward()
    optimizer.step()
    scheduler.step()
    return model, optimizer, scheduler


def rng_state() -> dict[str, Any]:
    return {
        "cpu_rng_state": torch.random.get_rng_state(),
        "np_rng_state": np.random.RandomState(3).get_state(),
        "random_rng_state": random.Random(3).getstate(),
    }


def lists() -> dict[str, Any]:
    model, optimizer, scheduler = trained()
    return {
        "models_state_dict": [model.state_dict()],
        "optimizers_state_dict": [optimizer.state_dict()],
        "lr_schedulers_state_dict": [scheduler.state_dict()],
        "callbacks": {"early": {"best": np.float64(0.5), "wait": 3}},
        "rng_state": rng_state(),
        "scaler_state_dict": {"scale": 65536.0, "growth_tracker": 5},
    }


def generation_038(folder: pathlib.Path) -> None:
    torch.save(lists(), folder / "state_dict.pth", pickle_protocol=4)
    (folder / "trial_state.pkl").write_bytes(pickle.dumps(TRIAL_STATE))
    (folder / "load_data.json").write_text(json.dumps(LOAD_DATA))
    (folder / "metadata.json").write_text(json.dumps({"determined_version": "0.38.1", "steps_completed": 40}))


def generation_017(folder: pathlib.Path) -> None:
    torch.save(lists(), folder / "state_dict.pth")
    (folder / "workload_sequencer.pkl").write_bytes(pickle.dumps(dict(TRIAL_STATE, trial_id=7)))
    metadata = {"determined_version": "0.17.7", "experiment_config": {}, "hparams": {"lr": 0.1}}
    (folder / "metadata.json").write_text(json.dumps(metadata))


def generation_015(folder: pathlib.Path) -> None:
    """Counters pickled as an instance of one of its classes."""
    torch.save(lists(), folder / "state_dict.pth")
    module = types.ModuleType("determined.pytorch._sequencer")

    class State:
        def __init__(self) -> None:
            self.__dict__.update(TRIAL_STATE)

    State.__module__, State.__qualname__ = module.__name__, "State"
    module.State = State  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    try:
        (folder / "workload_sequencer.pkl").write_bytes(pickle.dumps(State(), protocol=0))
    finally:
        del sys.modules[module.__name__]


def generation_014(folder: pathlib.Path) -> None:
    """torch before 1.6 wrote a stream instead of a zip."""
    (folder / "determined").mkdir()
    path = folder / "determined" / "state_dict.pth"
    torch.save(lists(), path, _use_new_zipfile_serialization=False)


def generation_012(folder: pathlib.Path) -> None:
    (folder / "pedl").mkdir()
    model, optimizer, scheduler = trained()
    saved = {
        "model_state_dict": {f"module.{name}": tensor for name, tensor in model.state_dict().items()},
        "optimizer_state_dict": optimizer.state_dict(),
        "lr_scheduler": scheduler.state_dict(),
    }
    torch.save(saved, folder / "pedl" / "state_dict.pth", _use_new_zipfile_serialization=False)
    (folder / "metadata.json").write_text(json.dumps({"framework": "torch-1.4.0", "format": "pickle"}))


LISTS = [generation_038, generation_017, generation_015, generation_014]


@pytest.mark.parametrize("write", LISTS)
def test_a_generation_with_lists_is_read_whole(write: Callable[[pathlib.Path], None], tmp_path: pathlib.Path) -> None:
    write(tmp_path)
    read = legacy_checkpoint.read(tmp_path)
    model, optimizer, scheduler = trained()
    other = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    other.load_state_dict(read["models"][0])
    assert all(torch.equal(a, b) for a, b in zip(other.state_dict().values(), model.state_dict().values(), strict=True))
    other_optimizer = torch.optim.Adam(other.parameters())
    other_optimizer.load_state_dict(read["optimizers"][0])
    assert torch.equal(
        other_optimizer.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"]
    )
    assert read["lr_schedulers"][0]["milestones"] == scheduler.milestones
    assert read["callbacks"] == {"early": {"best": 0.5, "wait": 3}}
    assert read["scaler"]["scale"] == 65536.0 and read["amp"] is None
    assert read["format"] == "lists"


def test_random_states_come_back_as_numpy_python_and_torch_take_them(tmp_path: pathlib.Path) -> None:
    generation_038(tmp_path)
    rng = legacy_checkpoint.read(tmp_path)["rng"]
    restored, expected = np.random.RandomState(), np.random.RandomState(3)
    restored.set_state(rng["np_rng_state"])
    assert restored.rand() == expected.rand()
    python = random.Random()
    python.setstate(rng["random_rng_state"])
    assert python.random() == random.Random(3).random()
    torch.Generator().set_state(rng["cpu_rng_state"])


@pytest.mark.parametrize("write", [generation_038, generation_017, generation_015])
def test_counters_are_read_whatever_they_are_kept_in(
    write: Callable[[pathlib.Path], None], tmp_path: pathlib.Path
) -> None:
    write(tmp_path)
    assert legacy_checkpoint.read(tmp_path)["trial_state"] == TRIAL_STATE


def test_the_documents_are_read(tmp_path: pathlib.Path) -> None:
    generation_038(tmp_path)
    read = legacy_checkpoint.read(tmp_path)
    assert read["load_data"] == LOAD_DATA and read["metadata"]["determined_version"] == "0.38.1"
    (tmp_path / "load_data.json").unlink()
    assert legacy_checkpoint.read(tmp_path)["load_data"]["determined_version"] == "0.38.1"


def test_the_oldest_generation_has_one_of_each(tmp_path: pathlib.Path) -> None:
    generation_012(tmp_path)
    read = legacy_checkpoint.read(tmp_path)
    assert [len(read[name]) for name in ("models", "optimizers", "lr_schedulers")] == [1, 1, 1]
    assert all(name.startswith("module.") for name in read["models"][0])
    assert read["trial_state"] is None and read["rng"] is None and read["callbacks"] == {}
    assert read["format"] == "single"


def test_the_file_names_are_tried_in_order(tmp_path: pathlib.Path) -> None:
    for n, name in reversed(list(enumerate(legacy_checkpoint.STATE_FILES))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        torch.save({"models_state_dict": [{"n": torch.tensor(n)}]}, tmp_path / name)
        assert legacy_checkpoint.read(tmp_path)["models"][0]["n"] == n


def test_old_and_new_names_together_are_an_error(tmp_path: pathlib.Path) -> None:
    torch.save({"models_state_dict": [{}], "model_state_dict": {}}, tmp_path / "state_dict.pth")
    with pytest.raises(InvalidCheckpointException, match="both models_state_dict and model_state_dict"):
        legacy_checkpoint.read(tmp_path)


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ([1], "holds a list"),
        ({"optimizers_state_dict": []}, "no model"),
        ({"models_state_dict": {}}, "instead of a list"),
        ({"models_state_dict": [], "callbacks": [1]}, "callbacks is a list"),
    ],
)
def test_another_shape_is_an_error_that_says_so(saved: Any, message: str, tmp_path: pathlib.Path) -> None:
    torch.save(saved, tmp_path / "state_dict.pth")
    with pytest.raises(InvalidCheckpointException, match=message):
        legacy_checkpoint.read(tmp_path)


def test_a_folder_without_a_checkpoint_is_an_error_that_names_the_files(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InvalidCheckpointException, match=r"state_dict\.pth.*checkpoint\.pt"):
        legacy_checkpoint.read(tmp_path)


class OfTheUser:
    ran: list[bool] = []

    def __setstate__(self, state: Any) -> None:
        self.ran.append(True)

    def __getstate__(self) -> Any:
        return {"x": 1}


@pytest.mark.parametrize("zipped", [True, False])
def test_objects_of_the_user_need_an_explicit_word_of_trust(zipped: bool, tmp_path: pathlib.Path) -> None:
    saved = {"models_state_dict": [{}], "callbacks": {"mine": {"object": OfTheUser()}}}
    torch.save(saved, tmp_path / "state_dict.pth", _use_new_zipfile_serialization=zipped)
    OfTheUser.ran.clear()
    with pytest.raises(InvalidCheckpointException, match=r"OfTheUser.*trusted=True"):
        legacy_checkpoint.read(tmp_path)
    assert OfTheUser.ran == []
    assert isinstance(legacy_checkpoint.read(tmp_path, trusted=True)["callbacks"]["mine"]["object"], OfTheUser)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_cut_short_is_refused(zipped: bool, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state_dict.pth"
    torch.save({"models_state_dict": [{"a": torch.randn(50)}]}, path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 29):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidCheckpointException):
            legacy_checkpoint.read(tmp_path)


@pytest.mark.parametrize("name", ["load_data.json", "metadata.json"])
def test_a_damaged_document_is_an_error_that_names_it(name: str, tmp_path: pathlib.Path) -> None:
    generation_038(tmp_path)
    for text in ("{", "[1]"):
        (tmp_path / name).write_text(text)
        with pytest.raises(InvalidCheckpointException, match=name):
            legacy_checkpoint.read(tmp_path)
