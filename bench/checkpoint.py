"""Saving and loading 400 MB of weights and Adam state beside torch.save, safetensors, DCP, and plain memory copies.

Run `python -m bench.checkpoint [--quick]`. Every round runs all contenders one after the other in one process.
blocked: how long the training thread waits. stolen: wall time until durable, less the steps made meanwhile at the
pace of the steps just before. durable: until the file is on disk.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from determined.pytorch import archive, snapshot

Table = dict[str, dict[str, float]]


def run(quick: bool = False) -> dict[str, Any]:
    """Measure; return medians in milliseconds and the ratios that have a bar."""
    torch.set_num_threads(1)
    training = _Training(width=1024 if quick else 2048)
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-", dir=os.environ.get("BENCH_DIR")) as folder:
        saves = _save(training, pathlib.Path(folder), rounds=3 if quick else 7)
        loads = _load(training, pathlib.Path(folder), rounds=5 if quick else 9)
    memcpy = saves["memcpy (limit)"]["blocked"]
    return {
        "megabytes": training.nbytes / 1e6,
        "save": saves,
        "load": loads,
        "ratios": {
            "blocked / memcpy (bar 1.3)": saves["ours"]["blocked"] / memcpy,
            "first save blocked / memcpy": saves["ours"]["first"] / memcpy,
            "stolen, ms (bar 80)": saves["ours"]["stolen"],
            "stolen with the copy behind, ms": saves["ours, copy behind"]["stolen"],
            "load / safetensors, into live tensors (bar 1.5)": loads["ours, into live tensors"]["load"]
            / loads["safetensors + copies"]["load"],
            "load / safetensors, fresh tensors (bar 1.5)": loads["ours, fresh tensors"]["load"]
            / loads["safetensors + clones"]["load"],
        },
    }


class _Training:
    """Eight layers and Adam: 403 MB at full width."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8)))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.batch = torch.randn(64, width)
        self.step()
        self.nbytes = sum(t.nbytes for t in _tensors(self.state()))

    def step(self, before_update: Callable[[], None] | None = None) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        if before_update is not None:
            before_update()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"models": [self.model.state_dict()], "optimizers": [self.optimizer.state_dict()]}

    def pace(self) -> float:
        times = []
        for _ in range(5):
            started = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - started)
        return statistics.median(times)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


class _Save:
    """A save under way: `is_done` and `finish` by its own means, `before_update` if it needs a barrier."""

    def __init__(
        self,
        is_done: Callable[[], bool] = lambda: True,
        finish: Callable[[], Any] = lambda: None,
        before_update: Callable[[], None] | None = None,
    ) -> None:
        self.is_done = is_done
        self.finish = finish
        self.before_update = before_update


def _save(training: _Training, folder: pathlib.Path, rounds: int) -> Table:
    results: dict[str, dict[str, list[float]]] = {}
    contenders = _savers(training, folder)
    # The first save of each contender apart: memory is touched for the first time.
    firsts: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, start in contenders.items():
            pace = training.pace()
            started = time.perf_counter()
            save = start()
            blocked = time.perf_counter() - started
            steps = 0
            while not save.is_done():
                training.step(save.before_update if steps == 0 else None)
                steps += 1
            save.finish()
            durable = time.perf_counter() - started
            if number == 0:
                firsts[name] = blocked
                continue
            row = results.setdefault(name, {"blocked": [], "stolen": [], "durable": []})
            row["blocked"].append(blocked)
            row["stolen"].append(durable - steps * pace)
            row["durable"].append(durable)
    return {
        name: {
            "first": firsts[name] * 1e3,
            **{column: statistics.median(values) * 1e3 for column, values in row.items()},
        }
        for name, row in results.items()
    }


