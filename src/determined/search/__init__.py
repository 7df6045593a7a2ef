"""Searches over hyperparameters: pure, seeded, and their state is data.

>>> from determined import config, search
>>> asked = config.load({"hyperparameters": {"lr": {"type": "log", "minval": -4, "maxval": -1}}})
>>> [action] = search.build_method(asked, seed=1).start()
>>> action.trial, sorted(action.hparams)
(0, ['lr'])
"""

from __future__ import annotations

from determined.search.build import build_method, is_smaller_better, max_length, metric_of
from determined.search.method import (
    Action,
    Create,
    Exit,
    Extend,
    Finish,
    SearchMethod,
    Stop,
    action_as_data,
    action_from_data,
    pick_metric,
)
from determined.search.space import Space

__all__ = [
    "Action",
    "Create",
    "Exit",
    "Extend",
    "Finish",
    "SearchMethod",
    "Space",
    "Stop",
    "action_as_data",
    "action_from_data",
    "build_method",
    "is_smaller_better",
    "max_length",
    "metric_of",
    "pick_metric",
]
