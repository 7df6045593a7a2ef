"""Runs a command as a page's reader would who interrupts it: `interrupt.py SIGNAL STEP COMMAND...`.

The signal (INT, TERM, KILL) is sent once some run below DET_RUNS_DIR has reported that step. Ends with the command's
exit code; 128 and the signal's number when that killed it, as a shell does.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

SECONDS = 120


def main(name: str, step: str, *command: str) -> int:
    process = subprocess.Popen(command)
    pause, deadline = threading.Event(), time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline and newest_step() < int(step):
        pause.wait(0.01)
    if process.poll() is not None:
        print(f"the command ended before it could be interrupted at step {step}", file=sys.stderr)
        return 1
    process.send_signal(signal.Signals[f"SIG{name}"])
    code = process.wait(timeout=SECONDS)
    return 128 - code if code < 0 else code


def newest_step() -> int:
    """The last step that a run still being written has reported."""
    steps = [0]
    for run in pathlib.Path(os.environ["DET_RUNS_DIR"]).glob("*"):
        try:
            if json.loads((run / "run.json").read_bytes())["state"] == "running":
                whole, _, _ = (run / "metrics.jsonl").read_text().rpartition("\n")
                steps.append(json.loads(whole.rpartition("\n")[2])["steps_completed"])
        except (OSError, ValueError):
            continue  # not written yet
    return max(steps)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
