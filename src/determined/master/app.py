"""The composition root: the one file that knows every part of the master, and puts them together."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import os
import pathlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from types import ModuleType
from typing import Any, NamedTuple

import psutil
from fastapi import FastAPI

import determined
from determined.errors import Refused
from determined.master.api import (
    allocations,
    auth,
    changes,
    checkpoints,
    contexts,
    errors,
    experiments,
    jobs,
    logs,
    models,
    policy,
    pools,
    projects,
    runs,
    search,
    server,
    tasks,
    templates,
    tokens,
    trials,
    users,
    workspaces,
)
from determined.master.api.doorkeeper import Doorkeeper, hash_of, new_token
from determined.master.api.gate import Gate
from determined.master.api.passwords import Attempts, Passwords
from determined.master.engine.loop import Engine
from determined.master.lifecycle import projects as project_lifecycle
from determined.master.lifecycle import users as user_lifecycle
from determined.master.pools.build import build_pools
from determined.master.settings import Settings
from determined.master.store import contexts as code_rows
from determined.master.store import settings as remembered
from determined.master.store import users as user_rows
from determined.master.store.database import Database, Tx, open_database
from determined.master.store.migrate import migrate

logger = logging.getLogger("determined.master")

PARTS: list[ModuleType] = [
    allocations,
    auth,
    changes,
    checkpoints,
    contexts,
    experiments,
    jobs,
    logs,
    models,
    pools,
    projects,
    runs,
    search,
    server,
    tasks,
    templates,
    tokens,
    trials,
    users,
    workspaces,
]
# Code that nothing uses is kept for so long: whoever uploads it is about to.
_UNUSED_CODE_SECONDS = 7 * 86400.0
_TIDY_SECONDS = 3600.0


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
    app.state.setup_secret = None
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    for folder in (
        settings.state_dir,
        settings.contexts_dir,
        settings.checkpoints_dir,
        settings.runs_dir,
        settings.logs_dir,
        settings.allocations_dir,
    ):
        make_private(folder)
    async with contextlib.AsyncExitStack() as stack:
        app.state.db = db = await asyncio.to_thread(_open, settings)
        stack.push_async_callback(asyncio.to_thread, db.close)
        await _first_start(app, db)
        app.state.doorkeeper = doorkeeper = Doorkeeper(db)
        stack.push_async_callback(doorkeeper.write_uses)
        app.state.feed = feed = changes.Feed(db, doorkeeper)
        await feed.start()
        stack.callback(feed.close)
        app.state.pools = built = build_pools(settings)
        for pool in built.values():
            stack.push_async_callback(asyncio.to_thread, pool.close)
        app.state.engine = engine = Engine(db, built, settings, url=settings.url or "", cluster_id=app.state.cluster_id)
        tasks = [
            asyncio.create_task(_for_ever(work, what))
            for work, what in (
                (doorkeeper.keep_books, "the book of tokens"),
                (feed.run, "the stream of changes"),
                (engine.run, "the engine"),
                (functools.partial(_tidy, db, settings.contexts_dir), "tidying up"),
            )
        ]
        stack.push_async_callback(_end, tasks)
        engine.wake()
        yield


async def _for_ever(work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
    """Work that must not end: a fault in it is told in the log, and it begins anew."""
    while True:
        try:
            await work()
            return
        except Exception:
            logger.exception("%s failed, and begins anew", what)
            await asyncio.sleep(1.0)


async def _tidy(db: Database, folder: pathlib.Path) -> None:
    """Remove, every hour, archives of code that were not wanted, and those that a dead master was taking in."""
    for partial in folder.glob(f"*{contexts.PARTIAL}"):
        partial.unlink(missing_ok=True)
    while True:
        unused = await db.read(code_rows.unused_before, db.clock() - _UNUSED_CODE_SECONDS)
        for sha256 in unused:
            if await db.write(_forget_code, sha256, db.clock() - _UNUSED_CODE_SECONDS):
                contexts.path_of(folder, sha256).unlink(missing_ok=True)
        await asyncio.sleep(_TIDY_SECONDS)


def _forget_code(tx: Tx, sha256: str, before: float) -> bool:
    is_unused = sha256 in code_rows.unused_before(tx, before)
    if is_unused:
        code_rows.delete(tx, sha256)
    return is_unused


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _open(settings: Settings) -> Database:
    migrate(settings.database_url)
    return open_database(settings.database_url)


async def _first_start(app: FastAPI, db: Database) -> None:
    """What must be there before anybody asks for anything: an id, a project, an owner, and a way to sign in."""
    settings: Settings = app.state.settings
    owner_token, secret = read_or_make_token(settings.token_file), new_token()
    if await db.read(user_rows.is_known, hash_of(owner_token)) and not await db.read(
        user_rows.bearer, hash_of(owner_token)
    ):
        # Somebody has revoked it; whoever can read this machine's files gets another.
        settings.token_file.unlink()
        owner_token = read_or_make_token(settings.token_file)
    password = settings.initial_password
    found = await db.write(_first_things, settings.owner_name, hash_of(owner_token), hash_of(secret))
    app.state.cluster_id = found.cluster_id
    if found.needs_password and password is not None:
        await db.write(user_lifecycle.set_password, found.owner_id, await app.state.passwords.hash(password))
    elif found.needs_password and not settings.is_loopback:
        raise Refused(
            f"no administrator has a password, so the master does not listen on {settings.host}, where others can "
            "reach it. Start it once for this machine only and set one (det user change-password), or give "
            "DET_MASTER_INITIAL_PASSWORD"
        )
    elif found.needs_password:
        logger.info(
            "no administrator has a password yet; to set %s's, use this secret, once: %s", found.owner_name, secret
        )
        app.state.setup_secret = secret
    if not settings.is_loopback and settings.tls_cert is None:
        logger.warning(
            "%s can be reached from other machines, and passwords travel there unencrypted: set tls_cert and tls_key, "
            "or put a proxy with TLS before it",
            settings.host,
        )


class _Found(NamedTuple):
    cluster_id: str
    owner_id: int
    owner_name: str
    needs_password: bool


def _first_things(tx: Tx, owner_name: str, owner_hash: str, setup_hash: str) -> _Found:
    cluster_id = remembered.get(tx, "cluster_id")
    if cluster_id is None:
        cluster_id = secrets.token_hex(16)
        remembered.put(tx, "cluster_id", cluster_id)
    project_lifecycle.ensure_default(tx)
    owner, needs_password = user_lifecycle.set_up(tx, owner_name, owner_hash, setup_hash)
    return _Found(cluster_id, owner.id, owner.username, needs_password)


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
    if not is_wildcard(settings.host):
        return [*hosts, settings.host]
    addresses = [
        one.address.partition("%")[0]
        for found in psutil.net_if_addrs().values()
        for one in found
        if one.family in (socket.AF_INET, socket.AF_INET6)
    ]
    return [*hosts, socket.gethostname(), socket.getfqdn(), *addresses]


def is_wildcard(host: str) -> bool:
    """Whether a server bound to this listens on every address."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
