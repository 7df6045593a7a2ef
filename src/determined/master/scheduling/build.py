"""From a policy's name in the settings to the policy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, cast

from determined import errors
from determined.master.scheduling.fair_share import FairShare
from determined.master.scheduling.fifo import Fifo
from determined.master.scheduling.policy import Policy
from determined.master.scheduling.priority import Priority

POLICIES: Mapping[str, Callable[..., Policy]] = {"fifo": Fifo, "priority": Priority, "fair_share": FairShare}


def build_policy(kind: str, options: Mapping[str, Any] | None = None) -> Policy:
    """Make the policy that a pool's settings name: one of ours, or anybody's as ``module:Class``.

    Raises InvalidConfigurationException when there is no such policy or it does not take these options.
    """
    make = POLICIES.get(kind) or _import(kind)
    try:
        policy = make(**(options or {}))
    except TypeError as refused:
        raise errors.InvalidConfigurationException(f"scheduler {kind} does not take these options: {refused}") from None
    if not callable(getattr(policy, "line", None)):
        raise errors.InvalidConfigurationException(f"scheduler {kind} is not a policy: it has no method line")
    return policy


def _import(kind: str) -> Callable[..., Policy]:
    module_name, colon, class_name = kind.partition(":")
    if not colon:
        raise errors.InvalidConfigurationException(
            f"scheduler cannot be {kind!r}; it is one of {', '.join(POLICIES)}, or a class of yours as module:Class"
        )
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as missing:
        raise errors.InvalidConfigurationException(f"scheduler {kind} cannot be imported: {missing}") from None
    if not callable(found):
        raise errors.InvalidConfigurationException(f"scheduler {kind} is not a class")
    return cast("Callable[..., Policy]", found)
