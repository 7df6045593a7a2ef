"""``python -m determined.master``: one master for one state folder, from its lock to its graceful stop.

Stopping it leaves trials running: their node processes belong to nobody, and the next master finds them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import gc
import json
import logging
import os
import pathlib
import resource
import socket
import ssl
import sys
from collections.abc import Coroutine, Iterator, Sequence
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

import determined
from determined import errors
from determined.master import app as composition
from determined.master import own_log
from determined.master import settings as master_settings
from determined.master.api.gate import HEADERS
from determined.master.listening import bounded_protocol
from determined.master.settings import Settings

logger = logging.getLogger("determined.master")

_GRACE_SECONDS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a master until it is told to stop; returns its exit code."""
    asked = _parser().parse_args(arguments)
    file = asked.config
    flags = {name: value for name, value in vars(asked).items() if name != "config"}
    try:
        settings = master_settings.load(flags, file)
    except errors.DeterminedError as error:
        print(error, file=sys.stderr)
        return 1
    # Everything in the state folder is its owner's alone.
    os.umask(0o077)
    try:
        composition.make_private(settings.state_dir)
        with _lock(settings.state_dir / "lock"):
            own_log.start(settings.log_file, settings.log_level.upper())
            return _run(settings)
    except errors.DeterminedError as error:
        if logger.hasHandlers():
            logger.error("%s", error)
        else:
            print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"the master cannot start: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m determined.master",
        description="Run a master. Every setting can also be given as DET_MASTER_<NAME>, or in a YAML file.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=pathlib.Path, help="YAML file with settings")
    for name, kind in (
        ("dir", str),
        ("host", str),
        ("port", int),
        ("url", str),
        ("cluster_name", str),
        ("slots", int),
        ("tls_cert", str),
        ("tls_key", str),
        ("owner", str),
        ("log_level", str),
    ):
        described = Settings.model_fields[name].description or ""
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, type=kind, help=described.replace("%", "%%"))
    parser.add_argument("--allow-host", dest="hosts", action="append", help=Settings.model_fields["hosts"].description)
    return parser


@contextlib.contextmanager
def _lock(path: pathlib.Path) -> Iterator[None]:
    """Hold the state folder. The lock goes with the process, however that ends. Raises Refused if another has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise errors.Refused(
                f"a master (process {pid or 'unknown'}) is running in {path.parent}; stop it first, or choose another "
                "folder with --dir"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _run(settings: Settings) -> int:
    _allow_many_files()
    sockets = _bind_where_we_were(settings)
    port = sockets[0].getsockname()[1]
    settings = settings.model_copy(update={"port": port, "url": settings.url or _url(settings, port)})
    try:
        try:
            from uvloop import run  # type: ignore[import-not-found]
        except ImportError:
            run = asyncio.run
        work: Coroutine[Any, Any, None] = _serve(settings, sockets)
        run(work)
    finally:
        for one in sockets:
            one.close()
    return 0


async def _serve(settings: Settings, sockets: list[socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    server: _Server | None = None

    def stop(reason: str) -> None:
        logger.info("stopping: %s", reason)
        if server is not None:
            # The answer to whoever asked is sent first.
            loop.call_later(0.1, server.leave)

    app = composition.create_app(settings, stop)
    async with app.router.lifespan_context(app):
        server = _Server(_config(settings, app), app)
        try:
            await server.serve(sockets)
        finally:
            with contextlib.suppress(OSError):
                (settings.state_dir / "master.json").unlink()
    logger.info("the master has stopped; what it started runs on")


def _config(settings: Settings, app: FastAPI) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        http=bounded_protocol(settings.client_timeout_seconds, settings.max_connections, HEADERS),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=str(settings.tls_key) if settings.tls_key else None,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise errors.InvalidConfigurationException(f"tls_cert and tls_key cannot be used: {error}") from None
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return config


class _Server(uvicorn.Server):
    """Says where it serves, ends streams when it is told to stop, and then leaves with code 0."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        settings: Settings = self._app.state.settings
        cluster_id = self._app.state.cluster_id
        found = {"url": settings.url, "pid": os.getpid(), "cluster_id": cluster_id, "version": determined.__version__}
        composition.write_private(settings.state_dir / "master.json", json.dumps(found) + "\n")
        for pool in self._app.state.pools.values():
            if callable(prepare := getattr(pool, "prepare", None)):
                await asyncio.to_thread(prepare)
        gc.collect()
        gc.freeze()
        logger.info("the master %s serves at %s, from %s", determined.__version__, settings.url, settings.state_dir)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        else:
            logger.info("stopping: got signal %d", sig)
            self.leave()

    def leave(self) -> None:
        """Stop taking requests, finish those under way, and end."""
        self.should_exit = True
        self._app.state.feed.close()


def _bind_where_we_were(settings: Settings) -> list[socket.socket]:
    """The sockets. A master that takes any free port takes its last one again: trials and people look for it there."""
    place = settings.state_dir / "port"
    if settings.port == 0:
        with contextlib.suppress(OSError, ValueError, errors.Refused):
            return _bind(settings.model_copy(update={"port": int(place.read_text())}))
    sockets = _bind(settings)
    composition.write_private(place, f"{sockets[0].getsockname()[1]}\n")
    return sockets


def _bind(settings: Settings) -> list[socket.socket]:
    """Sockets for every address that the host stands for, all on one port."""
    host = None if settings.host == "*" else settings.host
    try:
        found = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise errors.InvalidConfigurationException(f"host cannot be {settings.host!r}: {error.strerror}") from None
    sockets: list[socket.socket] = []
    port = settings.port
    for family, kind, protocol, _, address in dict.fromkeys(found):
        one = socket.socket(family, kind, protocol)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            one.bind((address[0], port, *address[2:]))
        except OSError as error:
            one.close()
            if sockets and settings.host == "localhost":
                continue  # a machine without IPv6
            for other in sockets:
                other.close()
            raise errors.Refused(
                f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another port with --port"
            ) from None
        port = one.getsockname()[1]
        sockets.append(one)
    return sockets


def _url(settings: Settings, port: int) -> str:
    host = settings.host
    if composition.is_wildcard(host):
        host = socket.gethostname()
    scheme = "https" if settings.tls_cert else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _allow_many_files() -> None:
    """Each connection is an open file, and so is much else."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sys.exit(main())
