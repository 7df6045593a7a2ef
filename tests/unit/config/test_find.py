"""Which config a local run of a script uses."""

from __future__ import annotations

import pathlib

import pytest

from determined.config import find

CONFIG = "entrypoint: {}\nhyperparameters: {{lr: 1}}\n"


def write(folder: pathlib.Path, name: str, text: str) -> pathlib.Path:
    path = folder / name
    path.write_text(text)
    return path


def test_one_named_by_hand_counts_first_and_is_not_judged(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "const.yaml", CONFIG.format("python3 train.py"))
    assert find.beside(tmp_path, ["train.py"], "other.yaml") == pathlib.Path("other.yaml")
    assert find.beside(tmp_path, ["train.py"], '{"name": "x"}') == '{"name": "x"}'
    assert find.beside(tmp_path, ["train.py"], "name: x\ndebug: true\n") == "name: x\ndebug: true\n"


@pytest.mark.parametrize("form", ["two words", "one word"])
def test_an_option_of_the_script_counts_if_it_names_an_experiment_config(tmp_path: pathlib.Path, form: str) -> None:
    named = write(tmp_path, "mine.yaml", CONFIG.format("anything"))
    write(tmp_path, "const.yaml", CONFIG.format("python3 train.py"))
    option = ["--config", str(named)] if form == "two words" else [f"--config={named}"]
    assert find.beside(tmp_path, ["train.py", "--lr", "3", *option], None) == named


@pytest.mark.parametrize("text", ["model: {depth: 3}\n", "- a\n", "a: [", None])
def test_an_option_that_is_the_script_s_own_affair_is_left_alone(tmp_path: pathlib.Path, text: str | None) -> None:
    named = tmp_path / "model.yaml"
    if text is not None:
        named.write_text(text)
    assert find.beside(tmp_path, ["train.py", "--config", str(named)], None) is None


@pytest.mark.parametrize(
    "entrypoint",
    [
        "python3 train.py",
        "python3 ./train.py --x 1",
        "[python3, train.py]",
        "train:MyTrial",
        "python3 -m determined.launch.torch_distributed -- python3 train.py",
        "python3 -m determined.launch.torch_distributed --trial train:MyTrial",
        "python3 -m train",
        "cd sub && python3 'train.py'",
    ],
)
def test_a_config_beside_the_script_that_starts_it_is_found(tmp_path: pathlib.Path, entrypoint: str) -> None:
    path = write(tmp_path, "experiment.yaml", CONFIG.format(entrypoint))
    write(tmp_path, "other.yaml", CONFIG.format("python3 evaluate.py"))
    write(tmp_path, "docker.yaml", "services: {train.py: 1}\n")
    assert find.beside(tmp_path, ["/somewhere/train.py"], None) == path


@pytest.mark.parametrize("entrypoint", ["python3 my_train.py", "train_all:T", "python3 train.pyc", "pretrain:T"])
def test_a_config_of_another_script_is_not(tmp_path: pathlib.Path, entrypoint: str) -> None:
    write(tmp_path, "experiment.yaml", CONFIG.format(entrypoint))
    assert find.beside(tmp_path, ["train.py"], None) is None


def test_the_old_name_of_the_entrypoint_is_understood(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "grid.yml", "entrypoint_script: python3 train.py\n")
    assert find.beside(tmp_path, ["train.py"], None) == path


def test_of_several_const_yaml_counts(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "adaptive.yaml", CONFIG.format("python3 train.py"))
    const = write(tmp_path, "const.yaml", CONFIG.format("python3 train.py"))
    assert find.look(tmp_path, ["train.py"], None) == find.Found(const)


def test_of_several_others_none_counts_and_they_are_listed(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "b.yaml", CONFIG.format("python3 train.py"))
    write(tmp_path, "a.yaml", CONFIG.format("train:T"))
    found = find.look(tmp_path, ["train.py"], None)
    assert found.source is None
    assert found.notices == (
        "several configs start train.py (a.yaml, b.yaml), so none is used; name one with DET_EXPERIMENT_CONFIG=a.yaml",
    )


def test_without_a_script_or_a_folder_there_is_none(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "const.yaml", CONFIG.format("python3 train.py"))
    assert find.beside(tmp_path, [], None) is None
    assert find.beside(tmp_path, ["-c"], None) is None
    assert find.beside(tmp_path, [""], None) is None
    assert find.beside(tmp_path / "absent", ["train.py"], None) is None


def test_a_file_nobody_named_is_never_complained_about(tmp_path: pathlib.Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    write(tmp_path, "broken.yaml", "a: [")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
    assert find.look(tmp_path, ["train.py"], None) == find.Found(None)
