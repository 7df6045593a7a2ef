"""Batch inference under the launcher: a rank that is killed is started again, and goes on where the gang was."""

from __future__ import annotations

import pathlib
import subprocess
import sys

SCRIPT = """
import os, pathlib, signal
import torch
from determined.pytorch import experimental

class Processor(experimental.TorchBatchProcessor):
    def process_batch(self, batch, batch_idx):
        if batch_idx == 11 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        with open("seen", "ab", buffering=0) as seen:
            seen.write(f"{batch_idx}\\n".encode())
        with self.context.upload_path() as path:
            torch.save(batch, path / f"batch-{batch_idx:02}.pt")

    def on_finish(self):
        if self.context.get_distributed_rank() == 0:
            files = sorted(self.context.output.glob("batch-*.pt"))
            print("joined", torch.cat([torch.load(file) for file in files]).tolist() == list(range(40)))

experimental.torch_batch_process(Processor, torch.arange(40), batch_size=2, checkpoint_interval=2)
"""


def test_a_gang_that_lost_a_rank_does_nothing_saved_again(tmp_path: pathlib.Path) -> None:
    (tmp_path / "infer.py").write_text(SCRIPT)
    words = ["--nproc", "2", "--max-restarts", "1", "infer.py"]
    command = [sys.executable, "-m", "determined.launch.torch_distributed", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "[rank=0] joined True" in done.stdout
    seen = [int(line) for line in (tmp_path / "seen").read_text().split()]
    assert set(seen) == set(range(20))
    # Batches are saved by fours: when the rank died at batch 11, those before batch 8 were safe.
    assert all(seen.count(batch) == 1 for batch in range(8)), seen
