"""The contenders: one file each, written as their documentation tells people to.

Each has functions ``train(work, pace)`` that call ``pace.mark()`` before every batch whose
number is a multiple of ``work.case.chunk``.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from bench.work import Work

Train = Callable[["Work", "Marks"], None]


class Marks(Protocol):
    """Whoever holds the clock."""

    def mark(self) -> None:
        """Called before every batch whose number is a multiple of the case's chunk."""


class Contender(NamedTuple):
    name: str
    title: str
    needs: str  # the package that must be installed
    function: str = "train"

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.needs) is not None

    def load(self) -> Train:
        module = importlib.import_module(f"bench.contenders.{self.name.partition('-')[0]}")
        train: Train = getattr(module, self.function)
        return train


OURS = "resolute"
ALL = {
    contender.name: contender
    for contender in (
        Contender("bare", "bare", "torch"),
        Contender(OURS, "Resolute", "determined"),
        Contender("fabric", "Fabric", "lightning"),
        Contender("accelerate", "accelerate", "accelerate"),
        Contender("lightning", "Lightning, lean", "lightning"),
        Contender("lightning-defaults", "Lightning", "lightning", "train_with_defaults"),
        Contender("hf_trainer", "HF Trainer, lean", "transformers"),
        Contender("hf_trainer-defaults", "HF Trainer", "transformers", "train_with_defaults"),
    )
}
