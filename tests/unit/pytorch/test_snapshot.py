"""A captured state is a copy, the memory is used again, and a save that fails is not kept quiet."""

from __future__ import annotations

import logging
import pathlib
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

from determined.errors import InvalidDataTypeException
from determined.pytorch import archive
from determined.pytorch.snapshot import Saver, Snapshotter


def training_state() -> tuple[torch.nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 64)
    model = torch.nn.Sequential(linear, torch.nn.BatchNorm1d(64))
    model.register_buffer("shared", linear.weight.detach())
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    return model, optimizer, {"models": [model.state_dict()], "optimizers": [optimizer.state_dict()], "extra": [1, {}]}


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().sum().backward()
    optimizer.step()


def bits(state: Any, path: pathlib.Path) -> str:
    return archive.write(state, path, sync=False)[1]


def addresses(value: Any) -> set[int]:
    if isinstance(value, torch.Tensor):
        return {value.data_ptr()} if value.numel() else set()
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return {address for item in items for address in addresses(item)}


def test_training_on_does_not_change_what_was_captured(tmp_path: pathlib.Path) -> None:
    model, optimizer, state = training_state()
    before = bits(state, tmp_path / "live")
    captured = Snapshotter().capture(state)
    assert bits(captured.state, tmp_path / "copy") == before
    state["extra"].append("later")
    step(model, optimizer)
    assert bits(captured.state, tmp_path / "copy") == before
    assert not addresses(captured.state) & addresses(state)


def test_loading_what_was_saved_leaves_the_loaded_state_apart_from_the_next(tmp_path: pathlib.Path) -> None:
    _, optimizer, state = training_state()
    archive.write(Snapshotter().capture(state).state, tmp_path / "state.pth")
    loaded = archive.read(tmp_path / "state.pth")
    optimizer.load_state_dict(loaded["optimizers"][0])
    again = archive.read(tmp_path / "state.pth")
    assert not addresses(loaded) & addresses(again)


def test_tensors_that_share_memory_share_it_in_the_copy() -> None:
    base = torch.arange(100.0)
    captured = Snapshotter().capture({"base": base, "view": base[50:60], "slice": torch.zeros(1000)[5:10]})
    captured.state["base"][50] = -1
    assert captured.state["view"][0] == -1
    assert captured.nbytes == 400 + 24  # the slice is copied from the last multiple of 16 bytes before it


def test_classes_types_and_gradient_flags_are_kept() -> None:
    state = {
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "gradient": torch.ones(2, requires_grad=True),
        "half": torch.ones(3, dtype=torch.bfloat16).reshape(3, 1).expand(3, 2),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(3),
        "transposed": torch.arange(6).reshape(2, 3).t(),
    }
    copied = Snapshotter().capture(state).state
    for name, tensor in state.items():
        copy = copied[name]
        assert type(copy) is type(tensor) and copy.requires_grad == tensor.requires_grad
        assert copy.dtype == tensor.dtype and copy.stride() == tensor.stride() and torch.equal(copy, tensor)


def test_the_memory_is_used_again(tmp_path: pathlib.Path) -> None:
    model, optimizer, state = training_state()
    snapshotter = Snapshotter()
    first = snapshotter.capture(state)
    used = addresses(first.state)
    first.release()
    step(model, optimizer)
    second = snapshotter.capture(state)
    assert addresses(second.state) == used
    assert bits(second.state, tmp_path / "copy") == bits(state, tmp_path / "live")


def test_a_state_that_grew_is_captured_whole(tmp_path: pathlib.Path) -> None:
    snapshotter = Snapshotter()
    for size in (10, 100_000, 50, 2_000_000):
        state = {"a": torch.randn(size), "b": [torch.randn(3)]}
        captured = snapshotter.capture(state)
        assert bits(captured.state, tmp_path / "copy") == bits(state, tmp_path / "live")
        captured.release()


def test_memory_prepared_beforehand_is_what_the_first_capture_uses() -> None:
    _, _, state = training_state()
    snapshotter = Snapshotter()
    snapshotter.prepare(state)
    snapshotter.prepare(10_000_000)  # one at a time; the second is not needed to be right
    captured = snapshotter.capture(state)
    start = min(addresses(captured.state))
    assert max(addresses(captured.state)) - start < captured.nbytes + 64 * len(addresses(captured.state))
    snapshotter.prepare(state)
    assert addresses(captured.state) == addresses(snapshotter.capture(state).state) or not captured.released


