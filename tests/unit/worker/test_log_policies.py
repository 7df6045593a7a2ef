"""What log policies find, what they leave alone, and patterns that never end."""

from __future__ import annotations

import time

import pytest

from determined.worker.log_policies import LogPolicies


def test_what_is_found_is_named_once_and_in_order() -> None:
    policies = LogPolicies([{"name": "oom", "pattern": ".*out of memory.*"}, {"name": None, "pattern": "x+y$"}])
    assert policies.look([b"all is well", b"and fine"]) == []
    assert policies.look([b"so: xxy", b"CUDA out of memory. Tried to"]) == [
        "log policy 'oom' applies",
        "log policy 'x+y$' applies",
    ]
    assert policies.look([b"out of memory"]) == []
    assert policies.matched == ["oom", "x+y$"]


def test_one_without_a_pattern_is_switched_off() -> None:
    policies = LogPolicies([{"name": "CUDA OOM", "pattern": None}])
    assert policies.look([b"CUDA OOM"]) == [] == policies.matched


def test_what_is_no_text_and_very_long_lines_are_looked_at_as_far_as_that_makes_sense() -> None:
    policies = LogPolicies([{"pattern": "end"}, {"pattern": "é"}])
    assert policies.look([b"\xff\x00" * 10_000 + b"end"]) == []
    assert policies.look(["\x00é".encode()]) == ["log policy 'é' applies"]


@pytest.mark.parametrize(
    ("pattern", "line", "is_found"),
    [
        (".*a.*", b"ba", True),
        (".*?a", b"ba", True),
        (r"a\.*", b"a", True),
        (r"a\.*", b"b", False),
        (".*a|b.*", b"b", True),
        (".*", b"", True),
        ("[.*]x[.*]", b".x*", True),
    ],
)
def test_what_stands_around_a_pattern_changes_nothing(pattern: str, line: bytes, is_found: bool) -> None:
    assert bool(LogPolicies([{"pattern": pattern}]).look([line])) is is_found


def test_a_pattern_that_never_ends_is_given_up_and_the_others_are_not() -> None:
    policies = LogPolicies([{"name": "slow", "pattern": "(a+)+$"}, {"name": "quick", "pattern": "b"}])
    began = time.process_time()
    assert policies.look([b"a" * 60 + b"b"]) == [
        "log policy 'slow' is not looked for any more: its pattern takes too long",
        "log policy 'quick' applies",
    ]
    assert time.process_time() - began < 5.0
    assert policies.matched == ["quick"]


def test_looking_costs_little() -> None:
    policies = LogPolicies([{"pattern": ".*CUDA out of memory.*"}, {"pattern": ".*uncorrectable ECC error.*"}])
    lines = [b"step 1 of 1000, loss 0.123, and more of what a training says about itself " * 3] * 10_000
    began = time.process_time()
    assert policies.look(lines) == []
    assert time.process_time() - began < 1.0
