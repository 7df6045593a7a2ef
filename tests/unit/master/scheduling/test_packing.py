"""How close packing comes to the best there is, found by trying everything."""

from __future__ import annotations

import functools
import random

from determined.master.scheduling import Fifo, Node, Request, plan

CASES = 1000


def test_packing_reaches_nineteen_twentieths_of_the_optimum() -> None:
    ours = best = perfect = 0
    for seed in range(CASES):
        draw = random.Random(seed)
        sizes = [draw.randint(1, 8) for _ in range(draw.randint(2, 4))]
        gangs = [draw.randint(1, 4) for _ in range(draw.randint(2, 7))]
        nodes = [Node(f"n{number}", tuple(range(size))) for number, size in enumerate(sizes)]
        requests = [Request(f"r{number}", "job", gang, queued_at=number) for number, gang in enumerate(gangs)]
        requests = [request for request in requests if request.slots <= max(sizes)]
        used = sum(start.placement.slots for start in plan(requests, nodes, Fifo()).starts)
        optimum = best_packing(tuple(sorted(sizes)), tuple(request.slots for request in requests))
        ours, best, perfect = ours + used, best + optimum, perfect + (used == optimum)
    assert best > 10 * CASES / 2
    assert ours >= 0.95 * best, f"{ours} of {best} slots, {perfect} of {CASES} cases perfect"


@functools.cache
def best_packing(free: tuple[int, ...], gangs: tuple[int, ...]) -> int:
    """The most slots that any choice of gangs and machines puts to use, in whatever order."""
    if not gangs:
        return 0
    first, rest = gangs[0], gangs[1:]
    best = best_packing(free, rest)
    for index, room in enumerate(free):
        if room >= first and (index == 0 or room != free[index - 1]):
            left = tuple(sorted((*free[:index], room - first, *free[index + 1 :])))
            best = max(best, first + best_packing(left, rest))
    return best
