"""The port at which torch's ranks meet: a free one is found and kept free; one in use is told clearly."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from collections.abc import Iterator

from determined import errors

# Below the ports that the system hands out by itself, so that no outgoing connection takes ours in the meantime.
_FIRST, _LAST = 20000, 32000
_TRIES = 200


@contextlib.contextmanager
def reserved(port: int) -> Iterator[int]:
    """The port to use: ``port``, or a free one if that is 0. While this lasts nobody gets it by chance.

    The socket held is bound but does not listen, and shares its address, as torch does: torch can listen there.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if port:
            try:
                _share(holder, port)
            except OSError as error:
                raise errors.InternalException(
                    f"the ranks cannot meet at port {port}: {error.strerror or error}; another program may be using "
                    "it. Choose another --master_port, or leave it out to have a free one picked"
                ) from None
        else:
            port = _find_free(holder)
        if not sys.platform.startswith("linux"):
            holder.close()  # Elsewhere a bound socket would be in torch's way.
        yield port
    finally:
        holder.close()


def _find_free(holder: socket.socket) -> int:
    for _ in range(_TRIES):
        port = random.randrange(_FIRST, _LAST)
        try:
            # Without sharing first: that fails if another gang keeps the port, even if it does not listen yet.
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.bind(("", port))
            _share(holder, port)
            return port
        except OSError:
            continue
    raise errors.InternalException(
        f"no free port found between {_FIRST} and {_LAST} for the ranks to meet at; give one with --master_port"
    )


def _share(holder: socket.socket, port: int) -> None:
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", port))
