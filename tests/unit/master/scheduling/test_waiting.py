"""What people are told about a request that waits."""

from __future__ import annotations

from typing import Any

import pytest

from determined.master.scheduling import Cause, Fifo, Node, Placement, Request, Why, plan
from determined.testing.imaginary_cluster import placed


def why(request: Request, nodes: list[Node], *others: Request) -> Why:
    return plan([request, *others], nodes, Fifo()).waiting[request.id]


def me(slots: int, at: float = 5.0, **fields: Any) -> Request:
    return Request("me", fields.pop("job", "experiment 3"), slots, queued_at=at, **fields)


def holder(placement: Placement, name: str = "holder", **fields: Any) -> Request:
    return Request(name, fields.pop("job", name), placement.slots, running=placement, **fields)


ONE = [Node("x", (0, 1))]
TWO = [Node("x", (0, 1)), Node("y", (0, 1))]


@pytest.mark.parametrize(
    ("found", "cause", "text"),
    [
        (why(me(2), ONE, holder(placed("x", 0))), Cause.SLOTS, "needs 2 slots, 1 of 2 is free"),
        (
            why(me(2), TWO, holder(Placement({"x": (0,), "y": (0,)}))),
            Cause.SLOTS,
            "needs 2 slots on one machine, 2 of 4 are free, at most 1 on one machine",
        ),
        (
            why(me(4), TWO, holder(placed("x", 0))),
            Cause.SLOTS,
            "needs 4 slots on 2 machines, 2 on each, 3 of 4 are free",
        ),
        (
            why(me(1), ONE, holder(placed("x", 0)), Request("big", "big", 2)),
            Cause.KEPT,
            "needs 1 slot; 1 of 2 is free, but kept for big; 1 is before it",
        ),
        (
            why(me(2), ONE, holder(placed("x", 0, 1), stopping=True)),
            Cause.STOPPING,
            "needs 2 slots, which it gets as soon as holder has stopped",
        ),
        (
            why(me(2, max_slots=4), [Node("x", tuple(range(9)))], holder(placed("x", 0, 1, 2, 3), job="experiment 3")),
            Cause.LIMIT,
            "experiment 3 may use 4 slots (max_slots) and does",
        ),
        (
            why(me(2, max_slots=4), [Node("x", tuple(range(9)))], holder(placed("x", 0, 1, 2), job="experiment 3")),
            Cause.LIMIT,
            "experiment 3 may use 4 slots (max_slots) and uses 3; this needs 2 more",
        ),
        (
            why(me(2, max_slots=1), ONE),
            Cause.NEVER,
            "needs 2 slots, but its job may use 1 (max_slots): it can never start",
        ),
        (why(me(9), ONE), Cause.NEVER, "asks for 9 slots, there are 2: it can never start"),
        (
            why(me(4, single_node=True), TWO),
            Cause.NEVER,
            "asks for 4 slots on one machine, the largest has 2: it can never start",
        ),
        (
            why(me(3), TWO),
            Cause.NEVER,
            "asks for 3 slots, which cannot be divided equally among the machines there are: it can never start",
        ),
        (why(me(1), []), Cause.SLOTS, "needs 1 slot, and no machine that takes new work has any"),
        (why(me(0), []), Cause.PLACES, "there is no machine that takes new work"),
        (
            why(me(0), [Node("x", (), auxiliary_places=1)], Request("t", "t", 0, running=placed("x"))),
            Cause.PLACES,
            "needs no slot, but every machine has as many such tasks as it may have",
        ),
    ],
)
def test_the_sentence_says_what_is_missing(found: Why, cause: Cause, text: str) -> None:
    assert (found.cause, str(found)) == (cause, text)


def test_the_place_in_line_is_told() -> None:
    others = [Request(f"r{number}", "job", 2, queued_at=number) for number in range(3)]
    found = why(me(2), ONE, holder(placed("x", 0)), *others)
    assert found.position == 4
    assert found.text == "needs 2 slots, 1 of 2 is free; 3 are before it"
    assert (found.needs, found.free, found.total) == (2, 1, 2)


def test_many_who_stop_are_not_all_named() -> None:
    slots = tuple(range(6))
    busy = [holder(placed("x", slot), name=f"r{slot}", stopping=True) for slot in slots]
    found = why(me(6), [Node("x", slots)], *busy)
    assert found.text == "needs 6 slots, which it gets as soon as r0, r1, r2 and 3 more have stopped"
    assert len(found.waits_for) == 6


def test_all_who_wait_are_listed_in_the_order_of_the_queue() -> None:
    requests = [Request(f"r{number}", "job", number % 2, queued_at=-number) for number in range(6)]
    waiting = plan(requests, [], Fifo()).waiting
    assert list(waiting) == ["r5", "r3", "r1", "r4", "r2", "r0"]
    assert len(waiting) == 6
    assert "r9" not in waiting
