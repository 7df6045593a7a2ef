"""The composition root: the one file that knows every part of the master, and puts them together."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ipaddress
import logging
import os
import pathlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from types import ModuleType

import psutil
from fastapi import FastAPI

import determined
from determined.master.api import (
    auth,
    changes,
    contexts,
    errors,
    models,
    policy,
    projects,
    server,
    templates,
    tokens,
    users,
    workspaces,
)
from determined.master.api.doorkeeper import Doorkeeper, hash_of, new_token
from determined.master.api.gate import Gate
from determined.master.api.passwords import Attempts, Passwords
from determined.master.lifecycle import projects as project_lifecycle
from determined.master.lifecycle import users as user_lifecycle
from determined.master.settings import Settings
from determined.master.store import settings as remembered
from determined.master.store.database import Database, Tx, make_engine

logger = logging.getLogger("determined.master")

PARTS: list[ModuleType] = [
    auth,
    changes,
    contexts,
    models,
    projects,
    server,
    templates,
    tokens,
    users,
    workspaces,
]
for _name in (
    "experiments",
    "trials",
    "checkpoints",
    "logs",
    "tasks",
    "jobs",
    "pools",
    "runs",
    "allocations",
    "search",
):
    with contextlib.suppress(ImportError):
        PARTS.append(importlib.import_module(f"determined.master.api.{_name}"))


class _Idle:
    """Stands in while there is no engine."""

    def wake(self) -> None:
        """Nothing to wake."""

    async def run(self) -> None:
        """Nothing to run."""


def create_app(settings: Settings, stop: Callable[[str], None] | None = None) -> FastAPI:
    """The master as an ASGI app. ``stop`` is called, with the reason, when an administrator asks it to stop.

    All it keeps is in ``settings.state_dir``, which its lifespan opens and closes. Raises RuntimeError if a route does
    not say who may call it.
    """
    app = FastAPI(
        title="Resolute",
        version=determined.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    errors.install(app)
    policy.include(app, (part.router for part in PARTS))
    app.add_middleware(Gate, hosts=_hosts(settings), timeout_seconds=settings.client_timeout_seconds)
    app.state.settings = settings
    app.state.stop = stop or (lambda reason: None)
    app.state.under_way = {}
    app.state.passwords = Passwords(settings.password_cost)
    app.state.account_attempts = Attempts(free=8)
    app.state.address_attempts = Attempts(free=20)
    app.state.engine = _Idle()
    app.state.pools = {}
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    for folder in (settings.state_dir, settings.contexts_dir, settings.checkpoints_dir, settings.runs_dir):
        make_private(folder)
    app.state.db = db = _open(settings)
    app.state.doorkeeper = doorkeeper = Doorkeeper(db)
    app.state.feed = feed = changes.Feed(db, doorkeeper)
    tasks = []
    try:
        app.state.setup_secret = await db.write(_first_things, settings, read_or_make_token(settings.token_file))
        await feed.start()
        tasks += [asyncio.create_task(doorkeeper.keep_books()), asyncio.create_task(feed.run())]
        yield
    finally:
        feed.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            await doorkeeper.write_uses()
        await asyncio.to_thread(db.close)


def _open(settings: Settings) -> Database:
    from determined.master.store import tables

    tables.metadata.create_all(make_engine(settings.database_url))
    return Database(make_engine(settings.database_url))


def _first_things(tx: Tx, settings: Settings, owner_token: str) -> str | None:
    """What must be there before anybody asks for anything. Returns the setup secret while one is needed."""
    if remembered.get(tx, "cluster_id") is None:
        remembered.put(tx, "cluster_id", str(secrets.token_hex(16)))
    project_lifecycle.ensure_default(tx)
    secret = new_token()
    found = user_lifecycle.set_up(tx, settings.owner_name, hash_of(owner_token), hash_of(secret))
    return secret if found.needs_secret else None


def read_or_make_token(path: pathlib.Path) -> str:
    """The bearer token of the local owner, made when there is none."""
    with contextlib.suppress(FileNotFoundError):
        token = path.read_text().strip()
        if len(token) >= 40:
            os.chmod(path, 0o600)
            return token
    token = new_token()
    write_private(path, token + "\n")
    return token


def write_private(path: pathlib.Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def make_private(folder: pathlib.Path) -> None:
    """A folder that only its owner can look into."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(folder, 0o700)


def _hosts(settings: Settings) -> list[str]:
    """The names that this master answers to, besides those of the machine for itself."""
    hosts = list(settings.hosts)
    if settings.is_loopback:
        return hosts
    if not ipaddress_is_wildcard(settings.host):
        return [*hosts, settings.host]
    addresses = [
        one.address.partition("%")[0]
        for found in psutil.net_if_addrs().values()
        for one in found
        if one.family in (socket.AF_INET, socket.AF_INET6)
    ]
    return [*hosts, socket.gethostname(), socket.getfqdn(), *addresses]


def ipaddress_is_wildcard(host: str) -> bool:
    """Whether a server bound to this listens on every address."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
