"""Threads as ranks: a gang inside one process, for what ranks do together."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

from determined.core.ranks import DistributedContext


def run_gang(size: int, work: Callable[[DistributedContext], Any]) -> list[Any]:
    """Call ``work`` on every rank at once; an exception takes the place of that rank's result."""
    results: list[Any] = [None] * size
    rendezvous = uuid.uuid4().hex

    def rank_main(rank: int) -> None:
        try:
            with DistributedContext(
                rank=rank,
                size=size,
                local_rank=rank,
                local_size=size,
                cross_rank=0,
                cross_size=1,
                chief_ip=rendezvous,
            ) as distributed:
                results[rank] = work(distributed)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a rank waits for ever"
    return results
