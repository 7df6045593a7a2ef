"""docs/reference/cli.md is what the commands say of themselves."""

from __future__ import annotations

import importlib.util

from tests.docs import pages


def test_the_page_is_current() -> None:
    path = pages.ROOT / "docs" / "reference" / "generate_cli.py"
    spec = importlib.util.spec_from_file_location("generate_cli", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (path.parent / "cli.md").read_text() == module.page(), "run: python docs/reference/generate_cli.py"
