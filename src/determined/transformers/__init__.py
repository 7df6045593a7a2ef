"""Resolute under Hugging Face's Trainer: one callback that reports, checkpoints, stops and resumes.

Needs the transformers package, which is imported when ``DetCallback`` is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["DetCallback"]

if TYPE_CHECKING:
    from determined.transformers.callback import DetCallback
else:
    # Hidden from type checkers, so that they refuse a misspelt name instead of taking it for Any.
    def __getattr__(name):
        """Fetch the callback, or say what is missing."""
        if name not in __all__:
            raise AttributeError(f"module 'determined.transformers' has no attribute {name!r}")
        try:
            from determined.transformers.callback import DetCallback
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != "transformers":
                raise
            raise ImportError(
                "determined.transformers needs Hugging Face's packages transformers and accelerate; "
                "install them with: pip install 'resolute[transformers]'"
            ) from error
        globals()[name] = DetCallback
        return DetCallback
