"""Whether a trial that came to a bad end is started again, and on which machines not."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from determined.master.records import Allocation, Experiment, Trial
from determined.wire.outcome import Ending, Outcome

# The same crash so many times in a row, with nothing gained in between, will come again.
SAME_CRASHES = 3
_RETRIED = (Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.LOST)
_TRACEBACK = "Traceback (most recent call last)"
_ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What an ending means for the next attempt; ``final`` says why there is none, and is empty if there may be one."""

    final: str
    crashes: int  # how many times in a row it was the same
    labels: list[str]
    excluded_nodes: list[str]


def judge(
    experiment: Experiment, trial: Trial, allocation: Allocation, ending: Ending, machines: Collection[str]
) -> Verdict:
    """What an ending means. ``machines`` are those of the pool; none if they are not known."""
    labels = _united(trial.log_labels, ending.policies)
    excluded = _united(trial.excluded_nodes)
    crashes = _same_crashes(trial, allocation, ending)
    if ending.outcome not in _RETRIED:
        return Verdict("", crashes, labels, excluded)
    found = {name: action for name, action in _actions(experiment.config) if name in ending.policies}
    final = ""
    for name, action in found.items():
        if action == "exclude_node":
            nodes = _nodes(allocation, ending)
            excluded = _united(excluded, nodes)
            if machines and not {*machines} - {*excluded}:
                where = " and ".join(nodes)
                final = f"its log policy {name!r} keeps it off {where}, and the pool has no other machine"
    for name, action in found.items():
        if action == "cancel_retries" and ending.outcome is not Outcome.LOST:
            final = f"its log policy {name!r} says so"
    if not final and crashes >= SAME_CRASHES:
        final = f"the same error ended it {crashes} times in a row, and it got no further in between"
    return Verdict(final, crashes, labels, excluded)


def _actions(config: Mapping[str, Any]) -> Iterable[tuple[str, str | None]]:
    """The policies by the names that endings have for them."""
    for policy in config.get("log_policies") or ():
        if policy.get("pattern") is not None:
            yield policy.get("name") or policy["pattern"], policy.get("action")


def _nodes(allocation: Allocation, ending: Ending) -> list[str]:
    """The machine that is meant: the one on which a rank failed first, if that is known."""
    nodes = [*allocation.placement]
    if len(nodes) > 1 and ending.culprit is not None and allocation.slots:
        return nodes[ending.culprit * len(nodes) // allocation.slots :][:1] or nodes
    return nodes


def _same_crashes(trial: Trial, allocation: Allocation, ending: Ending) -> int:
    """How many times in a row it has now ended in the same way, where it had begun; 0 if nobody can be certain."""
    error = _essence(ending.detail)
    if ending.outcome is not Outcome.FAILED or not error:
        return 0
    has_gained = (trial.latest_checkpoint or trial.source_checkpoint) != allocation.from_checkpoint
    if has_gained or trial.crashes == 0 or error != _essence(trial.error or ""):
        return 0 if has_gained else 1
    return trial.crashes + 1


def _essence(text: str) -> str:
    """A traceback, without what is different every time."""
    _, found, rest = text.rpartition(_TRACEBACK)
    return _ADDRESS.sub("0x", rest).strip() if found else ""


def _united(*lists: Iterable[str] | None) -> list[str]:
    return [*dict.fromkeys(name for names in lists for name in names or ())]
