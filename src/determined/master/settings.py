"""How a master is set up: a YAML file, environment variables and flags, checked as one. Nothing else in the master
reads the environment.

A flag goes before its environment variable (``DET_MASTER_PORT`` for ``port``), that before the file.
"""

from __future__ import annotations

import ipaddress
import os
import pathlib
import pwd
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic

from determined import errors
from determined.config import places, problems
from determined.config.masking import MASK, mask
from determined.config.problems import Place, Places, Problem
from determined.config.section import AtLeastOne, BrokenRule, Flag, FreeMap, Name, NotNegative, Section, Text, Texts
from determined.config.storage import Storage, UsualStorage

PREFIX = "DET_MASTER_"

Port = Annotated[int, pydantic.Strict(), pydantic.Field(ge=0, le=65535)]
Seconds = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]


class PoolSettings(Section):
    """One resource pool."""

    kind: Name = pydantic.Field("local", description="`local` (this machine), or `module:Class`, a pool of your own.")
    slots: NotNegative | None = pydantic.Field(
        None, description="Slots of this machine; absent: one for each GPU, or one for each CPU core without GPUs."
    )
    scheduler: Name = pydantic.Field(
        "priority", description="`fifo`, `priority`, `fair_share`, or `module:Class`, a policy of your own."
    )
    scheduler_options: FreeMap = pydantic.Field({}, description="Passed to the scheduling policy.")
    options: FreeMap = pydantic.Field({}, description="Passed to a pool of your own.")


class Settings(Section):
    """Everything that can be set about a master."""

    dir: pathlib.Path | None = pydantic.Field(
        None, description="Folder for all the master keeps; absent: `resolute/master` below `$XDG_DATA_HOME`."
    )
    host: Name = pydantic.Field(
        "127.0.0.1", description="Address to listen on. Others than this machine's own need a signed-in administrator."
    )
    port: Port = pydantic.Field(
        8080, description="Port to listen on; 0 takes any that is free, the last one again if it is."
    )
    url: Name | None = pydantic.Field(
        None, description="Where nodes and people reach this master; absent: worked out from `host` and `port`."
    )
    hosts: Texts = pydantic.Field(
        (), description="Names, besides this machine's own, by which browsers and programs may address this master."
    )
    tls_cert: pathlib.Path | None = pydantic.Field(None, description="Certificate chain (PEM); serves HTTPS.")
    tls_key: pathlib.Path | None = pydantic.Field(None, description="Private key (PEM) of `tls_cert`.")
    tls_ca: pathlib.Path | None = pydantic.Field(
        None, description="Authorities (PEM) by which nodes know `tls_cert`; absent: `tls_cert` itself."
    )
    cluster_name: Text = pydantic.Field("", description="What people call this cluster.")
    owner: Name | None = pydantic.Field(
        None, description="Name of the first administrator; absent: whoever first starts the master."
    )
    initial_password: Text | None = pydantic.Field(
        None,
        description="The first administrator's password, unless they have one; best given by its environment variable.",
        repr=False,
    )
    database: Name | None = pydantic.Field(
        None, description="SQLAlchemy URL of the database; absent: SQLite, in `dir`.", repr=False
    )
    pools: dict[Name, PoolSettings] = pydantic.Field({"default": PoolSettings()}, description="Resource pools by name.")
    default_pool: Name | None = pydantic.Field(
        None, description="Pool of whatever names none; absent: the first of `pools`."
    )
    slots: NotNegative | None = pydantic.Field(None, description="Short for `slots` of the default pool.")
    warm_start: Flag = pydantic.Field(
        True,
        description="Keep a process ready that has imported torch, from which trials of this machine start sooner.",
    )
    checkpoint_storage: Storage = pydantic.Field(
        UsualStorage(),
        description="Where checkpoints go that say nothing else; absent: the folder `checkpoints` in `dir`.",
    )
    experiment_defaults: FreeMap = pydantic.Field({}, description="Laid under every experiment's config.", repr=False)
    session_days: Seconds = pydantic.Field(7.0, description="Days until somebody who signed in must do so again.")
    password_cost: Annotated[int, pydantic.Field(ge=10, le=20)] = pydantic.Field(
        15, description="Work of checking a password: scrypt with N = 2**cost."
    )
    log_retention_days: Annotated[int, pydantic.Field(ge=-1, le=32767)] = pydantic.Field(
        -1, description="Days that logs of ended trials and tasks are kept; -1: for ever."
    )
    change_retention_hours: Seconds = pydantic.Field(
        24.0, description="Hours for which a client that was away can ask what has changed."
    )
    max_connections: AtLeastOne = pydantic.Field(4096, description="Connections open at once; more are refused.")
    client_timeout_seconds: Seconds = pydantic.Field(
        30.0, description="Seconds for a client to send its request's head, and each next piece of its body."
    )
    log_level: Literal["debug", "info", "warning", "error"] = pydantic.Field(
        "info", description="`debug`, `info`, `warning` or `error`: what the master's log tells."
    )

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> list[BrokenRule]:
        broken = []
        if ("tls_cert" in written) != ("tls_key" in written):
            broken.append(BrokenRule((), "needs both tls_cert and tls_key, or neither"))
        pools = written.get("pools", {"default": {}})
        if isinstance(pools, Mapping):
            default = written.get("default_pool")
            if not pools:
                broken.append(BrokenRule(("pools",), "must have a pool"))
            elif isinstance(default, str) and default not in pools:
                broken.append(BrokenRule(("default_pool",), f"must be one of pools: {', '.join(map(str, pools))}"))
        return broken

    # Where things are.

    @property
    def state_dir(self) -> pathlib.Path:
        """The folder of everything the master keeps."""
        return (self.dir or default_dir({})).expanduser().absolute()

    @property
    def database_url(self) -> str:
        """What ``open_database`` takes."""
        return self.database or str(self.state_dir / "master.db")

    @property
    def token_file(self) -> pathlib.Path:
        """The bearer token of the local owner, readable by them only."""
        return self.state_dir / "token"

    @property
    def log_file(self) -> pathlib.Path:
        """The master's own log."""
        return self.state_dir / "master.log"

    @property
    def contexts_dir(self) -> pathlib.Path:
        """Archives of submitted code."""
        return self.state_dir / "contexts"

    @property
    def checkpoints_dir(self) -> pathlib.Path:
        """The default checkpoint storage."""
        return self.state_dir / "checkpoints"

    @property
    def runs_dir(self) -> pathlib.Path:
        """Run folders of trials and tasks, kept over their allocations."""
        return self.state_dir / "runs"

    @property
    def logs_dir(self) -> pathlib.Path:
        """Logs of trials and tasks."""
        return self.state_dir / "logs"

    @property
    def allocations_dir(self) -> pathlib.Path:
        """What the local pool keeps of each gang."""
        return self.state_dir / "allocations"

    # What follows from them.

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can reach the master."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def default_pool_name(self) -> str:
        """The pool of whatever names none."""
        return self.default_pool or next(iter(self.pools))

    def pool(self, name: str) -> PoolSettings:
        """The settings of a pool."""
        found = self.pools[name]
        if name == self.default_pool_name and found.slots is None and self.slots is not None:
            return found.model_copy(update={"slots": self.slots})
        return found

    @property
    def owner_name(self) -> str:
        """Name of the first administrator."""
        if self.owner:
            return self.owner
        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            return "owner"


