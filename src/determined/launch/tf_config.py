"""``python -m determined.launch.tf_config COMMAND...``: give a rank its TF_CONFIG, then become the command.

Every rank finds a free port, and all tell each other theirs: the same on one machine and on several.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence

from determined.core.ranks import DistributedContext


def main(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run the command in the place of this process, with TF_CONFIG set as its rank's."""
    with DistributedContext.from_torch_distributed() as ranks:
        host = "127.0.0.1" if ranks.size == ranks.local_size else _address_seen_by(environ["MASTER_ADDR"])
        with socket.socket() as holder:
            holder.bind(("" if ranks.size > ranks.local_size else host, 0))
            # All hold their ports until all have one, so that no two are the same.
            workers = ranks.allgather(f"{host}:{holder.getsockname()[1]}")
            ranks.allgather(None)
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": ranks.rank}}
    sys.stdout.flush()
    os.execvpe(command[0], list(command), {**environ, "TF_CONFIG": json.dumps(config)})


def _address_seen_by(host: str) -> str:
    """The address of this machine in the network it shares with another one. Nothing is sent."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        found: str = probe.getsockname()[0]
        return found


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
