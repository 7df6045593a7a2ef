"""``python -m determined.launch.horovod [ITS OPTIONS --] SCRIPT...``: run a script under Horovod's own launcher.

In the script, ``core.init(distributed=core.DistributedContext.from_horovod(hvd))``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from determined.launch import handover


def main(arguments: Sequence[str] | None = None) -> int:
    """Become horovodrun; returns the exit code when that cannot be."""
    return handover.run(HOROVOD, sys.argv[1:] if arguments is None else arguments, os.environ)


def words(job: handover.Job) -> list[str]:
    """What horovodrun is told."""
    says_how_many = any(option in ("-np", "--num-proc") for option in job.options)
    says_where = any(option in ("-H", "--hosts", "-hostfile", "--hostfile") for option in job.options)
    ranks = [] if says_how_many else ["-np", str(job.slots)]
    hosts = [] if says_how_many or says_where else ["-H", f"localhost:{job.slots}"]
    return [*ranks, *hosts, *job.options, *job.command]


HOROVOD = handover.Launcher(
    name="Horovod",
    package="horovod",
    program="horovodrun",
    install="pip install 'horovod[pytorch]'",
    rank_variables="HOROVOD_RANK,OMPI_COMM_WORLD_RANK,PMI_RANK",
    words=words,
    environment={"USE_HOROVOD": "1"},
)

if __name__ == "__main__":
    sys.exit(main())
