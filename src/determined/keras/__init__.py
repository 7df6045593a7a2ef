"""Resolute under Keras: one callback for ``model.fit`` that reports, checkpoints, stops and resumes.

Needs the keras package (3 or later), which is imported when ``DeterminedCallback`` is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["DeterminedCallback"]

if TYPE_CHECKING:
    from determined.keras.callback import DeterminedCallback
else:
    # Hidden from type checkers, so that they refuse a misspelt name instead of taking it for Any.
    def __getattr__(name):
        """Fetch the callback, or say what is missing."""
        if name not in __all__:
            raise AttributeError(f"module 'determined.keras' has no attribute {name!r}")
        try:
            from determined.keras.callback import DeterminedCallback
        except ModuleNotFoundError as error:
            missing = (error.name or "").split(".")[0]
            if missing == "keras":
                raise ImportError(
                    "determined.keras needs the package keras; install it with: pip install 'resolute[keras]'"
                ) from error
            if missing in ("jax", "tensorflow"):
                raise ImportError(
                    f"Keras is set to compute with {missing}, which is not installed; set KERAS_BACKEND=torch to "
                    f"compute with torch, or install {missing}"
                ) from error
            raise
        globals()[name] = DeterminedCallback
        return DeterminedCallback
