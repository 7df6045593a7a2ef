"""The suite that every scheduling policy must pass.

>>> from determined import testing
>>> from determined.master import scheduling
>>> class TestMine(testing.SchedulingConformance):
...     def make_policy(self):
...         return scheduling.Fifo()
"""

from __future__ import annotations

import abc
import dataclasses
import random

import pytest

from determined.master.scheduling import Cause, Node, Policy, Request, plan
from determined.testing.imaginary_cluster import ImaginaryCluster, check, random_event, random_nodes, random_request

SEEDS = range(20)
EVENTS = 300


class SchedulingConformance(abc.ABC):
    """Subclass it as ``TestXxx`` and say how to make a policy; pytest does the rest."""

    @abc.abstractmethod
    def make_policy(self) -> Policy:
        """The policy; twice the same if made twice."""

    @pytest.fixture
    def policy(self) -> Policy:
        return self.make_policy()

    def test_an_empty_cluster_and_an_empty_queue_are_fine(self, policy: Policy) -> None:
        assert plan([], [], policy).starts == ()
        nothing = plan([Request("a", "a", 1)], [], policy)
        assert nothing.starts == ()
        assert nothing.waiting["a"].cause is Cause.SLOTS

    def test_what_fits_starts_at_once(self, policy: Policy) -> None:
        requests = [Request(f"r{number}", "job", 2, queued_at=number) for number in range(4)]
        made = plan(requests, [Node("a", (0, 1, 2, 3)), Node("b", (0, 1, 2, 3))], policy)
        assert {start.id for start in made.starts} == {"r0", "r1", "r2", "r3"}
        assert not made.waiting

    def test_the_order_of_the_arguments_does_not_matter(self, policy: Policy) -> None:
        for seed in SEEDS:
            draw = random.Random(seed)
            cluster = self.busy(policy, draw)
            requests, nodes = list(cluster.requests.values()), list(cluster.nodes)
            one = plan(requests, nodes, policy)
            draw.shuffle(requests)
            draw.shuffle(nodes)
            other = plan(requests, nodes, self.make_policy())
            assert (one.starts, one.stops, one.reservation) == (other.starts, other.stops, other.reservation)
            assert dict(one.waiting) == dict(other.waiting)

    def test_every_queued_request_is_in_line_once(self, policy: Policy) -> None:
        for seed in SEEDS:
            draw = random.Random(seed)
            queued = [random_request(draw, number, draw.random()) for number in range(draw.randint(0, 30))]
            in_line = [request.id for request in policy.line(queued, (), 8, {})]
            assert sorted(in_line) == sorted(request.id for request in queued)

    def test_victims_run_may_be_stopped_and_are_named_once(self, policy: Policy) -> None:
        for seed in SEEDS:
            cluster = self.busy(policy, random.Random(seed))
            usage = {request.job: 0 for request in cluster.requests.values()}
            for request in cluster.running:
                usage[request.job] += 0 if request.stopping else request.slots
            queued = [request for request in cluster.queued if request.slots]
            line = policy.line(queued, cluster.running, 40, usage)
            for request in queued:
                victims = [victim for group in line.victims(request, frozenset()) or () for victim in group]
                assert len({victim.id for victim in victims}) == len(victims)
                for victim in victims:
                    assert victim.preemptible and not victim.stopping and victim.running is not None

    def test_whatever_happens_every_plan_keeps_its_promises(self, policy: Policy) -> None:
        for seed in SEEDS:
            self.busy(policy, random.Random(seed))

    def test_when_nothing_happens_it_comes_to_rest(self, policy: Policy) -> None:
        for seed in SEEDS:
            self.busy(policy, random.Random(seed)).settle()

    def test_everything_that_can_run_runs_in_the_end(self, policy: Policy) -> None:
        for seed in SEEDS:
            draw = random.Random(seed)
            cluster = self.busy(policy, draw)
            cluster.nodes = tuple(dataclasses.replace(node, draining=False) for node in cluster.nodes)
            for _ in range(20 * len(cluster.requests) + 20):
                cluster.now += 1
                cluster.decide()
                for request in cluster.running:
                    if request.stopping or draw.random() < 0.5:
                        cluster.end(request.id)
            waiting = cluster.decide().waiting
            assert {why.cause for why in waiting.values()} <= {Cause.NEVER}, f"seed {seed}: {dict(waiting)}"

    def test_a_large_gang_is_not_overtaken_for_ever(self, policy: Policy) -> None:
        nodes = tuple(Node(f"n{number}", (0, 1, 2, 3)) for number in range(3))
        draw = random.Random(1)
        cluster = ImaginaryCluster(nodes, policy, patience=20.0)
        for _ in range(20):
            cluster.submit(Request(f"small{cluster.submitted}", f"job{cluster.submitted}", 1, queued_at=cluster.now))
        cluster.decide()
        cluster.submit(Request("large", "large", 12, queued_at=cluster.now))
        ends = {request.id: cluster.now + draw.uniform(5, 15) for request in cluster.running}
        while cluster.requests["large"].running is None:
            cluster.now += 1.0
            cluster.submit(Request(f"small{cluster.submitted}", f"job{cluster.submitted}", 1, queued_at=cluster.now))
            for request_id in [request_id for request_id, at in ends.items() if at <= cluster.now]:
                del ends[request_id]
                cluster.end(request_id)
            for start in cluster.decide().starts:
                ends.setdefault(start.id, cluster.now + draw.uniform(5, 15))
            assert cluster.now < 200, "overtaken for ever"

    def busy(self, policy: Policy, draw: random.Random) -> ImaginaryCluster:
        """A cluster to which a lot has happened, every plan checked."""
        cluster = ImaginaryCluster(random_nodes(draw), policy)
        for _ in range(EVENTS):
            random_event(cluster, draw)
            cluster.decide()
        check(plan(cluster.requests.values(), cluster.nodes, policy), [*cluster.requests.values()], cluster.nodes)
        return cluster
