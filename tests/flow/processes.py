"""Starting a node process or a launcher from a test, waiting for what it does, and looking for what it leaves."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psutil

from determined.wire.node_spec import NodeSpec
from determined.wire.outcome import Ending

PATIENCE = 30.0


def wait_until(condition: Callable[[], Any], seconds: float = PATIENCE) -> bool:
    """Whether the condition came true in time."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while time.monotonic() < deadline:
        if condition():
            return True
        pause.wait(0.02)
    return bool(condition())


class Node:
    """A node process that runs a script on this machine."""

    def __init__(
        self, folder: pathlib.Path, script: str, environ: Mapping[str, str] | None = None, **spec: Any
    ) -> None:
        self.folder = folder
        self.run_folder = folder / "run"
        folder.mkdir(exist_ok=True)
        (folder / "script.py").write_text(script)
        document = NodeSpec(
            name="test",
            run_id=os.urandom(4).hex(),
            run_folder=self.run_folder,
            code_folder=folder,
            entrypoint=[sys.executable, "script.py"],
            **spec,
        )
        document.write(folder / "spec.json")
        self.out, self.err = folder / "out", folder / "err"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "determined.worker", str(folder / "spec.json")],
                stdout=out,
                stderr=err,
                env={**os.environ, **(environ or {})},
                start_new_session=True,
            )

    def wait(self, seconds: float = PATIENCE) -> int:
        return self.process.wait(seconds)

    @property
    def output(self) -> str:
        return self.out.read_text()

    @property
    def complaints(self) -> str:
        return self.err.read_text()

    @property
    def ending(self) -> Ending:
        return Ending.read(self.run_folder / "logs" / "outcome.json")

    def number_in(self, name: str) -> int:
        """A number, usually a process id, that the script writes into a file."""
        path = self.folder / name
        assert wait_until(lambda: path.exists() and path.read_text().endswith("\n")), self.complaints
        return int(path.read_text())

    @property
    def sweepers(self) -> list[int]:
        """The living sweepers of this node process."""
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):
                if "sweeper.py" in " ".join(child.cmdline()):
                    found.append(child.pid)
        return found

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def node(folder: pathlib.Path, script: str, environ: Mapping[str, str] | None = None, **spec: Any) -> Iterator[Node]:
    """A node process that is gone after the test, whatever happens."""
    started = Node(folder, script, environ, **spec)
    try:
        yield started
    finally:
        started.kill()


def is_alive(pid: int) -> bool:
    """A zombie is dead: it holds nothing."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def say(name: str, value: str = "os.getpid()") -> str:
    """A line of a script that writes a number into a file of its folder, whole; several ranks may do so at once.

    ``name`` may hold expressions of the script in braces, such as ``{rank}``.
    """
    new = f"f'{name}.new.{{os.getpid()}}'"
    return f"open({new}, 'w').write(f'{{{value}}}\\n'); os.rename({new}, f'{name}')"
