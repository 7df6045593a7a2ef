"""Running a function in a process of its own, quickly: forked from one that has imported torch already."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any


class Child:
    """A forked process; its output goes to a file."""

    def __init__(
        self, function: Callable[..., Any], *args: Any, environment: dict[str, str], log: pathlib.Path
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.log = log
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(descriptor, 1)
                os.dup2(descriptor, 2)
                sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
                sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_DFL if number is signal.SIGTERM else signal.default_int_handler)
                os.environ.update(environment)
                function(*args)
                code = 0
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def wait(self) -> int:
        """The exit code; negative for the signal that ended it."""
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def succeed(self) -> None:
        code = self.wait()
        assert code == 0, f"exit code {code}:\n{self.log.read_text()}"


def rank_environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun tells a rank."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
