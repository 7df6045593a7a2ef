"""Keeps torch._dynamo, half of PyTorch's start-up time, out of a process until something needs it.

The first optimizer imports it (some 800 modules, about a second) for two calls that do nothing outside torch.compile.
A stand-in answers those two calls and becomes the real module at the first other use.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_NAME = "torch._dynamo"
# First and last version that tests/unit/pytorch/test_startup.py was run with; widen it only after running that with
# another. Any other version gets no stand-in and starts as slowly as ever.
_KNOWN = ((2, 13), (2, 13))
# These may use the stand-in. They look it up anew at each use, so that none of them keeps a no-op for ever.
_OPTIMIZER = "torch.optim.optimizer"
_DISABLE = "torch._compile"
_PROCESS_GROUPS = "torch.distributed.distributed_c10d"

_swapping = threading.Lock()


def defer_dynamo(enabled: bool = True) -> bool:
    """Put the stand-in in the place of torch._dynamo; return whether it is there.

    Does nothing when not `enabled`, when torch._dynamo is loaded already, or with a torch it was not tried with. Safe
    to call at any time and more than once.
    """
    import torch

    present = sys.modules.get(_NAME)
    if present is not None:
        return type(present) is _StandIn
    if not enabled or not _is_known(torch.__version__):
        return False
    spec = importlib.util.find_spec(_NAME)
    if spec is None or spec.origin is None:
        return False
    sys.modules[_NAME] = _StandIn(spec)
    sys.meta_path.insert(0, _Finder())
    return True


def _is_known(version: str) -> bool:
    try:
        major, minor = (int(part) for part in version.split("+")[0].split(".")[:2])
    except ValueError:
        return False
    return _KNOWN[0] <= (major, minor) <= _KNOWN[1]


class _StandIn(ModuleType):
    """torch._dynamo until it is needed."""

    def __init__(self, spec: importlib.machinery.ModuleSpec) -> None:
        super().__init__(_NAME)
        # What importlib and inspect ask of every module: looking through sys.modules must not load the real one.
        self.__dict__.update(
            __file__=spec.origin,
            __path__=list(spec.submodule_search_locations or ()),
            __package__=_NAME,
            __spec__=spec,
            __loader__=spec.loader,
            _disabled=[],
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        if sys.modules.get(_NAME) is self:
            asker = sys._getframe(1).f_globals.get("__name__")
            if asker == _OPTIMIZER and name == "graph_break":
                return _do_nothing
            if asker == _DISABLE and name == "disable":
                return self._leave_enabled
            if asker == _PROCESS_GROUPS and name == "trace_rules":
                return _NothingCached
        return getattr(_load(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            setattr(_load(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_load(), name)

    def __dir__(self) -> list[str]:
        return dir(_load())

    def _leave_enabled(self, fn: Callable[..., Any], *arguments: Any, **keywords: Any) -> Callable[..., Any]:
        """torch keeps the answer on the function; it is taken away again when the real module is there to give one."""
        self.__dict__["_disabled"].append(fn)
        return fn

    def forget_answers(self) -> None:
        for fn in self.__dict__["_disabled"]:
            fn.__dict__.pop("__dynamo_disable", None)
        self.__dict__["_disabled"].clear()


class _NothingCached:
    """Stands for torch._dynamo.trace_rules: there is nothing to clear while nothing was compiled."""

    @staticmethod
    def clear_lru_cache() -> None:
        pass


def _do_nothing(*arguments: Any, **keywords: Any) -> None:
    pass


def _load() -> ModuleType:
    """Return the real torch._dynamo, importing it in the place of the stand-in if that is still there."""
    # The lock is for the swap alone. Held during the import it could meet the import system's own locks crosswise.
    with _swapping:
        stand_in = sys.modules.get(_NAME)
        if isinstance(stand_in, _StandIn):
            finders = [finder for finder in sys.meta_path if type(finder) is _Finder]
            for finder in finders:
                sys.meta_path.remove(finder)
            del sys.modules[_NAME]
            sys.modules["torch"].__dict__.pop("_dynamo", None)
    if not isinstance(stand_in, _StandIn):
        return importlib.import_module(_NAME)
    try:
        real = importlib.import_module(_NAME)
    except BaseException:
        # As before, so that the next use raises the same error instead of another one.
        sys.modules[_NAME] = stand_in
        sys.meta_path[:0] = finders
        raise
    stand_in.forget_answers()
    return real


class _Finder(importlib.abc.MetaPathFinder):
    """Sees `import torch._dynamo.something` and loads the real package first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{_NAME}."):
            return None
        _load()
        module = sys.modules.get(fullname)
        if module is None:
            return None  # the package did not import it itself: the usual finders go on
        # It did: hand that module over, for the import system would otherwise run its file a second time.
        return importlib.machinery.ModuleSpec(fullname, _AlreadyLoaded(module))


class _AlreadyLoaded(importlib.abc.Loader):
    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
