"""A rank that is forked from a process with torch in it is, to its program, a fresh process; and it trains the same."""

from __future__ import annotations

import json
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from determined.wire.outcome import Outcome
from tests.flow.pools import Ground
from tests.flow.processes import is_alive, say, wait_until

WHERE = """
import io, json, os, random, signal, sys, threading
import numpy, torch
def streams(s):
    buffer = type(s.buffer).__name__
    return [s.encoding, s.errors, s.line_buffering, s.write_through, buffer, s.newlines, s.mode, s.fileno()]
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "file": globals().get("__file__"), "name": __name__,
    "main": sorted(vars(sys.modules["__main__"]))[:12], "package": __package__, "spec": str(__spec__ and __spec__.name),
    "cwd": os.getcwd(), "stdin": sys.stdin.read(), "out": streams(sys.stdout), "err": streams(sys.stderr),
    "environ": {k: v for k, v in os.environ.items() if k not in ("DET_HOUSEHOLD", "DET_NODE_SPEC", "DET_BEATS",
        "DET_STACKS", "MASTER_PORT", "TORCHELASTIC_RUN_ID") and "\\0" not in v},
    "signals": {s.name: str(signal.getsignal(s)) for s in signal.Signals if s.name not in ("SIGRTMIN", "SIGRTMAX")},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "threads": torch.get_num_threads(),
    "fds": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:4], "leads": os.getsid(0) == os.getpid(),
    "umask": oct(os.umask(0o22)),
    "python_threads": threading.active_count(), "same_main": sys.modules["__main__"].__dict__ is globals(),
    "excepthook": sys.excepthook is sys.__excepthook__, "limit": sys.getrecursionlimit(),
}, sort_keys=True))
print(random.random(), numpy.random.rand(), file=sys.stderr)
"""

TRAIN = """
import hashlib, torch
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Dropout(0.2),
                            torch.nn.Linear(8 * 26 * 26, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(8):
    loss = torch.nn.functional.cross_entropy(model(torch.randn(16, 1, 28, 28)), torch.randint(0, 10, (16,)))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.numpy().tobytes())
print(digest.hexdigest())
"""


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    yield from _place(tmp_path_factory.mktemp("warm"), warm=True)


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    yield from _place(tmp_path_factory.mktemp("cold"), warm=False)


def _place(folder: pathlib.Path, *, warm: bool) -> Iterator[Ground]:
    made = Ground(folder, warm=warm)
    try:
        if warm:
            made.pool.prepare()
            assert wait_until(lambda: len(list((made.state / "starter").glob("*.sock"))) == 2, 60)
        yield made
    finally:
        made.close()


def is_warm(place: Ground, script: str = "", **spec: Any) -> bool:
    """Whether a script starts with torch in it."""
    id = place.start(f"import sys\nprint('torch' in sys.modules)\n{script}", **spec)
    assert place.ending(id).outcome is Outcome.COMPLETED, place.log(id)
    return place.log(id)[0] == "True"


def normal(place: Ground, text: str) -> str:
    return text.replace(str(place.folder), "<here>")


@pytest.mark.parametrize("how", ["script", "module", "shell"])
def test_everything_a_program_can_see_is_as_in_a_fresh_process(warm: Ground, cold: Ground, how: str) -> None:
    seen = []
    for place in (warm, cold):
        (place.code / "package").mkdir(exist_ok=True)
        (place.code / "package" / "where.py").write_text(WHERE)
        entrypoint = {
            "script": ["python", "package/where.py", "--lr", "0.1 x"],
            "module": ["python3", "-m", "package.where", "-v"],
            "shell": ["sh", "-c", "python package/where.py --name 'two words'"],
        }[how]
        assert is_warm(place) == (place is warm)
        id = place.start("", entrypoint=entrypoint, environment={"OMP_NUM_THREADS": "2", "A": "b"})
        assert place.ending(id).outcome is Outcome.COMPLETED, place.log(id)
        out = [row["m"] for row in place.rows(id) if row["s"] == "stdout"]
        found = json.loads(normal(place, out[0]))
        for name in list(found["environ"]):
            if name.startswith(("TORCHINDUCTOR", "KINETO")):
                del found["environ"][name]
        seen.append(found)
    assert seen[0] == seen[1]
    assert seen[0]["threads"] == 2


def test_random_numbers_are_fresh_in_each(warm: Ground) -> None:
    script = (
        "import random, uuid, numpy, torch\n"
        "print(random.random(), numpy.random.rand(), uuid.uuid4(), torch.initial_seed(), torch.rand(()).item())"
    )
    drawn = set()
    for _ in range(3):
        id = warm.start(script)
        warm.ending(id)
        drawn |= set(warm.log(id)[0].split())
    assert len(drawn) == 15