def default_dir(environ: Mapping[str, str]) -> pathlib.Path:
    """Where a master keeps its things unless told otherwise."""
    data = environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return pathlib.Path(data) / "resolute" / "master"


def load(
    flags: Mapping[str, Any] | None = None,
    file: pathlib.Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """The settings that flags, environment and file describe together.

    Raises InvalidConfigurationException that lists every mistake, each with its place.
    """
    file = file or (pathlib.Path(environ[f"{PREFIX}CONFIG"]) if environ.get(f"{PREFIX}CONFIG") else None)
    found = places.Written({}, Places({}, Place()), ())
    if file is not None:
        try:
            found = places.read_yaml(file.read_bytes(), str(file))
        except OSError as error:
            raise errors.InvalidConfigurationException(f"{file} cannot be read: {error.strerror or error}") from None
    mistakes: list[Problem] = list(found.problems)
    written: dict[str, Any] = {}
    if isinstance(found.data, dict):
        written = dict(found.data)
    elif found.data is not None:
        mistakes.append(Problem((), "must be a map of settings", Place(str(file))))
    by_path = dict(found.places.by_path)
    for name in Settings.model_fields:
        text = environ.get(f"{PREFIX}{name.upper()}")
        if text:
            written[name] = _from_text(name, text)
            by_path[(name,)] = Place(f"{PREFIX}{name.upper()}")
    for name, value in (flags or {}).items():
        if value is not None:
            written[name] = value
            by_path[(name,)] = Place(f"--{name.replace('_', '-')}")
    written.setdefault("dir", str(default_dir(environ)))
    where = Places(by_path, found.places.everything)
    try:
        settings = Settings.model_validate(written)
    except pydantic.ValidationError as error:
        mistakes += problems.explain(error, written, places=where)
    if mistakes:
        raise problems.as_exception(mistakes, str(file) if file else "the master's settings")
    return settings


def task_environ(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What tasks of this machine find in their environment: all that is not about the master itself."""
    return {name: value for name, value in environ.items() if not name.startswith(PREFIX)}


def _from_text(name: str, text: str) -> Any:
    """The value that an environment variable's text stands for: lists may be given with commas."""
    kind = str(Settings.model_fields[name].annotation)
    if name == "hosts":
        return [part.strip() for part in text.split(",") if part.strip()]
    if (re.search(r"\bstr\b", kind) and "dict" not in kind) or "Path" in kind:
        return text
    value = places.read_yaml(text, f"{PREFIX}{name.upper()}")
    return text if value.problems else value.data


def masked(settings: Settings) -> dict[str, Any]:
    """The settings as people may see them."""
    shown = settings.model_dump(mode="json")
    shown["dir"] = str(settings.state_dir)
    if settings.database and "@" in settings.database:
        scheme, _, rest = settings.database.partition("://")
        shown["database"] = f"{scheme}://{MASK}@{rest.rpartition('@')[2]}"
    if settings.initial_password is not None:
        shown["initial_password"] = MASK
    shown["experiment_defaults"] = mask(shown["experiment_defaults"])
    shown["pools"] = _mask(shown["pools"])
    return mask(shown)


_SECRET = ("secret", "password", "token", "key", "credential", "connection_string")


def _mask(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: MASK if inner and any(word in str(name).lower() for word in _SECRET) else _mask(inner)
            for name, inner in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_mask(inner) for inner in value]
    return value
