"""``python -m determined.launch.wrap_rank RANK|VARIABLE[,VARIABLE...] COMMAND...``: mark a process's lines by its rank.

Every line becomes "[rank=N] line"; a carriage return ends a line too. Signals are passed on, and the exit code is the
command's.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from determined.worker import logs, processes

USAGE = "usage: python -m determined.launch.wrap_rank [--no-redirect-stdio] RANK|VARIABLE[,VARIABLE...] COMMAND..."

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# How long output may still come once the command has ended: what it left in the background may never close it.
_LINGER_SECONDS = 0.3
_LINGER_AT_MOST_SECONDS = 1.5


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command, and return its exit code; 128 + n when signal n ended it, 2 for a usage error."""
    words = list(arguments)
    redirect = "--no-redirect-stdio" not in words[:1]
    if not redirect:
        words.pop(0)
    if words and words[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if len(words) < 2 or words[0].startswith("-"):
        print(f"error: wrap_rank needs a rank and a command\n{USAGE}", file=sys.stderr)
        return 2
    rank = _rank(words[0], environ)
    if rank is None:
        print(
            f"error: {words[0]} is neither a rank nor a variable that is set to one; set it, or give a number",
            file=sys.stderr,
        )
        return 2
    command = words[2:] if words[1] == "--" else words[1:]
    try:
        return _run(command, logs.prefix_of(rank) if redirect else None)
    except OSError as error:
        print(f"error: cannot start {command[0] if command else 'nothing'}: {error.strerror or error}", file=sys.stderr)
        return 127


def _rank(word: str, environ: Mapping[str, str]) -> int | None:
    """The number itself, or the first of the variables that is set."""
    for text in [word, *(environ.get(name, "") for name in word.split(","))]:
        if text.isdigit():
            return int(text)
    return None


def _run(command: list[str], prefix: bytes | None) -> int:
    pipe = subprocess.PIPE if prefix is not None else None
    waiting: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        if process is None:
            waiting.append(number)
        else:
            processes.signal_process(process.pid, number)

    # Before the start, so that no signal falls between the two.
    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    process = subprocess.Popen(
        command,
        stdout=pipe,
        stderr=pipe,
        bufsize=0,
        # A terminal's Ctrl-C reaches us alone, and the command once, from us.
        start_new_session=True,
        preexec_fn=processes.dying_with_parent(),
    )
    for early in waiting:
        processes.signal_process(process.pid, early)
    if prefix is not None:
        _pump(process, prefix)
    code = process.wait()
    return code if code >= 0 else 128 - code


def _pump(process: subprocess.Popen[bytes], prefix: bytes) -> None:
    ended_at = heard_at = 0.0
    streams = {process.stdout: (1, logs.Lines()), process.stderr: (2, logs.Lines())}
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(0.1):
                heard_at = time.monotonic()
                target, lines = streams[key.fileobj]  # type: ignore[index]
                data = os.read(key.fd, 65536)
                _write(target, prefix, lines.feed(data) if data else lines.finish())
                if not data:
                    selector.unregister(key.fileobj)
            now = time.monotonic()
            if process.poll() is not None:
                ended_at = ended_at or now
                if now - max(ended_at, heard_at) > _LINGER_SECONDS or now - ended_at > _LINGER_AT_MOST_SECONDS:
                    break
    for target, lines in streams.values():
        _write(target, prefix, lines.finish())


def _write(descriptor: int, prefix: bytes, lines: Sequence[bytes]) -> None:
    data = b"".join(prefix + line + b"\n" for line in lines)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        pass  # Nobody reads any more; the command decides whether that matters.


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
