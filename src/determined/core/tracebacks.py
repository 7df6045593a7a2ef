"""What a user sees when their script ends by an exception: their own lines, and one sentence where we raised it."""

from __future__ import annotations

import os
import pathlib
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable

_OURS = str(pathlib.Path(__file__).parent.parent) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})

Hook = Callable[[type[BaseException], BaseException, "types.TracebackType | None"], object]


def install() -> None:
    """Show exceptions that end the process this way, unless somebody else has taken that over already."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show


def show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    if not isinstance(error, Exception):
        sys.__excepthook__(kind, error, trace)
        return
    print(describe(error), file=sys.stderr, end="")


def describe(error: BaseException) -> str:
    """Our own errors as one sentence with the user's line; anything else as a traceback without our frames."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if _is_users(frame.filename)]
    if frames and frames[-1].filename.startswith(_OURS):
        place = users[-1] if users else None
        where = f"  at {place.filename}, line {place.lineno}: {place.line}\n" if place is not None else ""
        return f"error: {error}\n{where}"
    said = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = said
    while link is not None:
        kept = [frame for frame in link.stack if not frame.filename.startswith((_OURS, "<frozen "))]
        if kept:
            link.stack = traceback.StackSummary.from_list(kept)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "".join(said.format())


def _is_users(file: str) -> bool:
    """Whether a file is neither ours nor Python's own."""
    if file.startswith((_OURS, "<frozen ")):
        return False
    return not file.startswith(_STANDARD) or file.startswith(_INSTALLED)
