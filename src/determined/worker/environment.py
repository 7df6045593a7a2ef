"""Environments made from a requirements file: built once for each file and interpreter, on top of the submitter's."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping

from determined import errors

# Runs a program and gives None, or the end of what it said if it failed.
RunAside = Callable[["list[str]", Mapping[str, str], pathlib.Path], "str | None"]

_COMPLETE = "complete"
_PLACES = (
    "import json, site, sys, sysconfig; paths = sysconfig.get_paths(); "
    "print(json.dumps([sys.version, sys.prefix, list(dict.fromkeys([paths['purelib'], paths['platlib'], "
    "*(site.getsitepackages() if sys.prefix == sys.base_prefix else [])]))]))"
)


def provide(
    requirements: str, python: str, root: pathlib.Path, run_aside: RunAside, check: Callable[[], None] = lambda: None
) -> str:
    """The interpreter of an environment with these requirements, built now if it is not there. Raises DeterminedError.

    What the submitter's environment has is visible in it, so that nobody installs torch again; what the file asks for
    comes first. Two who want the same wait for each other; one that was left half-built is built anew.
    ``check`` is called while waiting, and may raise.
    """
    version, places = _look_at(python)
    text = "\n".join(line.rstrip() for line in requirements.strip().splitlines())
    key = hashlib.sha256("\0".join([version, os.path.abspath(python), text]).encode()).hexdigest()[:24]
    folder = root / key
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    interpreter = folder / "bin" / "python"
    if not (folder / _COMPLETE).exists():
        with _locked(root / f"{key}.lock", check):
            if not (folder / _COMPLETE).exists():
                shutil.rmtree(folder, ignore_errors=True)
                _build(text, python, places, folder, run_aside)
                (folder / _COMPLETE).touch()
    with contextlib.suppress(OSError):
        os.utime(folder / _COMPLETE)  # When it was last used: for whoever clears up.
    return str(interpreter)


def _build(text: str, python: str, places: list[str], folder: pathlib.Path, run_aside: RunAside) -> None:
    def run(*command: str) -> None:
        problem = run_aside(list(command), {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}, folder.parent)
        if problem is not None:
            raise errors.DeterminedError(f"the environment for the requirements could not be built:\n{problem}")

    run(python, "-m", "venv", "--without-pip", str(folder))
    folder.chmod(0o700)
    own = next(folder.glob("lib/python*/site-packages"))
    # Through site, so that what is installed there as a link into a source tree is found as well.
    lines = [f"import site; site.addsitedir({place!r})" for place in places]
    (own / "zz_submitter.pth").write_text("\n".join(lines) + "\n")
    (folder / "requirements.txt").write_text(text + "\n")
    interpreter = str(folder / "bin" / "python")
    if run_aside([interpreter, "-c", "import pip"], {}, folder.parent) is not None:
        run(interpreter, "-m", "ensurepip")
    run(interpreter, "-m", "pip", "install", "--requirement", str(folder / "requirements.txt"))


def _look_at(python: str) -> tuple[str, list[str]]:
    """The version of an interpreter and where its packages are."""
    try:
        done = subprocess.run(
            [python, "-c", _PLACES], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True
        )
        version, _, places = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise errors.DeterminedError(f"the interpreter {python} cannot be run: {error}") from None
    return version, [place for place in places if os.path.isdir(place)]


@contextlib.contextmanager
def _locked(path: pathlib.Path, check: Callable[[], None]) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                check()
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)
