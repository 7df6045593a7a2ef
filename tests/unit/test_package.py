"""The package as a whole: what importing it costs, what it offers, who imports whom."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

import pytest

import determined as det

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "determined").rglob("*.py"))

HEAVY = {"torch", "numpy", "pydantic", "rich", "typer", "click", "httpx", "yaml", "psutil", "xxhash", "typing"}


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_determined_imports_nothing_else() -> None:
    new = modules_after("import determined") - modules_after("pass")
    assert new == {"determined", "__future__"}


def test_core_comes_without_a_further_import_and_without_torch() -> None:
    loaded = modules_after("import determined as det\ndet.core.init")
    assert "determined.core" in loaded
    assert "torch" not in loaded


@pytest.mark.parametrize("name", sorted(set(det.__all__) - {"TrialContext"}))
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(det, name) is not None
    assert name in dir(det)


def test_trial_context_is_the_one_trials_are_given() -> None:
    import determined.pytorch

    assert det.TrialContext is determined.pytorch.PyTorchTrialContext


def test_units_have_the_plural_names_too() -> None:
    assert (det.Batches, det.Epochs, det.Records) == (det.Batch, det.Epoch, det.Record)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'determined' has no attribute 'Epocs'"):
        det.Epocs  # type: ignore[attr-defined]  # noqa: B018


def test_log_format_names_level_process_logger_and_message() -> None:
    assert det.LOG_FORMAT == "%(levelname)s: [%(process)d] %(name)s: %(message)s"


def test_version_is_said_once_and_installed() -> None:
    assert importlib.metadata.version("resolute") == det.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", det.__version__)


def test_det_version_needs_nothing_but_the_package() -> None:
    new = modules_after("from determined.cli.main import main\nassert main(['--version']) == 0") - modules_after("pass")
    assert not {name.split(".")[0] for name in new} & HEAVY


def test_layers_are_kept() -> None:
    command = [str(pathlib.Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_module_is_named_after_nothing() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "managers"}
    assert [path for path in SOURCES if vague & {path.stem, *path.relative_to(ROOT).parts}] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path in SOURCES if path.read_text().strip() and not path.read_text().lstrip().startswith('"""')]
    assert [path.relative_to(ROOT).as_posix() for path in silent] == []


def test_nothing_is_left_unbuilt() -> None:
    left = [path for path in SOURCES if "raise NotImplementedError" in path.read_text()]
    assert [path.relative_to(ROOT).as_posix() for path in left] == []
