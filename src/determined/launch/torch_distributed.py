"""``python -m determined.launch.torch_distributed``: train on several processes, with the node process by hand.

Takes torchrun's usual options, then a script with its arguments, or ``--trial module:Class``.
"""

from __future__ import annotations

import difflib
import math
import os
import pathlib
import re
import shutil
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from determined import config as config_package
from determined import errors
from determined.config import find
from determined.core import connect
from determined.core.run_folder import safe_name
from determined.wire.node_spec import NodeSpec
from determined.worker import node

USAGE = """\
usage: python -m determined.launch.torch_distributed [OPTIONS] [--] SCRIPT [ARGUMENTS...]
       python -m determined.launch.torch_distributed [OPTIONS] [--] --trial MODULE:CLASS

  --nproc N              ranks on this machine; also --nproc_per_node (default: one per GPU, else 1)
  --nnodes N             machines (default 1); then each needs --node_rank, --master_addr and --master_port
  --node_rank N          which of them this is, from 0
  --master_addr HOST     the machine with node rank 0
  --master_port PORT     where ranks meet (default on one machine: a free port)
  --max-restarts N       start again so often after a failure, from the latest checkpoint (default 0)
  --hang-seconds S       a rank without progress for so long is a failure (default 600)
  --grace-seconds S      how long ranks may take to stop when asked (default 60)
  --resume [WHICH]       go on from a checkpoint: latest (default), its id, or its path
"""

# Options that take a value, in every spelling (torchrun writes some with - and some with _).
_VALUES = {
    "nproc": "nproc",
    "nproc_per_node": "nproc",
    "nnodes": "nnodes",
    "node_rank": "node_rank",
    "master_addr": "master_addr",
    "master_port": "master_port",
    "max_restarts": "max_restarts",
    "hang_seconds": "hang_seconds",
    "grace_seconds": "grace_seconds",
    "trial": "trial",
}
# torchrun's, which mean nothing here or are always so.
_IGNORED = {"standalone"}
_TRIAL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class UsageError(errors.DeterminedError):
    """The command line cannot be understood; the message says what to write instead."""

    code = "usage"


class Wanted(NamedTuple):
    """A command line, understood."""

    command: list[str]
    trial: str | None
    nproc: int | None
    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int
    max_restarts: int
    hang_seconds: float | None
    grace_seconds: float | None
    resume: str | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and return the exit code: that of the first rank to fail, 0 if none did, 2 for a usage error."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    try:
        wanted = understand(arguments)
        spec = make_spec(wanted, os.environ)
        for line in _notices(spec, os.environ):
            print(line, file=sys.stderr)
        return node.run(spec, spec.entrypoint, max_restarts=wanted.max_restarts)
    except UsageError as error:
        print(
            f"error: {error}\n`python -m determined.launch.torch_distributed --help` lists the options", file=sys.stderr
        )
        return 2
    except errors.DeterminedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def understand(arguments: Sequence[str]) -> Wanted:
    """Read a command line; raises UsageError with one clear sentence."""
    given, rest = _split(list(arguments))
    if "--trial" in rest[:1]:
        if len(rest) < 2:
            raise UsageError("--trial needs the class to train: --trial MODULE:CLASS")
        given["trial"], rest = rest[1], rest[2:]
    elif rest and rest[0].startswith("--trial="):
        given["trial"], rest = rest[0].partition("=")[2], rest[1:]
    trial = given.get("trial")
    if trial is not None and rest:
        raise UsageError(f"give either --trial {trial} or a script ({rest[0]}), not both")
    if trial is None and not rest:
        raise UsageError("say what to train: a script with its arguments, or --trial MODULE:CLASS")
    if trial is not None and not _TRIAL.fullmatch(trial):
        raise UsageError(f"--trial takes MODULE:CLASS, for example model_def:MyTrial, not {trial}")
    nnodes = _number(given, "nnodes", 1, least=1)
    node_rank = _number(given, "node_rank", 0)
    if node_rank >= nnodes:
        raise UsageError(f"--node_rank is {node_rank}, but there are {nnodes} machines (--nnodes): count from 0")
    if nnodes > 1 and not (given.get("master_addr") and given.get("master_port")):
        raise UsageError("with several machines each needs the same --master_addr and --master_port")
    return Wanted(
        command=_command(trial, rest),
        trial=trial,
        nproc=_processes(given.get("nproc")),
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=given.get("master_addr", "127.0.0.1"),
        master_port=_number(given, "master_port", 0, most=65535),
        max_restarts=_number(given, "max_restarts", 0),
        hang_seconds=_seconds(given, "hang_seconds"),
        grace_seconds=_seconds(given, "grace_seconds"),
        resume=given.get("resume"),
    )


