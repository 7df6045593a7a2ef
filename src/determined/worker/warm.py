"""Ranks that are forked from this process instead of started anew: what they need is imported already.

A forked rank must be as a fresh process in everything its program can see. Where that cannot be had it is started cold.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import io
import os
import pathlib
import re
import runpy
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from typing import IO, Any, NoReturn

from determined.worker import gang, processes, sweeper

# Read once, when an interpreter or a library starts: with other values a fork would not be what a fresh process is.
_READ_AT_START = re.compile(
    r"PYTHON|LD_|LC_|LANG$|LANGUAGE$|HOME$|MALLOC_|GLIBC_|OMP_|KMP_|GOMP_|MKL_|OPENBLAS_|GOTO_|BLIS_|NPY_|NUMPY_"
    r"|TORCH_|TORCHINDUCTOR_|TORCHDYNAMO_|PYTORCH_|ATEN_|CUDA_LAUNCH_BLOCKING|CUBLAS_"
)
# Those that are made up for in the fork.
_MADE_UP_FOR = frozenset({"OMP_NUM_THREADS", "PYTHONUNBUFFERED"})
_MOST_NAMES = 5000


class Forks:
    """Starts ranks of this process's own interpreter by forking; anything else cold.

    ``at_start`` is the environment this process was started with, ``marker_room`` where the system shows it: a fork
    shows its marker there, since the environment of a forked process is that of its parent to everybody else.
    """

    def __init__(self, at_start: Mapping[str, str], marker_room: tuple[int, int] | None) -> None:
        self._at_start = dict(at_start)
        self._marker_room = marker_room

    def __call__(self, command: Sequence[str], environment: Mapping[str, str], folder: pathlib.Path) -> gang.Process:
        program = self._program(command, environment, folder)
        if program is None:
            return gang.start_cold(command, environment, folder)
        return self._fork(program, environment, folder)

    def _program(self, command: Sequence[str], environment: Mapping[str, str], folder: pathlib.Path) -> _Program | None:
        program = _understand(command, folder)
        if program is None or self._marker_room is None or threading.active_count() > 1:
            return None
        names = {name for name in {*environment, *self._at_start} if _READ_AT_START.match(name)} - _MADE_UP_FOR
        if any(environment.get(name) != self._at_start.get(name) for name in names):
            return None
        if not re.fullmatch(r"[1-9]\d{0,3}|", environment.get("OMP_NUM_THREADS", "")):
            return None
        return None if _shadows(program.path) else program

    def _fork(self, program: _Program, environment: Mapping[str, str], folder: pathlib.Path) -> gang.Process:
        output, output_end = os.pipe()
        errors, errors_end = os.pipe()
        parent = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # A signal that arrives before the fork has put away our handlers must wait until it has its own.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _be(program, environment, folder, (output_end, errors_end), parent, self._marker_room)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(output_end)
            os.close(errors_end)
        return _Fork(pid, os.fdopen(output, "rb", buffering=0), os.fdopen(errors, "rb", buffering=0))


class _Fork:
    """A forked process, as the node process handles it."""

    def __init__(self, pid: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid = pid
        self.stdout: IO[bytes] | None = stdout
        self.stderr: IO[bytes] | None = stderr
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._code = 1  # Somebody else has collected it: how it ended is not known.
            else:
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


class _Program:
    """A python program: a script or a module, with its arguments."""

    def __init__(self, words: Sequence[str], folder: pathlib.Path) -> None:
        self.words = list(words)
        self.module = words[2] if words[1] == "-m" else None
        self.script = None if self.module is not None else words[1]
        self.path = str(folder) if self.script is None else os.path.dirname(os.path.realpath(folder / self.script))


def _understand(command: Sequence[str], folder: pathlib.Path) -> _Program | None:
    words = [word for at, word in enumerate(command) if not (at == 1 and word == "-u")]
    if len(words) < 2 or words[0] != sys.executable or getattr(sys.flags, "safe_path", False):
        return None
    if words[1] == "-m":
        return _Program(words, folder) if len(words) > 2 and not words[2].startswith("-") else None
    script = folder / words[1]
    return _Program(words, folder) if words[1].endswith(".py") and script.is_file() else None


def _shadows(folder: str) -> bool:
    """Whether a file of the program's has the name of a module that is imported here already."""
    try:
        with os.scandir(folder) as found:
            for count, entry in enumerate(found):
                if count > _MOST_NAMES:
                    return True
                name = entry.name.partition(".")[0]
                if name not in sys.modules or name == "__main__":
                    continue
                is_module = entry.name.endswith((".py", ".pyc", ".so"))
                if is_module or os.path.exists(os.path.join(folder, entry.name, "__init__.py")):
                    return True
    except OSError:
        return True
    return False


