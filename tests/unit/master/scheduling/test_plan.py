"""What one pass decides, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from determined.master.scheduling import (
    FairShare,
    Fifo,
    Node,
    Placement,
    Plan,
    Policy,
    Priority,
    Request,
    Reservation,
    plan,
)
from determined.testing.imaginary_cluster import placed


def node(node_id: str, slots: int, **fields: Any) -> Node:
    return Node(node_id, tuple(range(slots)), **fields)


def queued(request_id: str, slots: int, at: float = 0.0, **fields: Any) -> Request:
    return Request(request_id, fields.pop("job", request_id), slots, queued_at=at, **fields)


def running(request_id: str, placement: Placement, at: float = 0.0, **fields: Any) -> Request:
    job = fields.pop("job", request_id)
    return Request(request_id, job, placement.slots, queued_at=at, running=placement, **fields)


def started(made: Plan) -> dict[str, dict[str, tuple[int, ...]]]:
    return {start.id: dict(start.placement) for start in made.starts}


def stopped(made: Plan) -> list[str]:
    return [stop.id for stop in made.stops]


ALL: list[Policy] = [Fifo(), Priority(), Priority(preemption=False), FairShare(), FairShare(preemption=False)]


@pytest.mark.parametrize("policy", ALL)
class TestPlaces:
    def test_a_gang_packs_where_it_leaves_least(self, policy: Policy) -> None:
        made = plan([queued("a", 2)], [node("x", 8), node("y", 3), node("z", 2)], policy)
        assert started(made) == {"a": {"z": (0, 1)}}

    def test_a_gang_is_not_divided_while_one_machine_is_large_enough(self, policy: Policy) -> None:
        busy = [running("r", Placement({"x": (0, 1), "y": (0, 1)}))]
        made = plan([*busy, queued("a", 4)], [node("x", 4), node("y", 4)], policy)
        assert not made.starts

    def test_a_gang_larger_than_any_machine_takes_equal_parts_of_as_few_as_possible(self, policy: Policy) -> None:
        made = plan([queued("a", 8)], [node("x", 4), node("y", 8 // 2), node("z", 2)], policy)
        assert started(made) == {"a": {"x": (0, 1, 2, 3), "y": (0, 1, 2, 3)}}
        made = plan([queued("a", 6)], [node("x", 4), node("y", 4), node("z", 3)], policy)
        assert started(made) == {"a": {"x": (0, 1, 2), "z": (0, 1, 2)}}

    def test_all_of_a_gang_or_nothing(self, policy: Policy) -> None:
        made = plan([running("r", placed("x", 0)), queued("a", 8)], [node("x", 4), node("y", 4)], policy)
        assert not made.starts

    def test_single_node_means_it(self, policy: Policy) -> None:
        made = plan([queued("a", 8, single_node=True)], [node("x", 4), node("y", 4)], policy)
        assert not made.starts
        assert made.reservation is None

    def test_nothing_is_placed_where_it_may_not_be(self, policy: Policy) -> None:
        off_x = frozenset({"x"})
        nodes = [node("x", 2), node("y", 4), node("z", 4)]
        assert started(plan([queued("a", 2, excluded=off_x)], nodes, policy)) == {"a": {"y": (0, 1)}}
        assert started(plan([queued("a", 8, excluded=off_x)], nodes, policy))["a"].keys() == {"y", "z"}
        assert started(plan([queued("a", 0, excluded=off_x), queued("b", 0, at=1.0)], nodes[:2], policy)) == {
            "a": {"y": ()},
            "b": {"x": ()},
        }
        made = plan([queued("a", 1, excluded=off_x), queued("b", 0, excluded=off_x)], nodes[:1], policy)
        assert not made.starts
        assert str(made.waiting["a"]) == ("asks for 1 slot on other machines than x, which there are not enough of")
        assert str(made.waiting["b"]) == "may not be on x, and there is no other machine"

    def test_a_draining_machine_gets_nothing_new(self, policy: Policy) -> None:
        made = plan([queued("a", 1), queued("b", 0)], [node("x", 4, draining=True)], policy)
        assert not made.starts

    def test_slots_of_a_stopping_request_are_not_free_yet(self, policy: Policy) -> None:
        made = plan([running("r", placed("x", 0), stopping=True), queued("a", 1)], [node("x", 1)], policy)
        assert not made.starts
        assert made.waiting["a"].waits_for == ("r",)

    def test_those_without_slots_go_where_most_places_are(self, policy: Policy) -> None:
        nodes = [node("x", 1, auxiliary_places=1), node("y", 0, auxiliary_places=2)]
        made = plan([queued(f"t{number}", 0, at=number) for number in range(4)], nodes, policy)
        assert started(made) == {"t0": {"y": ()}, "t1": {"x": ()}, "t2": {"y": ()}}

    def test_a_job_does_not_get_more_than_it_may(self, policy: Policy) -> None:
        trials = [queued(f"t{number}", 2, at=number, job="e", max_slots=4) for number in range(4)]
        made = plan([*trials, queued("other", 1, at=9)], [node("x", 8)], policy)
        assert set(started(made)) == {"t0", "t1", "other"}

    def test_a_slot_that_was_disabled_under_a_running_request_is_not_free(self, policy: Policy) -> None:
        made = plan([running("r", placed("x", 0, 3)), queued("a", 2)], [node("x", 3)], policy)
        assert started(made) == {"a": {"x": (1, 2)}}

    def test_what_is_to_stop_before_it_started_is_not_started(self, policy: Policy) -> None:
        made = plan([queued("a", 1, stopping=True)], [node("x", 1)], policy)
        assert not made.starts
        assert len(made.waiting) == 0


class TestOrder:
    def test_first_come_first_served(self) -> None:
        requests = [queued("late", 1, at=2, priority=1), queued("early", 1, at=1, priority=99)]
        assert set(started(plan(requests, [node("x", 1)], Fifo()))) == {"early"}

    def test_the_more_important_first_then_the_older(self) -> None:
        requests = [queued("a", 1, at=1), queued("b", 1, at=3, priority=1), queued("c", 1, at=2, priority=1)]
        assert list(started(plan(requests, [node("x", 2)], Priority()))) == ["c", "b"]

    def test_the_id_decides_between_equals(self) -> None:
        for policy in ALL:
            assert set(started(plan([queued("b", 1), queued("a", 1)], [node("x", 1)], policy))) == {"a"}

    def test_shares_follow_weights(self) -> None:
        requests = [
            queued(f"{job}{n}", 1, at=n, job=job, weight=w) for job, w in (("a", 1), ("b", 3)) for n in range(9)
        ]
        names = [start.id[0] for start in plan(requests, [node("x", 8)], FairShare()).starts]
        assert (names.count("a"), names.count("b")) == (2, 6)


class TestPreemption:
    def test_the_least_important_and_youngest_makes_room(self) -> None:
        busy = [
            running("important", placed("x", 0), priority=20),
            running("old", placed("x", 1), at=1, priority=90),
            running("young", placed("x", 2), at=2, priority=90),
        ]
        made = plan([*busy, queued("a", 1, at=9, priority=10)], [node("x", 3)], Priority())
        assert stopped(made) == ["young"]
        assert not made.starts
        assert made.waiting["a"].waits_for == ("young",)
        assert made.stops[0].reason == "makes room for a, which is before it in the queue"

    def test_no_more_is_stopped_than_needed(self) -> None:
        busy = [
            running("one", placed("x", 0), at=1, priority=50),
            running("two", placed("x", 1, 2), at=2, priority=50),
            running("other", placed("y", 0, 1, 2), at=3, priority=50),
        ]
        made = plan([*busy, queued("a", 2, at=9, priority=10)], [node("x", 4), node("y", 3)], Priority())
        assert stopped(made) == ["one"]  # one slot is free beside it

    def test_what_is_stopping_already_counts(self) -> None:
        busy = [running("a", placed("x", 0), stopping=True), running("b", placed("x", 1))]
        made = plan([*busy, queued("c", 1, at=9, priority=1)], [node("x", 2)], Priority())
        assert not made.stops

    def test_nobody_is_stopped_when_it_would_not_help(self) -> None:
        busy = [running("a", placed("x", 0)), running("b", placed("x", 1), preemptible=False)]
        made = plan([*busy, queued("c", 2, at=9, priority=1)], [node("x", 2)], Priority())
        assert not made.stops

    def test_equals_are_not_stopped(self) -> None:
        made = plan([running("a", placed("x", 0)), queued("b", 1, at=9)], [node("x", 1)], Priority())
        assert not made.stops

    def test_without_preemption_nobody_is_stopped(self) -> None:
        busy = [running("a", placed("x", 0))]
        for policy in (Priority(preemption=False), Fifo(), FairShare(preemption=False)):
            assert not plan([*busy, queued("b", 1, at=9, priority=1)], [node("x", 1)], policy).stops

    def test_a_gang_over_machines_stops_others_on_as_many_as_it_needs(self) -> None:
        nodes = [node(name, 4) for name in "xyz"]
        busy = [running(f"r{name}{slot}", placed(name, slot), at=slot) for name in "xyz" for slot in range(2)]
        made = plan([*busy, queued("a", 8, at=9, priority=1)], nodes, Priority())
        assert sorted(stopped(made)) == ["ry0", "ry1", "rz0", "rz1"]  # the youngest

    def test_nobody_stopped_is_more_important_than_it_need_be(self) -> None:
        busy = [running("low", placed("x", 0, 1), priority=90), running("mid", placed("y", 0), priority=50)]
        made = plan([*busy, queued("a", 1, at=9, priority=1)], [node("x", 2), node("y", 1)], Priority())
        assert stopped(made) == ["low"]

    def test_a_job_below_its_share_gets_slots_back(self) -> None:
        busy = [running(f"a{slot}", placed("x", slot), at=slot, job="a") for slot in range(4)]
        waiting = [queued(f"a{number}", 1, at=number, job="a") for number in (4, 5)]
        new = [queued(f"b{number}", 1, at=9 + number, job="b") for number in range(4)]
        made = plan([*busy, *waiting, *new], [node("x", 4)], FairShare())
        assert stopped(made) == ["a3", "a2"]
        assert set(made.waiting["b0"].waits_for) | set(made.waiting["b1"].waits_for) == {"a2", "a3"}

    def test_shares_too_small_to_tell_apart_are_left_alone(self) -> None:
        busy = [running(f"{job}0", placed("x", slot), job=job) for slot, job in enumerate("abc")]
        made = plan([*busy, queued("d0", 1, at=9, job="d")], [node("x", 3)], FairShare())
        assert not made.stops

    def test_hundreds_are_replaced_in_several_passes(self) -> None:
        busy = [running(f"r{slot}", placed("x", slot), at=slot) for slot in range(100)]
        new = [queued(f"n{number}", 1, at=100 + number, priority=1) for number in range(100)]
        made = plan([*busy, *new], [node("x", 100)], Priority())
        assert made.is_partial
        assert 0 < len(made.stops) < 100
        before = Reservation("n99", 3.0)
        assert plan([*busy, *new], [node("x", 100)], Priority(), now=9.0, reservation=before).reservation == before


class TestReservation:
    def test_small_ones_overtake_where_they_are_not_in_the_way(self) -> None:
        busy = [running("r", placed("x", 0)), running("s", placed("y", 0, 1, 2))]
        requests = [*busy, queued("gang", 4, at=1), queued("small", 1, at=2), queued("next", 1, at=3)]
        made = plan(requests, [node("x", 4), node("y", 4)], Fifo(), now=7.0)
        assert started(made) == {"small": {"y": (3,)}}  # x lacks one slot, y three: x is kept
        assert made.reservation == Reservation("gang", 7.0)

    def test_the_longer_the_first_waits_the_more_is_closed(self) -> None:
        busy = [running(name, placed(name, 0)) for name in "wxyz"]
        nodes = [node(name, 4) for name in "wxyz"]
        requests = [*busy, queued("gang", 4), *(queued(f"s{number}", 1, at=1 + number) for number in range(12))]
        since = Reservation("gang", 0.0)
        room = [
            len(plan(requests, nodes, Fifo(), now=now, reservation=since, patience=10).starts)
            for now in (0, 9, 10, 20, 99)
        ]
        assert room == [9, 9, 6, 0, 0]

    def test_patience_begins_when_a_request_becomes_the_first(self) -> None:
        requests = [running("r", placed("x", 0)), queued("gang", 2)]
        made = plan(requests, [node("x", 2)], Fifo(), now=50.0, reservation=Reservation("before", 0.0))
        assert made.reservation == Reservation("gang", 50.0)
        made = plan(requests, [node("x", 2)], Fifo(), now=60.0, reservation=made.reservation)
        assert made.reservation == Reservation("gang", 50.0)

    def test_what_can_never_start_keeps_nothing_from_others(self) -> None:
        made = plan([queued("never", 9), queued("a", 1, at=1)], [node("x", 2)], Fifo())
        assert set(started(made)) == {"a"}
        assert made.reservation is None

    def test_who_waits_for_its_own_job_keeps_nothing_from_others(self) -> None:
        busy = running("t0", placed("x", 0), job="e", max_slots=1)
        made = plan([busy, queued("t1", 1, job="e", max_slots=1), queued("a", 1, at=1)], [node("x", 2)], Fifo())
        assert set(started(made)) == {"a"}

    def test_others_of_its_job_do_not_use_up_its_limit(self) -> None:
        busy = running("r", placed("x", 0, 1))
        gang = queued("gang", 3, job="e", max_slots=4)
        small = queued("small", 2, at=1, job="e", max_slots=4)
        made = plan([busy, gang, small], [node("x", 4), node("y", 2)], Fifo())
        assert not made.starts
        assert made.waiting["gang"].text == "needs 3 slots on one machine, 4 of 6 are free, at most 2 on one machine"

    def test_nobody_is_stopped_on_its_machines_for_one_behind_it(self) -> None:
        busy = [running("stays", placed("x", 0), preemptible=False), running("low", placed("x", 1), priority=90)]
        requests = [*busy, queued("gang", 2, priority=1), queued("mid", 1, at=1, priority=50)]
        made = plan(requests, [node("x", 2)], Priority())
        assert not made.stops


class TestPlacements:
    def test_are_values(self) -> None:
        assert Placement({"x": (0, 1)}) == Placement({"x": (0, 1)})
        assert len({Placement({"x": (0, 1), "y": ()}), Placement({"y": (), "x": (0, 1)})}) == 1
        assert Placement({"x": (0, 1), "y": (4,)}).slots == 3
        assert repr(placed("x", 0)) == "Placement({'x': (0,)})"
