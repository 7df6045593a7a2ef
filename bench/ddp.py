"""What a step costs on two processes under gloo, beside a plain DistributedDataParallel loop in the same processes."""

from __future__ import annotations

from bench import loop
from bench.options import Finding, Options
from bench.work import TWO_PROCESSES


def run(options: Options) -> Finding:
    return loop.measure(options, TWO_PROCESSES, ranks=2)
