"""What a run was trained with: interpreter, machine, package versions, git state. Never the whole environment."""

from __future__ import annotations

import os
import pathlib
import platform
import sys
from collections.abc import Mapping
from typing import Any

# Only what changes results or speed; an environment is full of secrets.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
    "HIP_VISIBLE_DEVICES",
    "LOCAL_WORLD_SIZE",
    "MKL_NUM_THREADS",
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "WORLD_SIZE",
)
_GIT_SECONDS = 10.0
_DIFF_BYTES = 5_000_000


def capture(environ: Mapping[str, str], command: list[str]) -> dict[str, Any]:
    """The interpreter, the machine, the packages, and the variables that are on the list."""
    return {
        "command": command,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": packages(),
        "variables": {name: environ[name] for name in VARIABLES if name in environ},
    }


def packages() -> dict[str, str]:
    """Installed distributions and their versions, from the names of their folders: no file is read."""
    found: dict[str, str] = {}
    for place in sys.path:
        try:
            entries = os.listdir(place)
        except OSError:
            continue
        for entry in entries:
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            if entry.endswith(".dist-info") and version:
                found.setdefault(name.replace("_", "-").lower(), version)
    return dict(sorted(found.items()))


def git_state(folder: pathlib.Path) -> tuple[dict[str, Any] | None, bytes]:
    """The commit a folder is at and how it differs from it; None when there is no git or no repository."""
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None, b""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None, b""
    diff = _git(folder, "diff", "--no-ext-diff", "--no-textconv", "HEAD", "--", ".") or b""
    state = {
        "commit": commit.decode().strip(),
        "branch": (_git(folder, "rev-parse", "--abbrev-ref", "HEAD") or b"").decode(errors="replace").strip(),
        "is_dirty": bool(diff),
        "diff_is_cut": len(diff) > _DIFF_BYTES,
    }
    return state, diff[:_DIFF_BYTES]


def _git(folder: pathlib.Path, *arguments: str) -> bytes | None:
    import subprocess

    try:
        done = subprocess.run(
            # A repository can name programs to run; training code asks only for its state.
            ["git", "-c", "core.fsmonitor=false", "--no-optional-locks", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
