from __future__ import annotations

import json
import os
import pathlib

import pytest

from determined import core, errors
from determined.transformers import resuming


def save(folder: pathlib.Path, steps: int, weights: str = "weights") -> pathlib.Path:
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": steps}))
    (folder / "model.safetensors").write_text(weights)
    return folder


def interrupted(folder: pathlib.Path) -> None:
    """A run that has kept one checkpoint."""
    with core.init(name="hf") as context:
        context.checkpoint.upload(folder, {"steps_completed": 20})


def placed(output: pathlib.Path) -> pathlib.Path:
    with core.init(name="hf", latest_checkpoint="latest") as context:
        assert context.found is not None
        return resuming.place(context, context.found, output)


def names(folder: pathlib.Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_puts_the_checkpoint_where_the_trainer_would_have_left_it(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "out"
    interrupted(save(tmp_path / "saved", 20))
    assert placed(output) == output / "checkpoint-20"
    assert names(output) == ["checkpoint-20"]
    assert names(output / "checkpoint-20") == ["model.safetensors", "trainer_state.json"]


def test_uses_a_whole_copy_that_is_there(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "out"
    copy = save(output / "checkpoint-20", 20)
    interrupted(copy)
    before = os.stat(copy / "model.safetensors").st_ino
    placed(output)
    assert os.stat(copy / "model.safetensors").st_ino == before


@pytest.mark.parametrize("harm", ["torn", "stale file", "missing file"])
def test_replaces_a_copy_that_is_not_what_was_saved(tmp_path: pathlib.Path, harm: str) -> None:
    output = tmp_path / "out"
    copy = save(output / "checkpoint-20", 20)
    interrupted(copy)
    if harm == "torn":
        (copy / "model.safetensors").write_text("weig")
    elif harm == "stale file":
        (copy / "optimizer.pt").write_text("of another run")
    else:
        (copy / "model.safetensors").unlink()
    placed(output)
    assert names(output) == ["checkpoint-20"]
    assert names(copy) == ["model.safetensors", "trainer_state.json"]
    assert (copy / "model.safetensors").read_text() == "weights"


def test_finds_the_trainers_folder_inside_a_checkpoint_of_determined(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "out"
    save(tmp_path / "saved" / "checkpoint-5", 5, "old")
    save(tmp_path / "saved" / "checkpoint-20", 20)
    interrupted(tmp_path / "saved")
    assert placed(output) == output / "checkpoint-20"
    assert (output / "checkpoint-20" / "model.safetensors").read_text() == "weights"


def test_refuses_a_checkpoint_that_the_trainer_did_not_make(tmp_path: pathlib.Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state_dict.pth").write_text("of a PyTorchTrial")
    interrupted(tmp_path / "saved")
    with pytest.raises(errors.InvalidCheckpointException, match=r"not made by Hugging Face's Trainer .*trainer_state"):
        placed(tmp_path / "out")


def test_refuses_a_damaged_checkpoint(tmp_path: pathlib.Path, runs_dir: pathlib.Path) -> None:
    interrupted(save(tmp_path / "saved", 20))
    [weights] = runs_dir.glob("*/checkpoints/*/model.safetensors")
    weights.write_text("weighty")
    with pytest.raises(errors.InvalidCheckpointException, match=r"model\.safetensors"):
        placed(tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))