def test_a_copy_somebody_still_holds_is_never_overwritten() -> None:
    snapshotter = Snapshotter()
    first = snapshotter.capture([torch.ones(1000)])
    second = snapshotter.capture([torch.zeros(1000)])
    assert first.state[0].sum() == 1000 and second.state[0].sum() == 0


@pytest.mark.parametrize("everything", [True, False])
def test_a_copy_behind_is_complete_after_the_barrier(everything: bool, tmp_path: pathlib.Path) -> None:
    model, optimizer, state = training_state()
    before = bits(state, tmp_path / "live")
    listed = True if everything else list(model.parameters())
    captured = Snapshotter().capture(state, behind=listed)
    captured.ready()
    step(model, optimizer)
    captured.ready()
    assert bits(captured.state, tmp_path / "copy") == before


def test_only_the_listed_tensors_are_copied_behind() -> None:
    state = {"weight": torch.ones(10), "buffer": torch.ones(10)}
    captured = Snapshotter().capture(state, behind=[state["weight"]])
    state["buffer"].zero_()
    captured.ready()
    assert captured.state["buffer"].sum() == 10 and captured.state["weight"].sum() == 10


def test_what_cannot_be_stored_is_refused_when_it_is_captured() -> None:
    with pytest.raises(InvalidDataTypeException, match=r"state\['callbacks'\]\['x'\]"):
        Snapshotter().capture({"callbacks": {"x": object()}})


def test_several_torch_threads_copy_the_same(tmp_path: pathlib.Path) -> None:
    state = [torch.randn(1_000_000), torch.randn(3)]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        captured = Snapshotter().capture(state)
    finally:
        torch.set_num_threads(threads)
    assert bits(captured.state, tmp_path / "copy") == bits(state, tmp_path / "live")


def test_one_save_is_in_flight_and_the_next_waits(caplog: pytest.LogCaptureFixture) -> None:
    snapshotter, saver = Snapshotter(), Saver()
    let_go, order = threading.Event(), []
    first = snapshotter.capture([torch.ones(100)])

    def slow() -> str:
        assert let_go.wait(30)
        order.append(float(first.state[0].sum()))
        return "first"

    saver.save(first, slow)
    assert saver.busy
    with caplog.at_level(logging.DEBUG):
        threading.Timer(0.05, let_go.set).start()
        second = snapshotter.capture([torch.zeros(100)])
        saver.save(second, lambda: order.append(float(second.state[0].sum())))
        saver.wait()
    assert order == [100.0, 0.0] and first.released and second.released and not saver.busy
    assert any("previous checkpoint" in record.message for record in caplog.records)


def test_wait_returns_what_was_written() -> None:
    saver = Saver()
    saver.save(Snapshotter().capture([1]), lambda: "done")
    assert saver.wait() == "done"


def test_a_failed_save_is_raised_once_and_the_next_one_runs() -> None:
    snapshotter, saver = Snapshotter(), Saver()

    def full() -> None:
        raise OSError(28, "No space left on device")

    captured = snapshotter.capture([torch.ones(3)])
    saver.save(captured, full)
    captured.wait_released()
    saver.save(snapshotter.capture([torch.ones(3)]), lambda: "second")
    with pytest.raises(OSError, match="No space"):
        saver.wait()
    saver.check()
    assert saver.wait() == "second"


def test_the_process_does_not_end_before_the_checkpoint_is_written(tmp_path: pathlib.Path) -> None:
    """And a failure that nobody is left to ask about is said on the way out."""
    script = f"""
import threading, torch
from determined.pytorch import archive
from determined.pytorch.snapshot import Saver, Snapshotter
captured = Snapshotter().capture([torch.ones(10)])
def write():
    threading.main_thread().join()
    archive.write(captured.state, {str(tmp_path / "state.pth")!r})
    raise OSError("the folder is gone")
Saver().save(captured, write)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert torch.equal(archive.read(tmp_path / "state.pth")[0], torch.ones(10))
    assert "checkpoint was not saved" in done.stderr and "the folder is gone" in done.stderr
