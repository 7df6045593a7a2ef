"""A pass of scheduling: 1,000 and 10,000 queued requests on 1,000 slots, p50 and p99, and how it grows.

Run `python -m bench.scheduling [--passes 200]`. Nobody else has a number to put beside ours; the bar is 20 ms.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Iterator

from determined.master.scheduling import FairShare, Fifo, Node, Placement, Policy, Priority, Request, plan

BAR_MILLISECONDS = 20.0
QUEUED = (100, 1_000, 10_000, 100_000)
WITH_A_BAR = 10_000
SLOTS = 1_000
POLICIES: dict[str, Policy] = {
    "fifo": Fifo(),
    "priority": Priority(preemption=False),
    "priority, preempting": Priority(),
    "fair share": FairShare(preemption=False),
    "fair share, preempting": FairShare(),
}


def cluster(queued: int, seed: int, slots_per_node: int = 8) -> tuple[list[Node], list[Request]]:
    """Machines that are nearly full, two of a hundred requests just ended and one of them stopping; a mixed queue."""
    draw = random.Random(seed)
    nodes = [Node(f"node{number:04}", tuple(range(slots_per_node))) for number in range(SLOTS // slots_per_node)]
    requests = [request for node in nodes for request in _busy(node, draw)]
    for number in range(queued):
        slots = draw.choice((1, 1, 1, 2, 4, 8, 16))
        requests.append(_request(f"queued{number}", slots, draw, queued_at=1 + number + draw.random() * 10))
    return nodes, requests


def _busy(node: Node, draw: random.Random) -> Iterator[Request]:
    free = list(node.slots)
    while free:
        size = min(draw.choice((1, 2, 4, 8)), len(free))
        slots, free = tuple(free[:size]), free[size:]
        if draw.random() < 0.98:
            running, stopping = Placement({node.id: slots}), draw.random() < 0.01
            yield _request(f"{node.id}-{slots[0]}", size, draw, draw.random(), running, stopping)


def _request(
    name: str,
    slots: int,
    draw: random.Random,
    queued_at: float,
    running: Placement | None = None,
    stopping: bool = False,
) -> Request:
    job = draw.randrange(500)
    limit = 8 if job % 10 == 0 and running is None else None
    return Request(
        name,
        f"job{job}",
        slots,
        draw.randrange(1, 100),
        1.0 + job % 4,
        queued_at,
        limit,
        running=running,
        stopping=stopping,
    )


def measure(policy: Policy, queued: int, passes: int) -> list[tuple[float, float]]:
    """Wall and processor time of each pass in milliseconds; every pass sees another cluster."""
    times = []
    clusters = [cluster(queued, seed) for seed in range(min(passes, max(1, 200_000 // queued)))]
    # The other passes' clusters are ours, not a master's: the collector need not walk through them in every pass.
    gc.collect()
    gc.freeze()
    for number in range(passes):
        nodes, requests = clusters[number % len(clusters)]
        wall, processor = time.perf_counter(), time.process_time()
        plan(requests, nodes, policy)
        times.append(((time.perf_counter() - wall) * 1e3, (time.process_time() - processor) * 1e3))
    gc.unfreeze()
    return times


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scheduling", description=__doc__)
    parser.add_argument("--passes", type=int, default=200, help="passes per line (200)")
    passes = parser.parse_args(arguments).passes
    print(f"One pass over {SLOTS} slots, milliseconds; bar for {WITH_A_BAR} queued: p99 ≤ {BAR_MILLISECONDS:.0f}")
    print(f"\n{'policy':<24}{'queued':>8}{'p50':>8}{'p99':>8}{'p50 cpu':>10}{'p99 cpu':>9}{'grows':>8}")
    over = []
    for name, policy in POLICIES.items():
        before = 0.0
        for queued in QUEUED:
            times = measure(policy, queued, passes if queued <= WITH_A_BAR else max(1, passes // 10))
            wall, processor = [list(column) for column in zip(*times)]
            median = statistics.median(processor)
            grows = f"×{median / before:.1f}" if before else ""
            print(
                f"{name:<24}{queued:>8}{statistics.median(wall):>8.1f}{percentile(wall, 0.99):>8.1f}"
                f"{median:>10.1f}{percentile(processor, 0.99):>9.1f}{grows:>8}"
            )
            before = median
            if queued == WITH_A_BAR and percentile(wall, 0.99) > BAR_MILLISECONDS:
                over.append(name)
    if over:
        print(f"\nOver the bar: {', '.join(over)}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
