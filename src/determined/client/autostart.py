"""Finds the master of this machine, or starts one and waits until it serves."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from determined import errors
from determined.client.credentials import Surroundings
from determined.client.transport import Session

_START_SECONDS = 60.0
_LOG_LINES = 15


class LocalMaster(NamedTuple):
    """The master that runs on this machine for this user, and the token of its owner."""

    url: str
    token: str | None
    pid: int


def find(state_folder: pathlib.Path) -> LocalMaster | None:
    """The running one, or None. Does not wait for one that is about to serve."""
    try:
        written = json.loads((state_folder / "master.json").read_text())
        url, pid = str(written["url"]), int(written["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # The lock says that it lives: an address left behind may by now belong to a stranger, who must not get the token.
    if not _is_alive(pid) or not _is_locked(state_folder / "lock"):
        return None
    session = Session(url, timeout=5.0, attempts=1)
    try:
        session.call("GET", "/health")
    except errors.DeterminedError:
        return None
    finally:
        session.close()
    token: str | None = None
    with contextlib.suppress(OSError):
        token = (state_folder / "token").read_text().strip() or None
    return LocalMaster(url, token, pid)


def find_or_start(
    surroundings: Surroundings,
    environ: Mapping[str, str],
    say: Callable[[str], None] = lambda sentence: None,
    *,
    seconds: float = _START_SECONDS,
) -> LocalMaster:
    """The running one, or a new one, which stays when we leave. ``say`` is told that one is started, and where.

    Raises MasterUnreachable with the end of its log if it does not come to serve.
    """
    folder = surroundings.state_folder
    found = find(folder)
    if found is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise errors.Refused(
            f"the master's folder {folder} cannot be made: {error.strerror}; name another place with DET_MASTER_DIR"
        ) from None
    log = folder / "master.log"
    before = _size(log)
    pid: int | None = None
    starts_left = 2
    if not _is_locked(folder / "lock"):
        say(f"starting a master on this machine (its log: {log})")
        pid, starts_left = _start(folder, log, environ), 1
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = find(folder)
        if found is not None:
            say(f"the master serves at {found.url}")
            return found
        # Somebody else may have started one at the same moment: then ours has left, and theirs is waited for.
        if pid is not None and _has_ended(pid):
            pid = None
            if not _is_locked(folder / "lock") and starts_left:
                # Somebody's look at the lock can be in its way for a moment.
                before = _size(log)
                pid, starts_left = _start(folder, log, environ), 0
            elif not _is_locked(folder / "lock"):
                raise errors.MasterUnreachable(
                    f"the master ended before it served. The end of {log}:\n{_tail(log, before)}"
                )
        time.sleep(0.05)
    raise errors.MasterUnreachable(
        f"the master did not serve within {seconds:.0f} s. The end of {log}:\n{_tail(log, before)}"
    )


def whereabouts(state_folder: pathlib.Path) -> Callable[[], str | None]:
    """For Session's ``moved``: where the master of this folder serves by now, which may be at another port."""

    def moved() -> str | None:
        found = find(state_folder)
        return found.url if found is not None else None

    return moved


def _start(folder: pathlib.Path, log: pathlib.Path, environ: Mapping[str, str]) -> int:
    """A process in a session of its own, which no terminal and no signal to us reaches."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "determined.master"],
        {**environ, "DET_MASTER_DIR": str(folder)},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def _is_locked(path: pathlib.Path) -> bool:
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _has_ended(pid: int) -> bool:
    try:
        ended, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return ended == pid


def _size(log: pathlib.Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _tail(log: pathlib.Path, after: int) -> str:
    """What was written since: what earlier masters wrote explains nothing, and may hold the secret to sign in first."""
    try:
        with open(log, "rb") as file:
            file.seek(after)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "(there is none)"
    return "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])
