"""Start-up, checkpoints and loaders: measurements that stand on their own, each run in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from bench.options import Finding, Options
from bench.processes import ROOT
from bench.results import Row, Table

_RUN = "import json, sys; from bench import {0}; json.dump({0}.run(quick={1}), open(sys.argv[1], 'w'))"


def startup(options: Options) -> Finding:
    """From the start of the process, in milliseconds."""
    found = _found("startup", options)
    times: dict[str, dict[str, float]] = found["startup"]
    bare, ours = times["bare PyTorch"], times["ours: torch._dynamo deferred"]
    peers = {"Fabric": "lightning.fabric", "accelerate": "accelerate"}
    return Finding(
        [
            Row("`import determined`", "ms", times["python alone"]["import"], times["import determined"]["import"], 50),
            Row(
                "process start to first step",
                "×",
                1.0,
                ours["first step"] / bare["first step"],
                1.03,
                {
                    title: times[name]["first step"] / bare["first step"]
                    for title, name in peers.items()
                    if name in times
                },
            ),
        ],
        [_table("Start-up, milliseconds since the process started", times)],
        found,
    )


def checkpoint(options: Options) -> Finding:
    """Saving: how long training waits, and what it loses. Loading: beside safetensors."""
    found = _found("checkpoint", options)
    saves: dict[str, dict[str, float]] = found["save"]
    loads: dict[str, dict[str, float]] = found["load"]
    limit = "memcpy (limit)"
    # A raw write is a limit, not something one would use.
    peers = [name for name in saves if name != limit and not name.startswith(("ours", "raw"))]
    copied = saves[limit]["blocked"]
    size = f"{found['megabytes']:.0f} MB"
    rows = [
        Row(
            f"checkpoint of {size}: training blocked, × a memory copy ({copied:.0f} ms)",
            "×",
            1.0,
            saves["ours"]["blocked"] / copied,
            1.3,
            {name: saves[name]["blocked"] / copied for name in peers},
        ),
        Row(
            "the same: time taken from training until durable",
            "ms",
            saves[limit]["stolen"],
            saves["ours"]["stolen"],
            80,
            {name: saves[name]["stolen"] for name in peers},
        ),
    ]
    for how, twin in (("into live tensors", "safetensors + copies"), ("fresh tensors", "safetensors + clones")):
        if twin in loads:
            rows.append(
                Row(
                    f"the same: load back {how}, × safetensors ({loads[twin]['load']:.0f} ms)",
                    "×",
                    1.0,
                    loads[f"ours, {how}"]["load"] / loads[twin]["load"],
                    1.5,
                    {"torch.load": loads["torch.load"]["load"] / loads[twin]["load"]},
                )
            )
    return Finding(rows, [_table("Save, ms", saves), _table("Load, ms", loads)], found)


def loader(options: Options) -> Finding:
    """What a batch costs, as the loaders' own measurement prints it; it has no bar of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.loader"],
        cwd=ROOT,
        env=_environment(),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return Finding([], [Table("Loaders", [""], [[line] for line in done.stdout.splitlines()])], done.stdout)


def _found(name: str, options: Options) -> Any:
    options.say(f"{name}, in a process of its own")
    options.results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.results, prefix="run-") as folder:
        out = f"{folder}/found.json"
        command = [sys.executable, "-c", _RUN.format(name, options.is_quick), out]
        subprocess.run(command, cwd=ROOT, env={**_environment(), "BENCH_DIR": folder}, check=True)
        with open(out) as file:
            return json.load(file)


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _table(title: str, found: Mapping[str, Mapping[str, float]]) -> Table:
    columns = list(dict.fromkeys(column for row in found.values() for column in row))
    lines = [[name, *(f"{row[c]:.1f}" if c in row else "–" for c in columns)] for name, row in found.items()]
    return Table(title, ["", *columns], lines)
