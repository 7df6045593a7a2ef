"""The API reference is what the code says, covers every public name, and its examples do what they show."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import pathlib
import re
import tokenize
import types
import warnings
from typing import Any

import pytest

from tests.docs import pages
from tests.unit import test_signatures


def load_generator() -> types.ModuleType:
    path = pages.ROOT / "docs" / "reference" / "generate_api.py"
    spec = importlib.util.spec_from_file_location("generate_api", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generator = load_generator()
CELLS = generator.cells()
EXAMPLES = [cell for cell in CELLS if cell.header not in ("[markdown]", "setting")]


def promised_output(code: str) -> list[str]:
    """The comments after print(...), and those on lines of their own directly below one."""
    lines: list[str] = []
    last_print = -1
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type != tokenize.COMMENT:
            continue
        row, is_alone = token.start[0], token.line.lstrip().startswith("#")
        belongs = _follows_print(code, row, last_print) if is_alone else "print(" in token.line
        if belongs:
            lines.append(token.string.removeprefix("#").strip())
            last_print = row
    return lines


def _follows_print(code: str, row: int, last: int) -> bool:
    above = code.splitlines()[row - 2]
    return row - 1 == last or (above.lstrip().startswith("print(") and "#" not in above)


@pytest.fixture(scope="module")
def setting() -> dict[str, Any]:
    """The names with which each example begins."""
    (cell,) = (cell for cell in CELLS if cell.header == "setting")
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(cell.code, "api_examples.py", "exec"), names)
    return names


@pytest.mark.parametrize("cell", EXAMPLES, ids=lambda cell: str(cell.names[0]))
def test_example_prints_what_it_shows(
    cell: Any, setting: dict[str, Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environment, printed = dict(os.environ), io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            # What is deprecated is documented, too.
            warnings.simplefilter("ignore", FutureWarning)
            exec(compile(cell.code, f"example of {cell.names[0]}", "exec"), dict(setting))
    finally:
        os.environ.clear()
        os.environ.update(environment)
    promised = promised_output(cell.code)
    shown = [line.strip() for line in printed.getvalue().splitlines() if line]
    assert len(shown) == len(promised), f"it printed {shown}"
    for wanted, line in zip(promised, shown):
        assert re.fullmatch(".*".join(map(re.escape, wanted.split("..."))), line), f"{line!r} is not {wanted!r}"


def test_the_page_is_current() -> None:
    assert generator.PAGE.read_text() == generator.page(), "run `python docs/reference/generate_api.py`"


def test_every_promised_name_is_on_the_page() -> None:
    documented = {name for cell in EXAMPLES for name in cell.names}
    promised = {*test_signatures.SIGNATURES, *test_signatures.PROPERTIES, *test_signatures.OURS}
    promised |= {f"errors.{name}" for name in test_signatures.ERRORS}
    promised |= {name for name in test_signatures.VALUES if not _is_a_part(name)}
    # A NamedTuple's fields are shown where it is made; `with`, `len` and iteration, where they are used.
    is_shown = ("det.TrialInfo.", "det.RendezvousInfo.", "det.ResourcesInfo.")
    promised = {name for name in promised if not name.startswith(is_shown) and not name.endswith("__")}
    assert sorted(promised - documented) == []


def _is_a_part(name: str) -> bool:
    """Whether a name is a module or the member of an enum: documented with what it is part of."""
    return name in ("det.core", "det.errors", "det.pytorch") or name.count(".") > 1


def test_a_promise_is_compared_as_it_stands() -> None:
    code = 'print(1)  # 1\nx = 2  # not shown\nprint(x)\n# 2\n# and more ...\n\n# a remark\nprint("# no comment")\n'
    assert promised_output(code) == ["1", "2", "and more ..."]
