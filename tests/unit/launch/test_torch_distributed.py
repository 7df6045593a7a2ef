"""The launcher understands torchrun's usual words, and says in one sentence what it does not."""

from __future__ import annotations

import pathlib
import sys

import pytest

from determined.launch import torch_distributed
from determined.launch.torch_distributed import UsageError, make_spec, understand
from determined.wire.node_spec import NodeSpec


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "checkpoint").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("train.py --nproc 3", ["train.py", "--nproc", "3"]),
        ("--nproc 2 -- train.py -x", ["train.py", "-x"]),
        ("python3 train.py", ["train.py"]),
        ("-m package.module a", ["-m", "package.module", "a"]),
        ("--nproc-per-node=2 --standalone --trial model_def:Trial", ["-m", "determined.pytorch", "model_def:Trial"]),
        ("--nnodes 1:1 -- --trial a.b:C", ["-m", "determined.pytorch", "a.b:C"]),
    ],
)
def test_what_to_run(words: str, command: list[str]) -> None:
    assert understand(words.split()).command == [sys.executable, *command]


def test_any_program_may_be_run() -> None:
    assert understand(["sh", "-c", "true"]).command == ["sh", "-c", "true"]


@pytest.mark.parametrize(
    ("words", "resume"),
    [
        ("train.py", None),
        ("--resume train.py", "latest"),
        ("--resume latest train.py", "latest"),
        ("--resume=abcd train.py", "abcd"),
        ("--resume 3e9a2f5c-0d7c-4d7a-9d5e-0f7b9f0b8a11 train.py", "3e9a2f5c-0d7c-4d7a-9d5e-0f7b9f0b8a11"),
        ("--resume checkpoint train.py", "checkpoint"),
    ],
)
def test_what_to_resume(words: str, resume: str | None) -> None:
    assert understand(words.split()).resume == resume


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "say what to train"),
        ("--nproc 2", "say what to train"),
        ("--nproc", "--nproc needs a value"),
        ("--nproc 0 train.py", "--nproc takes a whole number from 1 up, not 0"),
        ("--nproc two train.py", "--nproc takes a whole number from 1 up, not two"),
        ("--nporc 2 train.py", "did you mean --nproc?"),
        ("--rdzv-endpoint=x train.py", "--master_addr and --master_port"),
        ("--trial a:B train.py", "not both"),
        ("-- --trial a:B train.py", "not both"),
        ("--trial a", "--trial takes MODULE:CLASS"),
        ("-- --trial", "--trial needs the class"),
        ("missing.py", "there is no script missing.py"),
        ("no-such-program", "neither a script nor a program"),
        ("--nnodes 2 train.py", "--master_addr and --master_port"),
        ("--nnodes 2 --node_rank 2 train.py", "count from 0"),
        ("--master_port 99999 train.py", "from 0 to 65535"),
        ("--hang-seconds 0 train.py", "--hang-seconds takes a number of seconds above 0"),
        ("-m", "-m needs the module"),
    ],
)
def test_usage_errors_are_one_clear_sentence(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError) as caught:
        understand(words.split())
    assert message in str(caught.value)
    assert torch_distributed.main(words.split()) == 2
    assert capsys.readouterr().err.startswith(f"error: {caught.value}\n")


def test_a_new_run_gets_a_folder_of_its_own(folder: pathlib.Path, runs_dir: pathlib.Path) -> None:
    environ = {"DET_RUNS_DIR": str(runs_dir), "CUDA_VISIBLE_DEVICES": ""}
    wanted = understand(["--max-restarts", "2", "--grace_seconds", "7", "train.py"])
    spec, another = make_spec(wanted, environ), make_spec(wanted, environ)
    assert (spec.name, spec.slots, spec.grace_seconds, spec.code_folder) == ("train", 1, 7.0, folder)
    assert spec.run_folder == runs_dir / f"train-{spec.run_id}" != another.run_folder
    assert "OMP_NUM_THREADS" not in spec.environment  # One rank computes as a plain script would.


def test_ranks_share_the_cores_unless_told_otherwise(runs_dir: pathlib.Path) -> None:
    wanted = understand(["--nproc", "64", "train.py"])
    assert make_spec(wanted, {"DET_RUNS_DIR": str(runs_dir)}).environment == {"OMP_NUM_THREADS": "1"}
    assert make_spec(wanted, {"DET_RUNS_DIR": str(runs_dir), "OMP_NUM_THREADS": "4"}).environment == {}


def test_one_rank_per_gpu_is_the_default(runs_dir: pathlib.Path) -> None:
    environ = {"DET_RUNS_DIR": str(runs_dir), "CUDA_VISIBLE_DEVICES": "0,1,3"}
    assert make_spec(understand(["train.py"]), environ).slots == 3


def test_inside_an_allocation_its_document_counts(folder: pathlib.Path) -> None:
    outer = NodeSpec(name="n", run_id="r", run_folder=folder / "r", code_folder=folder, slots=2, entrypoint=["x"])
    outer.write(folder / "spec.json")
    spec = make_spec(understand(["train.py"]), {"DET_NODE_SPEC": str(folder / "spec.json"), "OMP_NUM_THREADS": "1"})
    assert spec == outer.model_copy(update={"entrypoint": [sys.executable, "train.py"]})


def test_the_config_that_names_the_script_goes_with_it(folder: pathlib.Path, runs_dir: pathlib.Path) -> None:
    text = (
        "name: digits\nentrypoint: python3 train.py\nhyperparameters: {lr: 0.1}\n"
        "searcher: {name: single, metric: loss, max_length: {batches: 1}}\n"
    )
    (folder / "const.yaml").write_text(text)
    spec = make_spec(understand(["train.py"]), {"DET_RUNS_DIR": str(runs_dir)})
    assert spec.name == "digits" and spec.config is not None
    assert spec.config["searcher"]["metric"] == "loss"


def test_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert torch_distributed.main(["--help"]) == 0
    assert "--hang-seconds" in capsys.readouterr().out
