"""Who we are to which master: the user's own file of tokens, and the token of the master on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from determined import errors


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What the environment says about masters and users. Read once, where a program starts."""

    config_folder: pathlib.Path
    state_folder: pathlib.Path  # of the master on this machine
    master: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Surroundings:
        """From environment variables."""
        home = pathlib.Path(environ.get("HOME") or "~").expanduser()
        config = pathlib.Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "resolute"
        data = pathlib.Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "resolute" / "master"
        return cls(
            config_folder=config,
            state_folder=pathlib.Path(environ.get("DET_MASTER_DIR") or data),
            master=environ.get("DET_MASTER") or None,
            user=environ.get("DET_USER") or None,
            password=environ.get("DET_PASS") or None,
            token=environ.get("DET_TOKEN") or environ.get("DET_SESSION_TOKEN") or None,
        )


class Credentials:
    """The tokens a user was given, by master and user name, in a file that only they can read."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder / "auth.json"

    def token(self, url: str, user: str | None = None) -> str | None:
        """The token for a master: of that user, or of whoever signed in last."""
        entry = self._read().get(_key(url), {})
        found = entry.get("tokens", {}).get(user or entry.get("user"))
        return found if isinstance(found, str) else None

    def user(self, url: str) -> str | None:
        """Who signed in last."""
        found = self._read().get(_key(url), {}).get("user")
        return found if isinstance(found, str) else None

    def remember(self, url: str, user: str, token: str) -> None:
        """Keep a token."""
        with self._changing() as content:
            entry = content.setdefault(_key(url), {})
            entry["user"] = user
            entry.setdefault("tokens", {})[user] = token

    def forget(self, url: str, user: str | None = None) -> None:
        """Drop a token: of that user, or of whoever signed in last."""
        with self._changing() as content:
            entry = content.get(_key(url), {})
            gone = user or entry.get("user")
            entry.get("tokens", {}).pop(gone, None)
            if entry.get("user") == gone:
                entry.pop("user", None)

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self.path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise errors.Unauthenticated(f"{self.path} cannot be read ({error}); remove it and sign in again") from None
        return content if isinstance(content, dict) else {}

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.path.with_name(".auth.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = self._read()
            yield content
            unfinished = self.path.with_name(f".auth.{os.getpid()}")
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(content, file, indent=1)
            unfinished.replace(self.path)


def _key(url: str) -> str:
    return url.rstrip("/")
