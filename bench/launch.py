"""From an order to the first user line and to the first training step, on the local pool, beside a cold Python.

Run `python -m bench.launch [--quick]`. The same script everywhere: a line, `import torch`, one step of SGD. Also the
wall time and the processor time of 100 trivial allocations on two slots. There is no master in it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import psutil

from determined.master.pools.base import Exited, Gang
from determined.master.pools.local import LocalPool
from determined.master.scheduling import Placement
from determined.wire.node_spec import NodeSpec
from determined.wire.outcome import Outcome

# Milliseconds; a cold start as a ratio to a cold Python.
BARS = {"first line": 50.0, "first step": 80.0, "cold": 1.05, "each of 100": 50.0}
_SCRIPT = """
import sys, time
times = [time.time()]
print("first line", flush=True)
import torch
model = torch.nn.Linear(32, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 32)).sum().backward()
optimizer.step()
times.append(time.time())
with open(sys.argv[1], "w") as file:
    file.write(" ".join(map(str, times)))
"""
_READY_SECONDS = 120.0
_END_SECONDS = 60.0


class Bench:
    """A pool in a folder of its own, and the script."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        (folder / "step.py").write_text(_SCRIPT)
        (folder / "nothing.py").write_text("print('done')\n")
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.pool = LocalPool(folder / "state", slots=2, environ=environ)
        self.ended = threading.Event()
        self.pool.watch(self.ended.set)
        self._count = 0

    def wait_until_ready(self) -> None:
        self.pool.prepare()
        deadline = time.monotonic() + _READY_SECONDS
        while len(list((self.folder / "state" / "starter").glob("*.sock"))) < 2:
            if time.monotonic() > deadline:
                raise SystemExit("the starters do not come up")
            time.sleep(0.1)

    def order(self, words: list[str], slot: int = 0, environment: dict[str, str] | None = None) -> str:
        self._count += 1
        document = NodeSpec.model_validate(
            {
                "name": "bench",
                "run_id": str(self._count),
                "run_folder": self.folder / "runs" / str(self._count),
                "code_folder": self.folder,
                "entrypoint": ["python", *words],
                "environment": environment or {},
            }
        )
        allocation_id = f"job-{self._count}.1"
        self.pool.start(Gang(allocation_id, Placement({"local": (slot,)}), [document]))
        return allocation_id

    def wait(self, running: set[str]) -> set[str]:
        """Those of these that have ended, once one has."""
        deadline = time.monotonic() + _END_SECONDS
        while True:
            self.ended.clear()
            seen = self.pool.poll()
            ended = {each for each in running if isinstance(seen.get(each), Exited)}
            if ended:
                for each in ended:
                    sighting = seen[each]
                    assert isinstance(sighting, Exited)
                    if sighting.ending.outcome is not Outcome.COMPLETED:
                        raise SystemExit(f"{each}: {sighting.ending}")
                    self.pool.forget(each)
                return ended
            if time.monotonic() > deadline:
                raise SystemExit(f"{running} do not end")
            self.ended.wait(0.5)

    def launch(self, environment: dict[str, str] | None = None) -> dict[str, float]:
        """One launch through the pool, in milliseconds from the order."""
        out = self.folder / "times"
        began = time.time()
        allocation_id = self.order(["step.py", str(out)], environment=environment)
        self.wait({allocation_id})
        return _milliseconds(began, out)

    def python(self) -> dict[str, float]:
        """The same script, started by hand."""
        out = self.folder / "times"
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        began = time.time()
        command = [sys.executable, "step.py", str(out)]
        subprocess.run(command, cwd=self.folder, env=environ, stdout=subprocess.DEVNULL, check=True)
        return _milliseconds(began, out)

    def many(self, count: int) -> tuple[float, float]:
        """Milliseconds for each of so many trivial allocations on two slots: of wall time, and of all processors'."""
        spent, began = self._processor_seconds(), time.perf_counter()
        running: dict[str, int] = {}
        free, started = [0, 1], 0
        while started < count or running:
            while free and started < count:
                slot = free.pop()
                running[self.order(["nothing.py"], slot)] = slot
                started += 1
            for ended in self.wait(set(running)):
                free.append(running.pop(ended))
        wall = time.perf_counter() - began
        return wall / count * 1e3, (self._processor_seconds() - spent) / count * 1e3

    def _processor_seconds(self) -> float:
        """Ours, and the starters' with all that they have started and taken leave of."""
        total = sum(os.times()[:4])
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if "determined.worker.starter" in words and process.ppid() == os.getpid():
                    times = process.cpu_times()
                    total += times.user + times.system + times.children_user + times.children_system
        return total


def _milliseconds(began: float, out: pathlib.Path) -> dict[str, float]:
    line, step = (float(word) for word in out.read_text().split())
    out.unlink()
    return {"first line": (line - began) * 1e3, "first step": (step - began) * 1e3}


def run(quick: bool = False) -> dict[str, dict[str, float]]:
    """Medians, in milliseconds."""
    rounds = 3 if quick else 15
    rows: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-launch-") as folder:
        bench = Bench(pathlib.Path(folder))
        try:
            bench.wait_until_ready()
            bench.launch()
            for _ in range(rounds):
                measured = {
                    "cold Python": bench.python(),
                    # A variable that only a fresh interpreter can honour.
                    "ours, cold": bench.launch(environment={"PYTHONHASHSEED": "0"}),
                    "ours, warm": bench.launch(),
                }
                for name, row in measured.items():
                    for key, value in row.items():
                        rows.setdefault(name, {}).setdefault(key, []).append(value)
            wall, processor = bench.many(20 if quick else 100)
        finally:
            bench.pool.close()
    medians = {name: {key: statistics.median(values) for key, values in row.items()} for name, row in rows.items()}
    medians["100 trivial allocations"] = {"each": wall, "processor": processor}
    return medians


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.launch", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of fifteen")
    quick = parser.parse_args(arguments).quick
    found = run(quick)
    print(f"{'from the order, medians':<28}{'first line, ms':>16}{'first step, ms':>16}")
    for name in ("cold Python", "ours, cold", "ours, warm"):
        print(f"{name:<28}{found[name]['first line']:>16.1f}{found[name]['first step']:>16.1f}")
    verdicts = {
        "warm: first line, ms": (found["ours, warm"]["first line"], BARS["first line"]),
        "warm: first step, ms": (found["ours, warm"]["first step"], BARS["first step"]),
        "cold: first step over a cold Python's": (
            found["ours, cold"]["first step"] / found["cold Python"]["first step"],
            BARS["cold"],
        ),
        "100 trivial allocations: each, ms": (found["100 trivial allocations"]["each"], BARS["each of 100"]),
    }
    print(f"100 trivial allocations: {found['100 trivial allocations']['processor']:.1f} ms of processor time each")
    for name, (value, bar) in verdicts.items():
        print(f"{name:<44}{value:>10.2f}   bar {bar:g}   {'pass' if value <= bar else 'FAIL'}")
    return 1 if not quick and any(value > bar for value, bar in verdicts.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
