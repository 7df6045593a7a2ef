"""Target: the validation metric that a search (or a person) is after, and what counts as better."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger("determined.pytorch")

_USUAL = ("validation_loss", "val_loss", "loss")
# Words in the names of metrics that everybody wants larger.
_LARGER_IS_BETTER = frozenset(
    ("acc", "accuracy", "auc", "auroc", "bleu", "dice", "f1", "iou", "miou", "precision", "r2", "recall", "reward")
    + ("rouge", "top1", "top5")
)


@dataclasses.dataclass
class Target:
    """Its name, when the configuration gives one; otherwise it is chosen from the first validation."""

    metric: str | None = None
    smaller_is_better: bool = True
    is_told: bool = True  # whether somebody has said what is better
    has_warned: bool = False

    @staticmethod
    def of(config: Mapping[str, Any] | None) -> Target:
        searcher = (config or {}).get("searcher") or {}
        is_told = "smaller_is_better" in searcher
        return Target(searcher.get("metric"), bool(searcher.get("smaller_is_better", True)), is_told)

    def is_better(self, found: Mapping[str, Any], best: float | None) -> bool:
        """Whether a validation is strictly better than the best so far, or the first that counts."""
        value = self.value(found)
        if value is None:
            self._warn_of_choice(found)
            return True  # nothing to compare by: keep every checkpoint
        if math.isnan(value):
            return False
        if best is None or math.isnan(best):
            return True
        return value < best if self.smaller_is_better else value > best

    def name(self, found: Mapping[str, Any]) -> str | None:
        """The metric's name; chosen from this validation when it is not known yet."""
        if self.metric is None:
            self.metric = self._choose(found)
            if self.metric is not None and not self.is_told:
                self.smaller_is_better = _LARGER_IS_BETTER.isdisjoint(re.split(r"[^a-z0-9]+", self.metric.lower()))
        return self.metric

    def value(self, found: Mapping[str, Any]) -> float | None:
        """The metric's value in a validation; None when no metric was named and none stands out."""
        metric = self.name(found)
        if metric is None:
            return None
        if metric not in found:
            raise RuntimeError(
                f"the searcher's metric {self.metric!r} is not among the validation metrics "
                f"({', '.join(sorted(map(str, found))) or 'none'}); return it from evaluate_batch, or change "
                "searcher.metric"
            )
        value = found[metric]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RuntimeError(f"the searcher's metric {self.metric!r} must be one number, not {value!r}")
        return float(value)

    def _choose(self, found: Mapping[str, Any]) -> str | None:
        numbers = _numbers(found)
        for usual in _USUAL:
            if usual in numbers:
                return usual
        return numbers[0] if len(numbers) == 1 else None

    def _warn_of_choice(self, found: Mapping[str, Any]) -> None:
        if not self.has_warned:
            self.has_warned = True
            logger.warning(
                "checkpoint_policy='best' cannot tell which of the validation metrics (%s) to go by, so every "
                "validation is checkpointed; name one in the experiment configuration's searcher.metric",
                ", ".join(sorted(_numbers(found))) or "none",
            )


def _numbers(found: Mapping[str, Any]) -> list[str]:
    reserved = ("batches", "epochs")
    return [name for name, value in found.items() if name not in reserved and isinstance(value, (int, float))]
