"""What ends a script is shown with the line of the user's own that led to it."""

from __future__ import annotations

import pathlib
import runpy

import pytest

from determined.core import tracebacks


def said_of(folder: pathlib.Path, script: str) -> str:
    path = folder / "script.py"
    path.write_text(script)
    with pytest.raises(Exception) as caught:
        runpy.run_path(str(path))
    return tracebacks.describe(caught.value)


def test_an_error_of_ours_names_the_users_line_also_through_pythons_own(tmp_path: pathlib.Path) -> None:
    said = said_of(
        tmp_path,
        "import contextlib\nfrom determined.storage import FolderStorage\n"
        "with contextlib.ExitStack() as stack:\n"
        "    stack.enter_context(FolderStorage('/nowhere').reading('00000000-0000-0000-0000-000000000000'))\n",
    )
    first, second = said.splitlines()
    assert first.startswith("error: there is no checkpoint 00000000")
    assert second.startswith(f"  at {tmp_path / 'script.py'}, line 4: stack.enter_context(")


def test_an_error_of_theirs_is_a_traceback_without_our_frames(tmp_path: pathlib.Path) -> None:
    said = said_of(tmp_path, "import json\njson.loads('{')\n")
    assert said.startswith("Traceback (most recent call last):\n")
    assert "<frozen" not in said  # the way into their script
    assert 'script.py", line 2' in said and "json.decoder.JSONDecodeError" in said
