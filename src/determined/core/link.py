"""Connections between the ranks of one gang: every rank to the chief, over a Unix socket or TCP.

A connection is made only between processes that know the same token; nothing is unpickled before that.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
import pickle
import select
import socket
import struct
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

from determined import errors

Address = str | tuple[str, int]

DATA, ORDERS = 1, 2

_MAGIC = b"resolut1"
_NONCE = 16
_HELLO = struct.Struct("<8sBI16s32s")  # magic, channel, rank, nonce, proof
_PROOF = 32

# How long ranks wait for each other to start; imports and downloads come before.
PATIENCE_SECONDS = 600.0
_HANDSHAKE_SECONDS = 10.0

_open_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_watching_forks = False


class PeerLost(errors.DeterminedError):
    """Another rank of the gang ended, or closed its context, while this one needed it."""

    code = "peer_lost"


@dataclasses.dataclass(frozen=True)
class Meeting:
    """Where ranks meet, tried in this order, and the secret by which they know each other."""

    addresses: Sequence[Address]
    token: bytes

    @staticmethod
    def on_this_machine(rendezvous: str) -> Meeting:
        """Without a port that could be in use. The name is this user's own."""
        uid = os.getuid()
        name = hashlib.sha256(f"{uid}|{rendezvous}".encode()).hexdigest()[:32]
        if sys.platform.startswith("linux"):
            address = f"\0resolute-{uid}-{name}"
        else:
            address = os.path.join(tempfile.gettempdir(), f"resolute-{name}.sock")
        return Meeting([address], _token(rendezvous))

    @staticmethod
    def at(host: str, ports: Sequence[int], rendezvous: str) -> Meeting:
        return Meeting([(host, port) for port in ports], _token(rendezvous))


def _token(rendezvous: str) -> bytes:
    return hashlib.sha256(b"resolute gang|" + rendezvous.encode()).digest()


class Reception:
    """The chief's side: waits for every other rank, once per channel, then closes the door."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._listener = _listen(meeting)

    def receive(self, ranks: Sequence[int], channels: Sequence[int]) -> dict[int, dict[int, socket.socket]]:
        """The connections, by channel and rank."""
        missing = {(channel, rank) for channel in channels for rank in ranks}
        found: dict[int, dict[int, socket.socket]] = {channel: {} for channel in channels}
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while missing:
                self._listener.settimeout(max(deadline - time.monotonic(), 0.01))
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    late = ", ".join(str(rank) for rank in sorted({rank for _, rank in missing}))
                    raise PeerLost(
                        f"rank {late} did not connect to the chief within {PATIENCE_SECONDS:.0f} s: see its output; it "
                        "may still be loading, have another rank number than its launcher says, or be unable to reach "
                        f"{_spelled(self._meeting.addresses[0])}"
                    ) from None
                place = _welcome(connection, self._meeting.token)
                if place in missing:
                    missing.remove(place)
                    found[place[0]][place[1]] = _ready(connection)
                else:
                    connection.close()
        finally:
            self._close()
        return found

    def _close(self) -> None:
        self._listener.close()
        address = self._meeting.addresses[0]
        if isinstance(address, str) and not address.startswith("\0"):
            try:
                os.unlink(address)
            except OSError:
                pass


def join(meeting: Meeting, rank: int, channels: Sequence[int], chief: int = 0) -> list[socket.socket]:
    """Connect to the chief, once per channel; waits for it to come."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = 0.002
    connections: list[socket.socket] = []
    while True:
        for address in meeting.addresses:
            while len(connections) < len(channels):
                connection = _introduce(address, meeting.token, channels[len(connections)], rank)
                if connection is None:
                    break
                connections.append(_ready(connection))
            if len(connections) == len(channels):
                return connections
        if time.monotonic() > deadline:
            raise PeerLost(
                f"rank {chief} could not be reached at {_spelled(meeting.addresses[0])} within {PATIENCE_SECONDS:.0f} "
                "s: see its output; check that all ranks were given the same MASTER_ADDR and MASTER_PORT"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)


def _listen(meeting: Meeting) -> socket.socket:
    problem: OSError | None = None
    for address in meeting.addresses:
        try:
            return _listen_at(address)
        except OSError as error:
            problem = error
    first = meeting.addresses[0]
    if isinstance(first, str):
        raise errors.InternalException(
            "another gang of ranks is starting under the same name on this machine; give the gangs different "
            "MASTER_PORTs, or different port_offsets if you make the DistributedContext yourself"
        ) from problem
    raise errors.InternalException(
        f"the chief cannot listen at {_spelled(first)}: {problem}; another program may use that port: choose another "
        "with port_offset (or pub_port), or end that program"
    ) from problem


