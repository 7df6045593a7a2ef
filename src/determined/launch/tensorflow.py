"""``python -m determined.launch.tensorflow [OPTIONS --] SCRIPT...``: run a TensorFlow script with TF_CONFIG set.

The node process starts and watches the ranks, one per machine unless --nproc says more: a TensorFlow process uses all
the GPUs of its machine.

Example: ``python -m determined.launch.tensorflow train.py --epochs 3``
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from determined import errors
from determined.launch import torch_distributed
from determined.launch.torch_distributed import UsageError
from determined.worker import node

USAGE = """\
usage: python -m determined.launch.tensorflow [OPTIONS] [--] SCRIPT [ARGUMENTS...]

Runs the script with TF_CONFIG set, on one rank per machine. It takes the options of
`python -m determined.launch.torch_distributed`: --nproc, --nnodes, --node_rank, --master_addr, --master_port,
--max-restarts, --hang-seconds, --grace-seconds and --resume.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script, and return the exit code: that of the first rank to fail, 0 if none did, 2 for a usage error."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    try:
        wanted = understand(arguments)
        spec = torch_distributed.make_spec(wanted, os.environ)
        return node.run(spec, spec.entrypoint, max_restarts=wanted.max_restarts)
    except UsageError as error:
        print(f"error: {error}\n`python -m determined.launch.tensorflow --help` lists the options", file=sys.stderr)
        return 2
    except errors.DeterminedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def understand(arguments: Sequence[str]) -> torch_distributed.Wanted:
    """Read a command line; raises UsageError with one clear sentence."""
    wanted = torch_distributed.understand(arguments)
    if wanted.trial is not None:
        raise UsageError(
            f"{wanted.trial} cannot be trained by TensorFlow: give a script, or start a PyTorchTrial with "
            f"`python -m determined.launch.torch_distributed --trial {wanted.trial}`"
        )
    command = [sys.executable, "-m", "determined.launch.tf_config", *wanted.command]
    return wanted._replace(command=command, nproc=wanted.nproc or 1)


if __name__ == "__main__":
    sys.exit(main())