def _split(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Our options, and what is left for the script."""
    given: dict[str, str] = {}
    while words and words[0].startswith("-") and words[0] != "-m":
        word = words.pop(0)
        if word == "--":
            break
        spelling, has_value, value = word.partition("=")
        name = spelling.lstrip("-").replace("-", "_")
        if name == "resume":
            given["resume"] = (
                value if has_value else words.pop(0) if words and _names_checkpoint(words[0]) else "latest"
            )
        elif name in _IGNORED:
            continue
        elif name in _VALUES:
            if not has_value and (not words or words[0] == "--"):
                raise UsageError(f"{spelling} needs a value")
            given[_VALUES[name]] = value if has_value else words.pop(0)
        else:
            _refuse(spelling, name)
    return given, words


def _refuse(spelling: str, name: str) -> NoReturn:
    if name.startswith("rdzv"):
        raise UsageError(f"{spelling} is torchrun's: here machines meet at --master_addr and --master_port")
    close = difflib.get_close_matches(name, [*_VALUES, "resume"], n=1)
    hint = f"; did you mean --{close[0]}?" if close else "; options of the script come after the script"
    raise UsageError(f"{spelling} is not an option of the launcher{hint}")


def _names_checkpoint(word: str) -> bool:
    """Whether a word after --resume is its value, rather than the script."""
    if word == "latest" or _UUID.fullmatch(word):
        return True
    return pathlib.Path(word).is_dir() and not (pathlib.Path(word) / "__main__.py").exists()


def _command(trial: str | None, rest: list[str]) -> list[str]:
    if trial is not None:
        return [sys.executable, "-m", "determined.pytorch", trial]
    first = rest[0]
    if first == "-m":
        if len(rest) < 2:
            raise UsageError("-m needs the module to run")
        return [sys.executable, *rest]
    if first.endswith(".py"):
        if not pathlib.Path(first).is_file():
            raise UsageError(f"there is no script {first} in {pathlib.Path.cwd()}")
        return [sys.executable, *rest]
    if first in ("python", "python3"):
        # This environment's: the one that has us, and torch.
        return [sys.executable, *rest[1:]]
    if shutil.which(first) is None:
        raise UsageError(f"there is neither a script nor a program called {first}")
    return rest


def _number(given: Mapping[str, str], name: str, otherwise: int, least: int = 0, most: int | None = None) -> int:
    text = given.get(name)
    if text is None:
        return otherwise
    # torchrun allows a range of machines, for gangs that grow; ours do not.
    low, _, high = text.partition(":")
    if name == "nnodes" and low == high:
        text = low
    if not re.fullmatch(r"\d+", text) or int(text) < least or (most is not None and int(text) > most):
        limits = f"from {least}" + (f" to {most}" if most is not None else " up")
        raise UsageError(f"--{name} takes a whole number {limits}, not {text}")
    return int(text)


def _seconds(given: Mapping[str, str], name: str) -> float | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(f"--{name.replace('_', '-')} takes a number of seconds above 0, not {text}")
    return seconds


def _processes(text: str | None) -> int | None:
    if text in (None, "auto"):
        return None
    if text == "gpu":
        if not _gpus(os.environ):
            raise UsageError("--nproc gpu: there is no GPU on this machine; give a number")
        return _gpus(os.environ)
    if text == "cpu":
        return _cores()
    return _number({"nproc": text or ""}, "nproc", 1, least=1)


def make_spec(wanted: Wanted, environ: Mapping[str, str]) -> NodeSpec:
    """The document for the node process: that of the allocation we are in, or a new run's."""
    outer = environ.get("DET_NODE_SPEC")
    base = NodeSpec.read(pathlib.Path(outer)) if outer else _new_run(wanted, environ)
    slots = wanted.nproc or (base.slots if outer else _gpus(environ) or 1)
    changes: dict[str, Any] = {"entrypoint": wanted.command, "slots": slots, "ranks": None}
    if not outer or wanted.nnodes > 1:
        changes |= {
            "nodes": wanted.nnodes,
            "node_rank": wanted.node_rank,
            "master_addr": wanted.master_addr,
            "master_port": wanted.master_port,
        }
    for name in ("hang_seconds", "grace_seconds"):
        if getattr(wanted, name) is not None:
            changes[name] = getattr(wanted, name)
    if slots > 1 and not environ.get("OMP_NUM_THREADS"):
        # Each rank would start as many threads as there are cores, and all would wait for each other.
        changes["environment"] = {**base.environment, "OMP_NUM_THREADS": str(max(_cores() // slots, 1))}
    return base.model_copy(update=changes)


def _new_run(wanted: Wanted, environ: Mapping[str, str]) -> NodeSpec:
    script = _script_of(wanted)
    config = _config(script, wanted, environ)
    name = safe_name(
        str((config or {}).get("name") or (script.stem if script else pathlib.Path(wanted.command[0]).name))
    )
    runs_dir = connect.default_runs_dir(environ)
    resume = wanted.resume or environ.get("DET_LATEST_CHECKPOINT")
    run_id = uuid.uuid4().hex[:6]
    run_folder = runs_dir / f"{name}-{run_id}"
    if resume:
        run_id, run_folder = _earlier_run(resume, runs_dir, name) or (run_id, run_folder)
    if wanted.node_rank:
        run_folder = run_folder.with_name(f"{run_folder.name}-node-{wanted.node_rank}")
    return NodeSpec(
        name=name,
        run_id=run_id,
        run_folder=run_folder,
        code_folder=pathlib.Path.cwd(),
        config=config,
        latest_checkpoint=resume,
    )


def _script_of(wanted: Wanted) -> pathlib.Path | None:
    if wanted.trial is not None:
        return pathlib.Path(*wanted.trial.partition(":")[0].split(".")).with_suffix(".py")
    return next((pathlib.Path(word) for word in wanted.command[1:] if word.endswith(".py")), None)


def _config(script: pathlib.Path | None, wanted: Wanted, environ: Mapping[str, str]) -> dict[str, Any] | None:
    """What the script itself would find if it were started alone."""
    explicit = environ.get("DET_EXPERIMENT_CONFIG")
    if script is None and not explicit:
        return None
    words = wanted.command[1:] if wanted.trial is None else [str(script)]
    folder = script.absolute().parent if script is not None else pathlib.Path.cwd()
    found = find.look(folder, words, explicit)
    for notice in found.notices:
        print(notice, file=sys.stderr)
    if found.source is None:
        return None
    loaded: dict[str, Any] = config_package.load(found.source).model_dump(mode="json", by_alias=True)
    return loaded


def _earlier_run(resume: str, runs_dir: pathlib.Path, name: str) -> tuple[str, pathlib.Path] | None:
    """The run to go on with; None for weights from elsewhere, or when there is nothing to go on with yet."""
    try:
        run, _, _ = connect.resolve_checkpoint(resume, runs_dir, name)
    except errors.CheckpointNotFound:
        if resume != connect.LATEST:
            raise
        return None
    return (run.id, run.path) if run is not None else None


def _notices(spec: NodeSpec, environ: Mapping[str, str]) -> list[str]:
    threads = spec.environment.get("OMP_NUM_THREADS")
    if threads is None or environ.get("OMP_NUM_THREADS") or spec.node_rank:
        return []
    return [
        f"OMP_NUM_THREADS is not set: each of the {spec.slots} ranks computes with {threads} of this machine's "
        f"{_cores()} cores"
    ]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus(environ: Mapping[str, str]) -> int:
    """How many NVIDIA GPUs ranks may use, found without torch, whose import takes seconds."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1", "NoDevFiles")])
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
