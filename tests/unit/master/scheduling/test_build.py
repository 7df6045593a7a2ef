"""A policy's name becomes a policy, or one clear sentence."""

from __future__ import annotations

import pytest

from determined import errors
from determined.master.scheduling import FairShare, Fifo, Priority, build_policy


def test_ours_are_known_by_name() -> None:
    assert build_policy("fifo") == Fifo()
    assert build_policy("priority") == Priority(preemption=True)
    assert build_policy("priority", {"preemption": False}) == Priority(preemption=False)
    assert build_policy("fair_share") == FairShare()


def test_anybodys_is_imported() -> None:
    name = "determined.master.scheduling.priority:Priority"
    assert build_policy(name, {"preemption": False}) == Priority(preemption=False)


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("lottery", {}, "one of fifo, priority, fair_share, or a class of yours as module:Class"),
        ("no_such_module:Policy", {}, "cannot be imported: No module named"),
        ("determined.errors:Policy", {}, "cannot be imported: .*Policy"),
        ("determined.errors:__doc__", {}, "is not a class"),
        ("determined.errors:DeterminedError", {}, "has no method line"),
        ("fifo", {"preemption": True}, "does not take these options: .*preemption"),
    ],
)
def test_what_is_no_policy_is_refused(kind: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(errors.InvalidConfigurationException, match=sentence):
        build_policy(kind, options)
