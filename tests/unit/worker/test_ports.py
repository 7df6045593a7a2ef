"""The port at which ranks meet is found, kept from others, and still open to torch."""

from __future__ import annotations

import socket

import pytest

from determined import errors
from determined.worker import ports


def test_a_free_port_is_kept_for_those_who_share_it() -> None:
    with ports.reserved(0) as first, ports.reserved(0) as second:
        assert first != second
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("", first))
        with socket.socket() as torchs:
            torchs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            torchs.bind(("", first))
            torchs.listen()


def test_a_given_port_in_use_is_refused_with_the_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(errors.InternalException, match=f"port {port}.*Choose another --master_port"):
            with ports.reserved(port):
                pass
