"""Which checkpoints are kept. Pure."""

from __future__ import annotations

import collections
import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple


class Policy(NamedTuple):
    """How many checkpoints are kept: the best of the experiment, the best and the latest of each trial."""

    save_experiment_best: int = 0
    save_trial_best: int = 1
    save_trial_latest: int = 1


class Kept(NamedTuple):
    """A checkpoint that may be kept. ``metric`` is the validation at exactly its steps; None if there was none."""

    uuid: str
    trial_id: int | None
    steps: int
    metric: float | None
    reported_at: float = 0.0


def keep(
    checkpoints: Sequence[Kept], policy: Policy, smaller_is_better: bool, referenced: Collection[str] = ()
) -> set[str]:
    """The uuids of those that are kept: the union of what each part of the policy keeps, and all that is referenced.

    A checkpoint without a validation can be among the latest of its trial, not among the best; so can one whose metric
    is NaN. Of equally good ones the earlier is the better.
    """
    kept = {checkpoint.uuid for checkpoint in checkpoints if checkpoint.uuid in referenced}
    kept |= _best(checkpoints, policy.save_experiment_best, smaller_is_better)
    of_trial: dict[int | None, list[Kept]] = collections.defaultdict(list)
    for checkpoint in checkpoints:
        of_trial[checkpoint.trial_id].append(checkpoint)
    for its_own in of_trial.values():
        kept |= _best(its_own, policy.save_trial_best, smaller_is_better)
        kept |= _latest(its_own, policy.save_trial_latest)
    return kept


def _best(checkpoints: Iterable[Kept], count: int, smaller_is_better: bool) -> set[str]:
    if not count:
        return set()
    sign = 1.0 if smaller_is_better else -1.0
    judged = [
        (sign * checkpoint.metric, checkpoint.reported_at, checkpoint.uuid)
        for checkpoint in checkpoints
        if checkpoint.metric is not None and not math.isnan(checkpoint.metric)
    ]
    return {uuid for _, _, uuid in sorted(judged)[:count]}


def _latest(checkpoints: Iterable[Kept], count: int) -> set[str]:
    if not count:
        return set()
    in_order = sorted((checkpoint.steps, checkpoint.reported_at, checkpoint.uuid) for checkpoint in checkpoints)
    return {uuid for _, _, uuid in in_order[-count:]}