def _be(
    program: _Program,
    environment: Mapping[str, str],
    folder: pathlib.Path,
    ends: tuple[int, int],
    parent: int,
    marker_room: tuple[int, int] | None,
) -> NoReturn:
    """In the fork: become the rank, run the program, and end as python would."""
    try:
        if marker_room is not None:
            _show_marker(environment.get(sweeper.VARIABLE, ""), *marker_room)
        os.setsid()
        processes.dying_with(parent)
        _take_descriptors(ends)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        _take_signals()
        _forget_the_past()
        _set_threads(environment.get("OMP_NUM_THREADS"))
        _open_streams(bool(environment.get("PYTHONUNBUFFERED")))
        sys.orig_argv[:] = program.words
        sys.path[:0] = [program.path]
        main = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        if sys.version_info < (3, 14):
            vars(main).update(__annotations__={})
        sys.modules["__main__"] = main
    except BaseException as error:
        os.write(2, f"the forked process could not be prepared: {error!r}\n".encode())
        os._exit(70)
    _leave(_run(program, main), main)


def _show_marker(marker: str, address: int, size: int) -> None:
    content = marker.encode()
    if len(content) >= size:
        raise ValueError("the marker is too long")
    ctypes.memmove(address, content.ljust(size, b"\0"), size)


def _take_descriptors(ends: tuple[int, int]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for at, descriptor in enumerate((nothing, *ends)):
        os.dup2(descriptor, at, inheritable=True)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _take_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _forget_the_past() -> None:
    """What was drawn or noted when modules were imported, and is not the same in two fresh processes."""
    importlib.invalidate_caches()
    # The random module does so by itself.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
        process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]


def _set_threads(number: str | None) -> None:
    if not number:
        return
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(int(number))
    _set_blas_threads(int(number))


def _set_blas_threads(number: int) -> None:
    """NumPy's linear algebra has read the variable too, when it was loaded."""
    with open("/proc/self/maps") as maps:
        libraries = {line.split(maxsplit=5)[5].strip() for line in maps if "openblas" in line and line.count("/")}
    for library in libraries:
        with contextlib.suppress(OSError):
            loaded = ctypes.CDLL(library, mode=os.RTLD_NOLOAD)
            for name in (
                "scipy_openblas_set_num_threads64_",
                "openblas_set_num_threads64_",
                "openblas_set_num_threads",
            ):
                if hasattr(loaded, name):
                    getattr(loaded, name)(number)
                    break


def _open_streams(unbuffered: bool) -> None:
    sys.stdin = sys.__stdin__ = open(0, encoding=sys.stdin.encoding, closefd=False)  # type: ignore[misc]
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        raw: Any = io.FileIO(descriptor, "w", closefd=False)
        stream = io.TextIOWrapper(
            raw if unbuffered else io.BufferedWriter(raw),
            encoding=before.encoding,
            errors="backslashreplace" if name == "stderr" else before.errors,
            newline="\n",
            line_buffering=not unbuffered,
            write_through=unbuffered,
        )
        stream.mode = "w"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(program: _Program, main: types.ModuleType) -> int:
    """Run it; the exit code, as python would have it."""
    try:
        if program.module is not None:
            sys.argv[:] = ["-m", *program.words[3:]]
            runpy._run_module_as_main(program.module)  # type: ignore[attr-defined]
        else:
            assert program.script is not None
            sys.argv[:] = program.words[1:]
            exec(_load(program.script, main), main.__dict__)
    except SystemExit as ending:
        return _code_of(ending)
    except BaseException as error:
        trace = error.__traceback__
        # The program's own frames begin below ours.
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        error.__traceback__ = trace
        # As the interpreter does: who closes at exit asks for it.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        try:
            sys.excepthook(type(error), error, trace)
        except SystemExit as ending:
            return _code_of(ending)
        except BaseException:
            sys.__excepthook__(type(error), error, trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _load(script: str, main: types.ModuleType) -> types.CodeType:
    path = os.path.join(os.getcwd(), script)
    main.__dict__.update(
        __file__=path, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", path)
    )
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _code_of(ending: SystemExit) -> int:
    code = ending.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    with contextlib.suppress(Exception):
        print(code, file=sys.stderr)
    return 1


def _leave(code: int, main: types.ModuleType) -> NoReturn:
    """End as an interpreter does, without taking down all that was imported: that alone takes most of a second."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        main.__dict__.clear()
        code = _flush_all() or code
    except BaseException:
        traceback.print_exc()
    finally:
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)


def _flush_all() -> int:
    """Write out every file that the program left open; what an interpreter says when that fails."""
    # Only what the program itself has made: everything older is frozen.
    for thing in gc.get_objects():
        if type(thing) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom) and not thing.closed:
            with contextlib.suppress(Exception):
                thing.flush()
    try:
        sys.stdout.flush()
    except Exception:
        return 120
    return 0
