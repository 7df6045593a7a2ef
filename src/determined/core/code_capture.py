"""Keeps the code of a run: copied once, in the background, without links out of the tree or the runs themselves."""

from __future__ import annotations

import os
import pathlib
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from determined.client.ignore import IgnoreRules
from determined.core import environment
from determined.core.run_folder import RunFolder

MAX_BYTES = 95 * 1024 * 1024
MAX_FILES = 10_000
_NEVER = frozenset(
    ("__pycache__", ".git", ".hg", ".svn", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox")
)


class Listing(NamedTuple):
    """The files to copy, by relative path with their sizes, and sentences about what is not among them."""

    files: dict[str, int]
    notices: list[str]


class CodeCapture:
    """Copies the code and describes the surroundings of a run, in a thread that keeps out of the way of training."""

    def __init__(
        self,
        run: RunFolder,
        code: pathlib.Path | None,
        never: Iterable[pathlib.Path],
        environ: Mapping[str, str],
        command: list[str],
        notify: Callable[[str], None],
    ) -> None:
        self._run = run
        self._target = run.path
        self._code = code
        self._never = [pathlib.Path(path) for path in never]
        self._environ = environ
        self._command = command
        self._notify = notify
        self._hurry = threading.Event()
        self._cancelled = False
        self._thread = threading.Thread(target=self._capture, name="code capture", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Return when all is captured; from now on without pauses."""
        self._hurry.set()
        self._thread.join()

    def cancel(self) -> None:
        """Leave it: the run turned out to be another one."""
        self._cancelled = True
        self.finish()

    def _capture(self) -> None:
        try:
            facts = environment.capture(self._environ, self._command)
            if self._code is not None and not self._cancelled:
                facts["code"] = str(self._code)
                if not self._run.code.exists():
                    self._copy_code(self._code)
                facts["git"], diff = environment.git_state(self._code)
                if diff and not self._cancelled:
                    (self._target / "code.diff").write_bytes(diff)
            if not self._cancelled:
                self._run.write(f"environment{_suffix(self._run.run_epoch)}.json", facts)
        except OSError as error:
            # Training matters more than the record of it.
            if not self._cancelled:
                self._notify(f"the code of this run could not be kept: {error}")

    def _copy_code(self, source: pathlib.Path) -> None:
        listing = list_code(source, self._never, IgnoreRules.read(source))
        for notice in listing.notices:
            self._notify(notice)
        partial = self._target / ".code.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for path in listing.files:
            if self._cancelled:
                return
            begun = time.perf_counter()
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(source / path, partial / path)
            except FileNotFoundError:
                continue  # deleted since it was listed
            # A fifth of the time at most: the interpreter lock is the trainer's.
            self._hurry.wait(4 * (time.perf_counter() - begun))
            # Checkpoints share these files; editing one in place would break them all.
            (partial / path).chmod(0o444)
        partial.rename(self._target / "code")


def list_code(
    source: pathlib.Path,
    never: Iterable[pathlib.Path] = (),
    rules: IgnoreRules | None = None,
    max_bytes: int = MAX_BYTES,
    max_files: int = MAX_FILES,
) -> Listing:
    """Which files below a folder are its code, and what was left out for its size or kind."""
    rules = rules or IgnoreRules()
    shunned = {os.path.realpath(path) for path in never}
    root = os.path.realpath(source)
    files: dict[str, int] = {}
    links: list[str] = []
    is_cut = False
    pending = [""]
    while pending and not is_cut:
        relative = pending.pop()
        try:
            entries = sorted(os.scandir(source / relative), key=lambda entry: entry.name)
        except OSError:
            continue
        if relative and any(entry.name == "pyvenv.cfg" for entry in entries):
            continue
        for entry in entries:
            path = relative + entry.name
            if entry.name in _NEVER or entry.name.endswith((".pyc", ".pyo")):
                continue
            try:
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISLNK(mode):
                    place = os.path.realpath(entry.path)
                    if not place.startswith(root + os.sep) or not os.path.isfile(place):
                        links.append(path)
                        continue
                    mode = os.stat(place).st_mode
                size = entry.stat().st_size
            except OSError:
                continue
            if stat.S_ISDIR(mode):
                if os.path.realpath(entry.path) not in shunned and not rules.ignores(path, True):
                    pending.append(f"{path}/")
            elif stat.S_ISREG(mode) and not rules.ignores(path, False):
                files[path] = size
                if len(files) > max_files:
                    is_cut = True
                    break
    return Listing(files, [*_drop_largest(files, max_bytes), *_notices(source, links, is_cut, max_files)])


def _drop_largest(files: dict[str, int], max_bytes: int) -> list[str]:
    total = sum(files.values())
    if total <= max_bytes:
        return []
    dropped: list[str] = []
    for path in sorted(files, key=lambda path: files[path], reverse=True):
        if total <= max_bytes:
            break
        total -= files.pop(path)
        dropped.append(path)
    return [
        f"the copy of the code is kept below {max_bytes // 1024**2} MB: left out {_some(dropped)}; "
        "list data files in .detignore to choose yourself"
    ]


def _notices(source: pathlib.Path, links: list[str], is_cut: bool, max_files: int) -> list[str]:
    notices = []
    if links:
        notices.append(f"the copy of the code does not follow links to folders or out of {source}: {_some(links)}")
    if is_cut:
        notices.append(
            f"{source} has more than {max_files:,} files; only the first are kept with the run: "
            "list the others in .detignore"
        )
    return notices


def _some(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def _suffix(run_epoch: int) -> str:
    return "" if run_epoch <= 1 else f"-{run_epoch}"
