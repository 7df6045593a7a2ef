"""``python -m determined.worker SPEC.json``: the node process, as a pool starts it."""

from __future__ import annotations

import pathlib
import sys

import pydantic

from determined import errors
from determined.wire.node_spec import NodeSpec
from determined.worker import node


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m determined.worker SPEC.json", file=sys.stderr)
        return 2
    path = pathlib.Path(arguments[0])
    try:
        spec = NodeSpec.read(path)
        if not spec.entrypoint:
            raise errors.InternalException(f"{path} names no entrypoint: there is nothing to run")
        return node.run(spec, spec.entrypoint)
    except (OSError, ValueError, pydantic.ValidationError) as error:
        print(f"{path} is not a node specification: {error}", file=sys.stderr)
    except errors.DeterminedError as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
