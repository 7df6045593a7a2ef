"""The starter: a process that has imported everything, and forks a node process when a pool asks for one.

``python -m determined.worker.starter SOCKET [--bare]``. It never runs a torch operation and never touches a GPU: its
forks could not any more. With ``--bare`` it has no torch, is ready at once, and its node processes start ranks cold.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import pathlib
import selectors
import signal
import socket
import struct
import sys
import time
import traceback
import weakref
from typing import NoReturn

from determined import errors
from determined.wire.node_spec import NodeSpec
from determined.worker import allocation, gang, processes, sweeper, sweepers, warm

# What a training script imports first.
_PRELOADED = ("numpy", "torch", "torch._dynamo", "torch.utils.data", "torch.distributed", "determined.pytorch")
_ALSO = ("determined.client.transport", "determined.core.uplink", "determined.wire.reports", "determined.core")
_INPUT = 0  # Whoever started us holds the other end.
# How long it waits for somebody to hold a connection to it, or to ask.
_ALONE_SECONDS = 15.0
# Nobody has asked for so long that its memory is better given back; the next one to ask starts another.
_IDLE_SECONDS = 3600.0
_LOOK_SECONDS = 2.0
_REQUEST_SECONDS = 2.0
_MOST_BYTES = 4 << 20
_LARGE_PAGE = 2 << 20
_MADV_COLLAPSE = 25


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2) or arguments[1:] not in ([], ["--bare"]):
        print("usage: python -m determined.worker.starter SOCKET [--bare]", file=sys.stderr)
        return 2
    address, is_bare = pathlib.Path(arguments[0]), len(arguments) == 2
    del sys.path[0]  # The folder we were started in is no place for modules.
    at_start = {name: value for name, value in os.environ.items() if name != sweeper.VARIABLE}
    room = _marker_room()
    os.umask(0o077)
    lock = os.open(f"{address}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # There is one already.
    # Two, so that a kill of one at the very moment a node process is killed still leaves one.
    services = [sweepers.Service() for _ in range(processes.SWEEPERS)]
    for name in (*_ALSO, *(() if is_bare else _PRELOADED)):
        importlib.import_module(name)
    start_rank: gang.Start = gang.start_cold if is_bare else warm.Forks(at_start, room)
    os.umask(0o022)
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        # Taking libraries down at exit is work that no fork needs to do.
        finalizer.atexit = False
    # What is here now stays: no collection in a fork need touch, and so copy, its pages.
    gc.collect()
    gc.freeze()
    _use_large_pages()
    with socket.socket(socket.AF_UNIX) as listener:
        _listen(listener, address)
        starter = Starter(listener, address, start_rank, services)
        try:
            starter.serve()
        finally:
            for service in services:
                service.let_go()
            if starter.is_published:
                address.unlink(missing_ok=True)
    return 0


def _listen(listener: socket.socket, address: pathlib.Path) -> None:
    """Publish the socket when somebody listens already. By its folder's descriptor: names of sockets must be short."""
    folder = os.open(address.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    unfinished = f".{address.name}.{os.getpid()}"
    try:
        listener.bind(f"/proc/self/fd/{folder}/{unfinished}")
        os.chmod(address.parent / unfinished, 0o600)
        listener.listen(128)
        os.replace(address.parent / unfinished, address)
    finally:
        os.close(folder)


class Starter:
    """Answers requests one by one, until nobody asks any more."""

    def __init__(
        self, listener: socket.socket, address: pathlib.Path, start_rank: gang.Start, services: list[sweepers.Service]
    ) -> None:
        self._listener = listener
        self._address = address
        self._start_rank = start_rank
        self._services = services
        self._born = self._own_inode()
        self._code = _code_now()
        self._asked_at = time.monotonic()
        self._holders: set[object] = set()

    def serve(self) -> None:
        self._listener.setblocking(False)
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(reader, selectors.EVENT_READ)
            with contextlib.suppress(OSError):  # Not if it is no pipe.
                selector.register(_INPUT, selectors.EVENT_READ)
                self._holders.add(_INPUT)
            while True:
                for key, _ in selector.select(_LOOK_SECONDS):
                    if key.fd == reader:
                        os.read(reader, 4096)
                    elif key.fileobj in self._holders:
                        self._release(key.fileobj, selector)
                    elif not self._accept(selector):
                        return
                self._replace_services(_reap())
                quiet_seconds = time.monotonic() - self._asked_at
                is_alone = quiet_seconds > (_IDLE_SECONDS if self._holders else _ALONE_SECONDS)
                # The folder is gone, or another starter has taken the place.
                if is_alone or not self.is_published:
                    return

    def _replace_services(self, ended: set[int]) -> None:
        for at, service in enumerate(self._services):
            if service.pid in ended:
                service.let_go()
                self._services[at] = sweepers.Service()

    @property
    def is_published(self) -> bool:
        """Whether whoever asks at our address asks us."""
        return self._own_inode() == self._born

    def _release(self, holder: object, selector: selectors.BaseSelector) -> None:
        self._holders.discard(holder)
        if isinstance(holder, socket.socket):
            selector.unregister(holder)
            holder.close()
        else:
            selector.unregister(_INPUT)
        self._asked_at = time.monotonic()

    def _own_inode(self) -> int | None:
        try:
            return os.stat(self._address).st_ino
        except OSError:
            return None

    def _accept(self, selector: selectors.BaseSelector) -> bool:
        """Serve one request; False when we are out of date, and whoever asked must find another."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return True
        lock: int | None = None
        with contextlib.ExitStack() as stack:
            stack.enter_context(connection)
            connection.settimeout(_REQUEST_SECONDS)
            try:
                if _user_of(connection) != os.getuid():
                    return True
                received = _receive(connection)
                if received is None:
                    stack.pop_all()
                    self._holders.add(connection)
                    selector.register(connection, selectors.EVENT_READ)
                    return True
                request, lock = received
                if self._code != _code_now():
                    return False
                self._asked_at = time.monotonic()
                pid = os.fork()
                if pid == 0:
                    _be_node(request, lock, [service.address for service in self._services], self._start_rank)
                connection.sendall(str(pid).encode())
            except (OSError, ValueError, KeyError):
                pass
            finally:
                if lock is not None:
                    os.close(lock)
        return True


def _receive(connection: socket.socket) -> tuple[dict[str, object], int] | None:
    """A request with its lock; None from somebody who only wants us to stay."""
    head, descriptors, _, _ = socket.recv_fds(connection, 8, 1)
    if head == bytes(8) and not descriptors:
        return None
    if len(descriptors) != 1 or len(head) != 8:
        raise ValueError("not a request")
    try:
        size, body = int.from_bytes(head, "big"), b""
        if size > _MOST_BYTES:
            raise ValueError("not a request")
        while len(body) < size:
            piece = connection.recv(size - len(body))
            if not piece:
                raise ValueError("half a request")
            body += piece
        request: dict[str, object] = json.loads(body)
    except BaseException:
        os.close(descriptors[0])
        raise
    return request, descriptors[0]


def _be_node(request: dict[str, object], lock: int, services: list[str], start_rank: gang.Start) -> NoReturn:
    """In the fork: become the node process, and never return."""
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        path = pathlib.Path(str(request["spec"]))
        nothing = os.open(os.devnull, os.O_RDONLY)
        output = os.open(str(request["output"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for at, descriptor in enumerate((nothing, output, output)):
            os.dup2(descriptor, at, inheritable=True)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != lock:
                try:
                    os.close(int(name))
                except OSError:
                    pass  # The one that was listing.
        os.chdir(path.parent)
        environ = request["environ"]
        assert isinstance(environ, dict)
        os.environ.clear()
        os.environ.update(environ)
        os.set_inheritable(lock, False)
        processes.name_process("det-node")
        spec = NodeSpec.read(path)
        code = allocation.run(spec, environ, sys.executable, lock=lock, sweepers=services, start_rank=start_rank)
    except errors.DeterminedError as error:
        print(error, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(code)


def _reap() -> set[int]:
    """Take leave of children that have ended; which those are."""
    ended: set[int] = set()
    try:
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            ended.add(pid)
    except ChildProcessError:
        pass
    return ended


def _use_large_pages() -> None:
    """Gather our memory into large pages: a fork copies the tables of pages, and so has five times less to do."""
    if not sys.platform.startswith("linux"):
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps]
    for place, permissions, *rest in lines:
        if not permissions.startswith("rw") or (len(rest) > 3 and rest[3] != "[heap]"):
            continue
        first, last = (int(number, 16) for number in place.split("-"))
        first, last = -(-first // _LARGE_PAGE) * _LARGE_PAGE, last // _LARGE_PAGE * _LARGE_PAGE
        if last > first:
            madvise(first, last - first, _MADV_COLLAPSE)  # A system that cannot leaves it as it is.


def _user_of(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _marker_room() -> tuple[int, int] | None:
    """Where the system reads what it shows as this process's marker, and how much fits there."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address = libc.getenv(sweeper.VARIABLE.encode())
    size = len(os.environ.get(sweeper.VARIABLE, ""))
    return (address, size) if address and size >= 64 else None


def _code_now() -> list[float]:
    """Changes when packages are installed, or our own sources are edited: then we are out of date."""
    found = []
    ours = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "determined"]
    for path in (*sys.path, *(getattr(module, "__file__", None) or "" for module in ours)):
        try:
            found.append(os.stat(path).st_mtime)
        except OSError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
