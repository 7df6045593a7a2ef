"""``python -m determined.worker SPEC.json``: the node process, as a pool starts it.

``--lock N``: the allocation's lock is already held, as the open descriptor N.
"""

from __future__ import annotations

import os
import pathlib
import sys

import pydantic

from determined import errors
from determined.wire.node_spec import NodeSpec
from determined.worker import allocation, node

_USAGE = "usage: python -m determined.worker SPEC.json [--lock DESCRIPTOR]"


def main(arguments: list[str]) -> int:
    words = list(arguments)
    lock = None
    if "--lock" in words[1:] and words[-1].isdigit():
        lock = int(words[-1])
        os.set_inheritable(lock, False)
        words = words[:-2]
    if len(words) != 1 or words[0].startswith("-"):
        print(_USAGE, file=sys.stderr)
        return 2
    path = pathlib.Path(words[0])
    try:
        spec = NodeSpec.read(path)
        if not spec.entrypoint:
            raise errors.InternalException(f"{path} names no entrypoint: there is nothing to run")
        if spec.allocation_folder is not None:
            return allocation.run(spec, os.environ, sys.executable, lock=lock)
        return node.run(spec, spec.entrypoint)
    except (OSError, ValueError, pydantic.ValidationError) as error:
        print(f"{path} is not a node specification: {error}", file=sys.stderr)
    except errors.DeterminedError as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
