"""Import modules from a folder, such as a checkpoint's code, beside others of the same names."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Union

_active = False


@contextlib.contextmanager
def import_from_path(path: Union[str, os.PathLike[str]]) -> Iterator[None]:
    """Within the block, import from ``path`` first, and as if nothing had been imported from the working folder.

    Afterwards modules that came from ``path`` are forgotten, so that code of another checkpoint may be imported under
    the same names, and what was hidden is back. Installed libraries stay the same objects. Nothing is written into
    ``path``. Not nestable and not for several threads at once.
    """
    global _active
    if _active:
        raise RuntimeError("import_from_path() does not support nesting; leave the first block before the second")
    folder = os.path.realpath(path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder {os.fspath(path)} to import from")
    _active = True
    hidden = _take_modules_from({os.path.realpath(os.getcwd()), folder})
    sys.path.insert(0, folder)
    writes_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_no_bytecode
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
        sys.path_importer_cache.pop(folder, None)
        _take_modules_from({folder})
        sys.modules.update(hidden)
        importlib.invalidate_caches()
        _active = False


def _take_modules_from(folders: set[str]) -> dict[str, ModuleType]:
    """Remove from ``sys.modules`` what was imported from an entry of ``sys.path``, and return it.

    What lies deeper below such a folder, such as the libraries of a virtual environment, is not from it.
    """
    roots = {name for name, module in list(sys.modules.items()) if "." not in name and _places(module) & folders} - {
        "__main__",
        "determined",
    }
    taken = [name for name in list(sys.modules) if name.partition(".")[0] in roots]
    return {name: sys.modules.pop(name) for name in taken}


def _places(module: ModuleType) -> set[str]:
    """The folders in which a top-level module or package was found."""
    paths = getattr(module, "__path__", None)
    try:
        if paths is not None:
            return {os.path.dirname(os.path.realpath(path)) for path in paths}
        file = getattr(module, "__file__", None)
        return {os.path.dirname(os.path.realpath(file))} if file else set()
    except Exception:
        return set()  # an odd module, made by hand: not from a folder