@pytest.mark.parametrize(
    "script",
    [
        "def f():\n    raise ValueError('mine')\nf()\n",
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error\n",
        "this is no python\n",
        "import sys\nsys.exit(3)",
        "import sys\nsys.exit('a sentence')",
        "raise SystemExit",
        "import os\nos._exit(4)",
        "raise KeyboardInterrupt",
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
        "import atexit\natexit.register(print, 'at exit')\nfile = open('left-open', 'w')\nfile.write('kept')\n",
        "import threading, time\ndef later():\n    time.sleep(0.2)\n    print('later')\n"
        "threading.Thread(target=later).start()\nprint('now')",
        "class A:\n    def __del__(self): print('gone')\na = A()\nprint('end')\n",
        "import sys, warnings\nwarnings.warn('look')\nprint('x', end='')\nprint('y', file=sys.stderr)",
        "import no_such_module",
        "import atexit, sys\natexit.register(lambda: print(repr(sys.last_value)))\nraise ValueError('seen')",
    ],
)
def test_it_ends_as_python_ends(warm: Ground, cold: Ground, script: str) -> None:
    seen = []
    for place in (warm, cold):
        (place.code / "ends.py").write_text(script)
        (place.code / "left-open").unlink(missing_ok=True)
        id = place.start("", entrypoint=["python", "ends.py"])
        ending = place.ending(id)
        left = (place.code / "left-open").read_text() if (place.code / "left-open").exists() else None
        rows = sorted((row["s"], normal(place, row["m"])) for row in place.rows(id))
        seen.append((ending.outcome, ending.exit_code, ending.reason, normal(place, ending.detail), rows, left))
    assert seen[0] == seen[1]


def test_weights_are_the_same_bit_for_bit(warm: Ground, cold: Ground) -> None:
    found = []
    for place in (warm, cold, warm):
        id = place.start(TRAIN, environment={"OMP_NUM_THREADS": "1"})
        assert place.ending(id).outcome is Outcome.COMPLETED, place.log(id)
        found.append(place.log(id))
    assert found[0] == found[1] == found[2]


def test_two_ranks_train_together(warm: Ground) -> None:
    script = (
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "value = torch.ones(1) * (dist.get_rank() + 1)\ndist.all_reduce(value)\n"
        "print(value.item(), dist.get_world_size())\ndist.destroy_process_group()\n"
    )
    id = warm.start(script, slots=2)
    assert warm.ending(id).outcome is Outcome.COMPLETED, warm.log(id)
    assert warm.log(id) == ["3.0 2", "3.0 2"]
    assert {row["r"] for row in warm.rows(id)} == {0, 1}


def test_loader_workers_and_spawned_processes_work(warm: Ground) -> None:
    script = (
        "import multiprocessing, torch\n"
        "class Numbers(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 8\n    def __getitem__(self, at): return torch.tensor(at)\n"
        "def double(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    print(sum(batch.sum().item() for batch in torch.utils.data.DataLoader(Numbers(), 2, num_workers=2)))\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(double, [1, 2]))\n"
    )
    id = warm.start(script)
    assert warm.ending(id).outcome is Outcome.COMPLETED, warm.log(id)
    assert warm.log(id) == ["28", "[2, 4]"]


@pytest.mark.parametrize(
    "spec",
    [
        {"environment": {"PYTHONHASHSEED": "1"}},
        {"environment": {"OMP_PROC_BIND": "true"}},
        {"entrypoint": ["python", "-O", "script.py"]},
        {"entrypoint": ["sh", "-c", "true && python script.py"]},
    ],
    ids=["hash-seed", "openmp", "option", "shell"],
)
def test_what_a_fork_cannot_be_is_started_cold(warm: Ground, spec: dict[str, Any]) -> None:
    (warm.code / "script.py").write_text("import sys\nprint('torch' in sys.modules)\n")
    assert not is_warm(warm, **spec)


def test_a_module_of_the_users_that_hides_one_of_ours_is_the_one_imported(warm: Ground) -> None:
    hidden = warm.code / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "yaml.py").write_text("mine = 'the user's'".replace("user's", "users"))
    (hidden / "main.py").write_text("import yaml\nprint(yaml.mine)\n")
    id = warm.start("", entrypoint=["python", "hidden/main.py"])
    warm.ending(id)
    assert warm.log(id) == ["the users"]


@pytest.mark.parametrize("victim", ["node", "starter"])
def test_nothing_survives_a_killed_node_process_and_everything_a_killed_starter(warm: Ground, victim: str) -> None:
    script = (
        "import os, signal, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        f"        {say('escapee-' + victim)}\n        time.sleep(600)\n    os._exit(0)\n"
        f"{say('rank-' + victim)}\ntime.sleep(600)\n"
    )
    id = warm.start(script)
    rank, escapee = warm.number_in(f"rank-{victim}"), warm.number_in(f"escapee-{victim}")
    node = warm.node_pid(id)
    assert "starter" in " ".join(psutil.Process(rank).cmdline())
    if victim == "node":
        os.kill(node, signal.SIGKILL)
        assert warm.ending(id, 5.0).outcome is Outcome.LOST
        assert not is_alive(rank) and not is_alive(escapee)
        return
    os.kill(psutil.Process(node).ppid(), signal.SIGKILL)
    assert is_alive(rank) and is_alive(node)
    # The next one does not wait for a starter.
    assert not is_warm(warm)
    warm.pool.stop(id, 5.0)
    assert warm.ending(id).outcome is Outcome.STOPPED
    assert not is_alive(rank) and not is_alive(escapee)
