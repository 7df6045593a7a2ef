"""Measures one contender in this process; ``bench.processes`` starts a fresh one each time.

``python -m bench.measure CONTENDER CASES CHUNKS OUT``: cases separated by commas, times to OUT as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import torch
import torch.distributed

from bench import contenders
from bench.pace import Pace, Stretch, Timing
from bench.work import CASES, ONE_PROCESS, Bare, Case, Work, same_parameters


def main(contender: str, cases: str, chunks: int, out: str) -> None:
    torch.set_num_threads(1)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1 and contender == "bare":
        torch.distributed.init_process_group("gloo")
    train = contenders.ALL[contender].load()
    found = {}
    for name in cases.split(","):
        case = CASES[name]
        found[name] = measure(train, case, min(chunks, case.chunks) if chunks else case.chunks, rank, size).to_json()
        if name in ONE_PROCESS and contender in (contenders.OURS, "bare"):
            found[name]["stretch_ratio"] = measure_stretch(train, case, chunks or case.stretch)
        found[name]["rows_per_second"] = size * case.batch_size / found[name]["ours_microseconds"] * 1e6
    if rank == 0:
        with open(out, "w") as file:
            json.dump(found, file)


def measure(train: contenders.Train, case: Case, chunks: int, rank: int, size: int) -> Timing:
    """Train a case with a contender beside the bare loop. AssertionError unless both did the very same work."""
    bare: list[Bare] = []

    def start_bare() -> Callable[[], None]:
        twin = Work(case, pace.batches, rank=rank, size=size)
        twin.order = work.order
        bare.append(Bare(twin))
        return bare[0].chunk

    def check() -> None:
        if not same_parameters(work.made, bare[0].work.made):
            raise AssertionError(f"{case.name}: the parameters are not those of the bare loop")

    pace = Pace(case.chunk, chunks, start_bare, check)
    work = Work(case, pace.batches, rank=rank, size=size)
    train(work, pace)
    if work.reported_losses is not None and size == 1:
        _compare(work.reported_losses, bare[0].losses)
    return pace.timing()


def measure_stretch(train: contenders.Train, case: Case, chunks: int) -> float:
    """Ratio to the bare loop of a long stretch without interruption, with all that happens seldom or in background."""

    def start_bare() -> Callable[[], None]:
        return Bare(Work(case, stretch.batches)).chunk

    stretch = Stretch(case.chunk, chunks, start_bare)
    train(Work(case, stretch.batches), stretch)
    return stretch.ratio()


def _compare(reported: list[float], expected: list[float]) -> None:
    """One report per chunk; what follows them is the last batch's."""
    pairs = list(zip(reported, expected))
    if len(pairs) < len(expected) or any(abs(a - b) > 1e-9 * abs(b) for a, b in pairs):
        raise AssertionError(f"losses {reported} were reported instead of {expected}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
