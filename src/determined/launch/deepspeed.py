"""``python -m determined.launch.deepspeed [ITS OPTIONS --] SCRIPT...``: run a script under DeepSpeed's own launcher.

In the script, ``core.init(distributed=core.DistributedContext.from_deepspeed())``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from determined.launch import handover


def main(arguments: Sequence[str] | None = None) -> int:
    """Become the deepspeed program; returns the exit code when that cannot be."""
    return handover.run(DEEPSPEED, sys.argv[1:] if arguments is None else arguments, os.environ)


def words(job: handover.Job) -> list[str]:
    """What the deepspeed program is told."""
    names = [option.partition("=")[0] for option in job.options]
    says_where = any(name in ("--num_gpus", "-i", "--include", "-e", "--exclude") for name in names)
    ranks = [] if says_where else ["--num_gpus", str(job.slots)]
    # What it starts is wrap_rank, which takes no --local_rank: scripts find LOCAL_RANK in their environment.
    return [*ranks, *job.options, "--no_python", "--no_local_rank", *job.command]


DEEPSPEED = handover.Launcher(
    name="DeepSpeed",
    package="deepspeed",
    program="deepspeed",
    install="pip install deepspeed",
    rank_variables="RANK",
    words=words,
    environment={"USE_DEEPSPEED": "1"},
)

if __name__ == "__main__":
    sys.exit(main())
