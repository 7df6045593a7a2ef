"""Trials through a master: from the order to the first line and the first step of training, and a hundred in a row.

The order is given when the request that creates an experiment is sent. The same script everywhere: a line, `import
torch`, one step of SGD; it says itself when it was where. Contenders take turns, each in a fresh process.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench import limits
from bench.master import OwnMaster, own_master
from bench.options import Finding, Options
from bench.processes import ContenderFailed
from bench.results import Row, Table
from determined.client.context import pack

LINE_BAR, STEP_BAR, COLD_BAR, EACH_BAR = 50.0, 80.0, 1.05, 50.0
_STEP = """
import sys, time
times = [time.time()]
print("first line", flush=True)
import torch
model = torch.nn.Linear(32, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 32)).sum().backward()
optimizer.step()
times.append(time.time())
with open(sys.argv[1] + ".new", "w") as file:
    file.write(" ".join(map(str, times)))
import os
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""
_TRIVIAL = """
import determined as det
from determined import core

with core.init() as context:
    context.train.report_validation_metrics(1, {"loss": det.get_cluster_info().trial.hparams["x"]})
"""
_NOTHING = "print('done')\n"
_WAIT_SECONDS = 120.0

Times = dict[str, float]


def run(options: Options) -> Finding:
    options.say("trials, through a master")
    with tempfile.TemporaryDirectory(prefix="bench-trials-") as name:
        folder = pathlib.Path(name)
        (folder / "code").mkdir()
        (folder / "code" / "step.py").write_text(_STEP)
        (folder / "code" / "trivial.py").write_text(_TRIVIAL)
        (folder / "nothing.py").write_text(_NOTHING)
        with own_master(folder / "master") as master, limits.forking(folder) as fork:
            master.wait_until_warm()
            launches = _launches(options, master, fork, folder)
            forks = [_wall(lambda: fork(["nothing.py"])) for _ in range(5 if options.is_quick else 100)]
            several = {
                count: _several(master, folder, count) for count in ((4, 8) if options.is_quick else (100, 1000))
            }
    medians = {
        name: {key: statistics.median(time[key] for time in times) for key in times[0]}
        for name, times in launches.items()
    }
    return Finding(
        _rows(medians, statistics.median(forks), several),
        _tables(medians, several),
        {"launches": launches, "forks": forks, "several": several},
    )


def _rows(medians: dict[str, Times], fork: float, several: dict[int, Times]) -> list[Row]:
    ours, cold, python = medians["ours, warm"], medians["ours, cold"], medians["cold Python"]
    peers = {name: times for name, times in medians.items() if not name.startswith(("ours", "a warm fork"))}
    limit = medians["a warm fork"]
    count, first = next(iter(several.items()))
    rows = [
        Row(
            f"trial launch, warm: from the order to the {key}",
            "ms",
            limit[key],
            ours[key],
            bar,
            {name: times[key] for name, times in peers.items()},
        )
        for key, bar in (("first line", LINE_BAR), ("first step", STEP_BAR))
    ]
    ratio = cold["first step"] / python["first step"]
    rows.append(Row("the same, cold, × a cold Python", "×", 1.0, ratio, COLD_BAR))
    rows.append(Row(f"{count} trivial trials on 2 slots, everything stored: each", "ms", fork, first["each"], EACH_BAR))
    return rows


def _tables(medians: dict[str, Times], several: dict[int, Times]) -> list[Table]:
    lines = [[name, *(f"{times[key]:.1f}" for key in ("first line", "first step"))] for name, times in medians.items()]
    return [
        Table("From the order, medians, ms", ["", "first line", "first step"], lines),
        Table(
            "Trivial trials on 2 slots",
            ["", "each, ms", "the master's processor time for each, ms"],
            [[str(count), f"{times['each']:.1f}", f"{times['processor']:.1f}"] for count, times in several.items()],
        ),
    ]


# One trial.


def _launches(
    options: Options, master: OwnMaster, fork: Callable[[Sequence[str]], None], folder: pathlib.Path
) -> dict[str, list[Times]]:
    out = folder / "times"
    code = folder / "code"
    packed = pack(code)
    master.client.upload_context(packed.sha256, packed.content)
    script = str(code / "step.py")

    def ours(environment: Sequence[str] = ()) -> None:
        config = {**_config("step", f"python step.py {out}"), "searcher": {"name": "single", "metric": "loss"}}
        experiment_id = master.order(
            packed.sha256, {**config, "environment": {"environment_variables": [*environment]}}
        )
        _wait_for(out, master)
        master.wait(experiment_id)

    contenders: dict[str, Callable[[], None]] = {
        "a warm fork": lambda: fork([script, str(out)]),
        "cold Python": lambda: _run([script, str(out)], folder),
        # A variable that only a fresh interpreter can honour.
        "ours, cold": lambda: ours(["PYTHONHASHSEED=0"]),
        "torchrun": lambda: _run(["-m", "torch.distributed.run", "--nproc-per-node=1", script, str(out)], folder),
        "ours, warm": ours,
    }
    if importlib.util.find_spec("accelerate"):
        launcher = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes=1", "--num_machines=1"]
        contenders["accelerate launch"] = lambda: _run([*launcher, script, str(out)], folder)
    ours()
    out.unlink()
    times: dict[str, list[Times]] = {name: [] for name in contenders}
    for number in range(options.rounds if options.is_quick else options.rounds * 5):
        # The peers take seconds, and need not be asked as often.
        for name, launch in contenders.items():
            if number >= options.rounds and name in ("torchrun", "accelerate launch"):
                continue
            began = time.time()
            launch()
            line, step = (float(word) for word in out.read_text().split())
            out.unlink()
            times[name].append({"first line": (line - began) * 1e3, "first step": (step - began) * 1e3})
    return times


def _run(words: list[str], folder: pathlib.Path) -> None:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise ContenderFailed(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr[-4000:]}")


def _wait_for(out: pathlib.Path, master: OwnMaster) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not out.exists():
        if time.monotonic() > deadline:
            raise ContenderFailed(f"a trial did not train\n{master.log}")
        time.sleep(0.005)


def _wall(do: Callable[[], None]) -> float:
    began = time.perf_counter()
    do()
    return (time.perf_counter() - began) * 1e3


# Many of them.


def _several(master: OwnMaster, folder: pathlib.Path, count: int) -> Times:
    """Milliseconds for each of so many trivial trials; fails unless what each of them reported is stored."""
    config = {
        **_config("trivial", "python trivial.py"),
        "hyperparameters": {"x": {"type": "double", "minval": 0, "maxval": 1}},
        "searcher": {"name": "random", "metric": "loss", "max_trials": count},
    }
    spent, began = _processor(master), time.time()
    experiment_id = master.submit(folder / "code", config)
    # Whoever asks all the time keeps the master from its work: it says itself when it was over.
    master.wait(experiment_id, 60 + count, every=0.5)
    ended_at = master.client.experiment(experiment_id).ended_at
    assert ended_at is not None
    took, processor = ended_at - began, _processor(master) - spent
    stored = sum(1 for _ in master.client.experiment_metrics(experiment_id, "validation"))
    if stored != count:
        raise ContenderFailed(f"{count} trials reported, and {stored} reports are stored")
    return {"each": took / count * 1e3, "processor": processor / count * 1e3}


def _processor(master: OwnMaster) -> float:
    import psutil

    times = psutil.Process(master.pid).cpu_times()
    return float(times.user + times.system)


def _config(name: str, entrypoint: str) -> dict[str, Any]:
    return {"name": name, "entrypoint": entrypoint, "max_restarts": 0}
