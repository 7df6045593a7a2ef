"""From process start to the end of the first training step, beside bare PyTorch and the peers installed here.

Run `python -m bench.startup [--quick]`. Each row is a fresh process; rounds go through all contenders in turn.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

_STEP = """
model = torch.nn.Linear(32, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 32)).sum().backward()
optimizer.step()
optimizer.zero_grad()
"""

# Each contender imports and sets up in its own way, then makes the same step.
_CONTENDERS = {
    "python alone": ("", None),
    "import determined": ("import determined", None),
    "bare PyTorch": ("import torch", _STEP),
    "ours: torch._dynamo deferred": (
        "import torch\nfrom determined.pytorch import startup\nstartup.defer_dynamo()",
        _STEP,
    ),
    "accelerate": ("import torch, accelerate\naccelerator = accelerate.Accelerator(cpu=True)", _STEP),
    "lightning.fabric": (
        "import torch\nfrom lightning.fabric import Fabric\nfabric = Fabric(accelerator='cpu')",
        _STEP,
    ),
}

_REPORT = """
import sys, json, time
print(json.dumps({"imported": imported, "stepped": time.time(), "modules": len(sys.modules)}))
"""


def run(quick: bool = False) -> dict[str, Any]:
    """Measure; return medians in milliseconds from the start of the process, and the ratios that have a bar."""
    rounds = 3 if quick else 7
    contenders = {
        name: script
        for name, script in _CONTENDERS.items()
        if name not in ("accelerate", "lightning.fabric") or importlib.util.find_spec(name.split(".")[0])
    }
    rows: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for name, (imports, step) in contenders.items():
            measured = _measure(imports, step)
            row = rows.setdefault(name, {key: [] for key in measured})
            for key, value in measured.items():
                row[key].append(value)
    medians = {name: {key: statistics.median(values) for key, values in row.items()} for name, row in rows.items()}
    ours, bare = medians["ours: torch._dynamo deferred"], medians["bare PyTorch"]
    return {
        "startup": medians,
        "ratios": {
            "first step / bare (bar 1.03)": ours["first step"] / bare["first step"],
            "import determined, ms over python alone (bar 50)": medians["import determined"]["import"]
            - medians["python alone"]["import"],
        },
    }


def _measure(imports: str, step: str | None) -> dict[str, float]:
    script = f"{imports}\nimport time\nimported = time.time()\n{step or ''}\n{_REPORT}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = time.time()
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout.splitlines()[-1])
    return {
        "import": (report["imported"] - started) * 1e3,
        "first step": (report["stepped"] - started) * 1e3,
        "modules": report["modules"],
    }


def show(result: dict[str, Any]) -> None:
    print(f"{'from process start, medians':<34}{'import, ms':>12}{'first step, ms':>16}{'modules':>10}")
    for name, row in result["startup"].items():
        print(f"{name:<34}{row['import']:>12.0f}{row['first step']:>16.0f}{row['modules']:>10.0f}")
    for name, value in result["ratios"].items():
        print(f"{name:<52}{value:>8.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of seven")
    show(run(parser.parse_args().quick))
