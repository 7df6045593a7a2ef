"""Exactness, to look at: train on two processes, do it again with an interruption, and see the same result."""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).parent
LAUNCH = [sys.executable, "-m", "determined.launch.torch_distributed", "--nproc", "2"]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="resolute-demo-") as folder:
        whole, broken = pathlib.Path(folder, "whole"), pathlib.Path(folder, "broken")
        say("1. Train a small convnet on handwritten digits, on two processes.")
        run(whole)
        say("2. The same again, but stopped half-way, as by Ctrl-C or a machine that is taken away.")
        interrupt(start(broken), broken, at_batch=150)
        say("3. Go on from the checkpoint it left.")
        run(broken, "--resume")
        say("4. Compare.")
        first, second = outcome(whole), outcome(broken)
        for name in first:
            same = "the same" if first[name] == second[name] else "DIFFERENT"
            print(f"   {name:<34} {first[name]:<20} {second[name]:<20} {same}")
        if first != second:
            sys.exit("The interrupted run ended differently; that must never happen. Please report it.")
        print("\nInterrupted or not, training ended with the same weights and the same metrics, bit for bit.")


def start(runs: pathlib.Path, *arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "DET_RUNS_DIR": str(runs), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*LAUNCH, "train.py", *arguments], cwd=HERE, env=environment)


def run(runs: pathlib.Path, *arguments: str) -> None:
    code = start(runs, *arguments).wait()
    if code:
        sys.exit(f"training failed with exit code {code}")


def interrupt(process: subprocess.Popen, runs: pathlib.Path, at_batch: int) -> None:
    """Send SIGTERM once the run's own record says it has come this far."""
    pause = threading.Event()
    while process.poll() is None and not any(row["steps_completed"] >= at_batch for row in rows(runs)):
        pause.wait(0.01)
    process.send_signal(signal.SIGTERM)
    process.wait()


def rows(runs: pathlib.Path) -> list[dict]:
    found = []
    for file in runs.glob("*/metrics.jsonl"):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                found.append(json.loads(line))
    return found


def outcome(runs: pathlib.Path) -> dict[str, str]:
    """What the training came to, in a form that two runs can be compared by."""
    import torch

    states = runs.glob("*/checkpoints/*/state_dict.pth")
    latest = max(states, key=lambda path: json.loads((path.parent / "metadata.json").read_text())["steps_completed"])
    saved = torch.load(latest, weights_only=True)
    reported = [[row["group"], row["steps_completed"], row["metrics"]] for row in rows(runs)]
    accuracy = [metrics["accuracy"] for group, _, metrics in reported if group == "validation"][-1]
    return {
        "validation accuracy": f"{accuracy:.4f}",
        "metric rows": str(len(reported)),
        "metrics (sha256)": digest(json.dumps(reported, sort_keys=True).encode()),
        "weights (sha256)": tensors_digest(saved["models_state_dict"]),
        "optimizer (sha256)": tensors_digest(saved["optimizers_state_dict"]),
    }


def tensors_digest(value) -> str:
    import torch

    sha = hashlib.sha256()

    def feed(item) -> None:
        if isinstance(item, torch.Tensor):
            sha.update(item.contiguous().numpy().tobytes())
        elif isinstance(item, dict):
            for key in item:
                sha.update(repr(key).encode())
                feed(item[key])
        elif isinstance(item, (list, tuple)):
            for part in item:
                feed(part)
        else:
            sha.update(repr(item).encode())

    feed(value)
    return sha.hexdigest()[:16]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    main()