def _savers(training: _Training, folder: pathlib.Path) -> dict[str, Callable[[], _Save]]:
    source = torch.ones(training.nbytes // 4)
    target = torch.ones(training.nbytes // 4)
    view = archive.memory_of(target.untyped_storage(), 0, target.nbytes)

    def memcpy() -> _Save:
        target.copy_(source)
        return _Save()

    def raw_write() -> _Save:
        fd = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.posix_fallocate(fd, 0, len(view))
        for at in range(0, len(view), 1 << 20):
            os.pwrite(fd, view[at : at + (1 << 20)], at)
        os.fsync(fd)
        os.close(fd)
        return _Save()

    snapshotter, saver = snapshot.Snapshotter(), snapshot.Saver()
    snapshotter.prepare(training.state())
    if snapshotter._preparing is not None:
        snapshotter._preparing.join()

    def ours(behind: bool) -> _Save:
        captured = snapshotter.capture(training.state(), behind=behind)
        saver.save(captured, lambda: archive.write(captured.state, folder / "ours.pth"))
        return _Save(lambda: not saver.busy, saver.wait, captured.ready if behind else None)

    def torch_save() -> _Save:
        with open(folder / "torch.pth", "wb") as file:
            torch.save(training.state(), file)
            file.flush()
            os.fsync(file.fileno())
        return _Save()

    contenders: dict[str, Callable[[], _Save]] = {
        "memcpy (limit)": memcpy,
        "raw write + fsync": raw_write,
        "ours": lambda: ours(False),
        "ours, copy behind": lambda: ours(True),
        "torch.save + fsync": torch_save,
        "DCP async_save": lambda: _dcp(training, folder),
    }
    if importlib.util.find_spec("safetensors"):
        contenders["safetensors + fsync"] = lambda: _safetensors(training, folder)
    return contenders


def _dcp(training: _Training, folder: pathlib.Path) -> _Save:
    from torch.distributed.checkpoint.state_dict_saver import async_save

    warnings.filterwarnings("ignore", module="torch.distributed")  # it warns, in its thread, of the save before
    future: Any = async_save(training.state(), checkpoint_id=str(folder / "dcp"))
    return _Save(future.done, future.result)


def _safetensors(training: _Training, folder: pathlib.Path) -> _Save:
    from safetensors.torch import save_file

    save_file(_flat(training.state()), folder / "state.safetensors")
    with open(folder / "state.safetensors", "rb") as file:
        os.fsync(file.fileno())
    return _Save()


def _flat(value: Any, name: str = "") -> dict[str, torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return {name: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {key: tensor for part, item in items for key, tensor in _flat(item, f"{name}.{part}").items()}


def _load(training: _Training, folder: pathlib.Path, rounds: int) -> Table:
    """From the page cache into tensors of the process; ours with every byte hashed and compared."""
    _, digest = archive.write(training.state(), folder / "load.pth")
    torch.save(training.state(), folder / "load-torch.pth")
    live = training.state()
    contenders: dict[str, Callable[[], Any]] = {
        "ours, into live tensors": lambda: archive.read(folder / "load.pth", verify_digest=digest, into=live),
        "ours, fresh tensors": lambda: archive.read(folder / "load.pth", verify_digest=digest),
        "ours, fresh, not verified": lambda: archive.read(folder / "load.pth"),
        "torch.load": lambda: torch.load(folder / "load-torch.pth", weights_only=True),
    }
    if importlib.util.find_spec("safetensors"):
        from safetensors.torch import load_file, save_file

        save_file(_flat(live), folder / "load.safetensors")

        def copies() -> None:
            loaded, targets = load_file(folder / "load.safetensors"), _flat(live)
            for name, tensor in targets.items():
                tensor.copy_(loaded[name])

        contenders["safetensors + copies"] = copies
        contenders["safetensors + clones"] = lambda: {
            name: tensor.clone() for name, tensor in load_file(folder / "load.safetensors").items()
        }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, load in contenders.items():
            started = time.perf_counter()
            loaded = load()
            times[name].append(time.perf_counter() - started)
            del loaded
    return {name: {"load": statistics.median(values) * 1e3} for name, values in times.items()}


def show(result: dict[str, Any]) -> None:
    print(f"{result['megabytes']:.0f} MB, one torch thread, medians in ms ({threading.active_count()} thread left)")
    print(f"{'save':<28}{'first':>9}{'blocked':>9}{'stolen':>9}{'durable':>9}")
    for name, row in result["save"].items():
        print(f"{name:<28}" + "".join(f"{row[c]:>9.1f}" for c in ("first", "blocked", "stolen", "durable")))
    print(f"{'load':<28}")
    for name, row in result["load"].items():
        print(f"{name:<28}{row['load']:>9.1f}")
    for name, value in result["ratios"].items():
        print(f"{name:<52}{value:>7.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the size and fewer rounds")
    show(run(parser.parse_args().quick))