def _listen_at(address: Address) -> socket.socket:
    if isinstance(address, str):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        family, kind, protocol, _, _ = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if isinstance(address, str) and not address.startswith("\0"):
            _remove_stale(address)
        try:
            listener.bind(address)
        except OSError:
            # The name other machines know this one by need not be an address of its own.
            if isinstance(address, str) or _is_own(address[0]):
                raise
            listener.bind(("", address[1]))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def _is_own(host: str) -> bool:
    family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def _remove_stale(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError:
            pass


def _welcome(connection: socket.socket, token: bytes) -> tuple[int, int] | None:
    """Channel and rank of a peer that knows the token; None for anyone else."""
    try:
        connection.settimeout(_HANDSHAKE_SECONDS)
        challenge = os.urandom(_NONCE)
        connection.sendall(challenge)
        hello = _read(connection, _HELLO.size)
        magic, channel, rank, nonce, proof = _HELLO.unpack(hello)
        if magic != _MAGIC or not hmac.compare_digest(proof, _proof(token, challenge, hello[:-_PROOF])):
            return None
        connection.sendall(_proof(token, nonce, b"chief"))
    except (OSError, EOFError):
        return None
    return channel, rank


def _introduce(address: Address, token: bytes, channel: int, rank: int) -> socket.socket | None:
    """A connection to a chief that knows the token; None if there is none at this address yet."""
    connection: socket.socket | None = None
    try:
        if isinstance(address, str):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(_HANDSHAKE_SECONDS)
            connection.connect(address)
        else:
            connection = socket.create_connection(address, timeout=_HANDSHAKE_SECONDS)
        challenge = _read(connection, _NONCE)
        nonce = os.urandom(_NONCE)
        place = _HELLO.pack(_MAGIC, channel, rank, nonce, bytes(_PROOF))[:-_PROOF]
        connection.sendall(place + _proof(token, challenge, place))
        if hmac.compare_digest(_read(connection, _PROOF), _proof(token, nonce, b"chief")):
            return connection
    except (OSError, EOFError):
        pass
    if connection is not None:
        connection.close()
    return None


def _proof(token: bytes, nonce: bytes | bytearray, text: bytes | bytearray) -> bytes:
    return hmac.digest(token, nonce + text, "sha256")


def _ready(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A machine that vanished without a word is noticed in minutes, not hours.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    _close_in_forks(connection)
    return connection


def _close_in_forks(connection: socket.socket) -> None:
    # A data-loading worker that outlives its rank would keep the rank's connections open, and so hide its death.
    global _watching_forks
    if not _watching_forks:
        _watching_forks = True
        os.register_at_fork(after_in_child=_close_all)
    _open_sockets.add(connection)


def _close_all() -> None:
    for connection in list(_open_sockets):
        connection.close()


def _spelled(address: Address) -> str:
    if isinstance(address, str):
        return "its socket on this machine"
    return f"{address[0]}:{address[1]}"


def _read(connection: socket.socket, size: int) -> bytearray:
    """Exactly so many bytes; EOFError if the other side is gone."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise EOFError
        view = view[count:]
    return data


GATHER, ALLGATHER, BROADCAST, GONE = range(1, 5)
_CALLS = {GATHER: "gather", ALLGATHER: "allgather", BROADCAST: "broadcast"}
_HEADER = struct.Struct("<BQ")
_COUNT = struct.Struct("<Q")


class Star:
    """Moves objects between members in rank order; member 0 is the centre. ``ranks`` are their names for messages."""

    def __init__(self, member: int, ranks: Sequence[int], connections: dict[int, socket.socket]) -> None:
        self._member = member
        self._ranks = list(ranks)
        self._connections = connections
        self._broken: errors.DeterminedError | None = None

    def gather(self, stuff: Any) -> list[Any] | None:
        self._require_whole()
        if self._member:
            self._send(0, GATHER, _pickled(stuff))
            return None
        return [stuff, *(pickle.loads(part) for part in self._collect(GATHER))]

    def allgather(self, stuff: Any) -> list[Any]:
        self._require_whole()
        if self._member:
            self._send(0, ALLGATHER, _pickled(stuff))
            parts: Sequence[bytes | bytearray | memoryview] = _split(self._receive(0, ALLGATHER))
        else:
            parts = [_pickled(stuff), *self._collect(ALLGATHER)]
            whole = b"".join(piece for part in parts for piece in (_COUNT.pack(len(part)), part))
            for peer in self._connections:
                self._send(peer, ALLGATHER, whole)
        return [stuff if at == self._member else pickle.loads(part) for at, part in enumerate(parts)]

    def broadcast(self, stuff: Any) -> Any:
        self._require_whole()
        if self._member:
            return pickle.loads(self._receive(0, BROADCAST))
        data = _pickled(stuff)
        for peer in self._connections:
            self._send(peer, BROADCAST, data)
        return stuff

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._broken = self._broken or errors.InternalException("this DistributedContext is closed")

    def _require_whole(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _collect(self, kind: int) -> list[bytearray]:
        """What every other member sent, in order."""
        if len(self._connections) == 1:
            return [self._receive(peer, kind) for peer in self._connections]
        parts: dict[int, bytearray] = {}
        pending = select.poll()
        members = {connection.fileno(): peer for peer, connection in self._connections.items()}
        for descriptor in members:
            pending.register(descriptor, select.POLLIN)
        while len(parts) < len(members):
            # Whoever is ready: a dead member must be noticed while a slow one is waited for.
            for descriptor, _ in pending.poll():
                parts[members[descriptor]] = self._receive(members[descriptor], kind)
                pending.unregister(descriptor)
        return [parts[peer] for peer in sorted(parts)]

    def _send(self, peer: int, kind: int, data: bytes) -> None:
        connection = self._connections[peer]
        try:
            if len(data) < 65536:
                connection.sendall(_HEADER.pack(kind, len(data)) + data)
            else:
                connection.sendall(_HEADER.pack(kind, len(data)))
                connection.sendall(data)
        except OSError:
            # A centre that broke off may have told why before it went.
            self._hear_last_words(peer)
            self._lose(self._ranks[peer], _CALLS[kind])

    def _receive(self, peer: int, kind: int) -> bytearray:
        connection = self._connections[peer]
        try:
            found, size = _HEADER.unpack(_read(connection, _HEADER.size))
            data = _read(connection, size)
        except (OSError, EOFError):
            self._lose(self._ranks[peer], _CALLS[kind])
        if found == GONE:
            self._lose(int.from_bytes(data, "little"), _CALLS[kind])
        if found != kind:
            self._break(
                errors.InternalException(
                    f"rank {self._ranks[peer]} called {_CALLS.get(found, 'something else')} while rank "
                    f"{self._ranks[self._member]} called {_CALLS[kind]}: all ranks must make the same calls in the "
                    "same order"
                )
            )
        return data

    def _hear_last_words(self, peer: int) -> None:
        try:
            self._connections[peer].settimeout(0.1)
            found, size = _HEADER.unpack(_read(self._connections[peer], _HEADER.size))
            if found == GONE:
                self._lose(int.from_bytes(_read(self._connections[peer], size), "little"), "")
        except (OSError, EOFError):
            pass

    def _lose(self, rank: int, call: str) -> NoReturn:
        """Tell the others, who may be waiting for us, and fail."""
        if self._member == 0:
            words = rank.to_bytes(_COUNT.size, "little")
            for connection in self._connections.values():
                try:
                    connection.settimeout(0.1)
                    connection.sendall(_HEADER.pack(GONE, len(words)) + words)
                except OSError:
                    pass
        during = f" (rank {self._ranks[self._member]} was in {call})" if call else ""
        self._break(
            PeerLost(
                f"lost the connection to rank {rank}: it ended or closed its context; its own output says why{during}"
            )
        )

    def _break(self, error: errors.DeterminedError) -> NoReturn:
        self._broken = error
        raise error from None  # How the connection broke helps nobody.


def _pickled(stuff: Any) -> bytes:
    return pickle.dumps(stuff, pickle.HIGHEST_PROTOCOL)


def _split(whole: bytearray) -> list[memoryview]:
    parts, view = [], memoryview(whole)
    while view:
        (size,) = _COUNT.unpack_from(view)
        parts.append(view[_COUNT.size : _COUNT.size + size])
        view = view[_COUNT.size + size :]
    return parts
