"""Files that torch reads, that come back bit for bit, and that are refused when one bit is wrong."""

from __future__ import annotations

import os
import pathlib
import random
import threading
import zipfile
from collections import Counter, OrderedDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from determined.errors import InvalidCheckpointException, InvalidDataTypeException
from determined.pytorch import archive
from determined.storage.digest import CHUNK_BYTES, digest_file

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.bool,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def state() -> dict[Any, Any]:
    torch.manual_seed(0)
    base = torch.randn(300, 200)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "dtypes": [torch.randint(0, 2, (5,)).to(torch.float32).to(dtype) for dtype in DTYPES],
        "base": base,
        "row": base[7],
        "transposed": base.t(),
        "strided": torch.randn(20, 30)[::3, ::2],
        "expanded": torch.randn(1, 3).expand(4, 3),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "frozen": torch.nn.Parameter(torch.randn(3), requires_grad=False),
        "with gradient": torch.randn(2, requires_grad=True),
        "big": torch.randn(700_000),
        "numbers": [0, -5, 2**70, 1.5, float("inf"), float("-inf"), -0.0, 1 + 2j, True, None],
        "text": "ünï\ud800",
        "bytes": b"\x00\xff",
        "bytearray": bytearray(b"ab"),
        "nested": ({"a": [(), [], {}]}, {1, "b"}, OrderedDict(x=1), Counter("aab")),
        7: {None: 1, (1, "x"): 2, 2.5: 3},
        "torch": [torch.float32, torch.device("cpu"), torch.Size([1, 2])],
    }


def assert_same(left: Any, right: Any, place: str = "state") -> None:
    assert type(left) is type(right), place
    if isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape, left.requires_grad) == (right.dtype, right.shape, right.requires_grad), place
        left, right = left.detach().resolve_conj().contiguous(), right.detach().resolve_conj().contiguous()
        assert torch.equal(left.flatten().view(torch.uint8), right.flatten().view(torch.uint8)), place
    elif isinstance(left, dict):
        assert list(left) == list(right), place
        assert getattr(left, "_metadata", None) == getattr(right, "_metadata", None), place
        for key in left:
            assert_same(left[key], right[key], f"{place}[{key!r}]")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), place
        for n, (one, other) in enumerate(zip(left, right)):
            assert_same(one, other, f"{place}[{n}]")
    else:
        assert repr(left) == repr(right), place


def test_a_state_comes_back_bit_for_bit(tmp_path: pathlib.Path) -> None:
    path, saved = tmp_path / "state.pth", state()
    size, digest = archive.write(saved, path)
    assert (size, digest) == digest_file(path)
    assert_same(saved, archive.read(path))
    assert_same(saved, archive.read(path, verify_digest=digest))
    assert_same(saved, torch.load(path, weights_only=True))
    assert_same(saved, torch.load(path, weights_only=True, mmap=True))


def test_the_file_is_a_sound_zip_with_aligned_records(tmp_path: pathlib.Path) -> None:
    archive.write(state(), tmp_path / "state.pth")
    with zipfile.ZipFile(tmp_path / "state.pth") as file:
        for info in file.infolist():
            if info.file_size < CHUNK_BYTES:  # larger ones have no checksum of the zip's own
                file.read(info)
        assert file.read("archive/version") == b"3\n"
        for info in file.infolist():
            file.fp.seek(info.header_offset + 26)  # type: ignore[union-attr]
            lengths = archive.header_lengths(b"\0" * 26 + file.fp.read(4))  # type: ignore[union-attr]
            assert (info.header_offset + 30 + sum(lengths)) % 64 == 0


def test_tensors_that_share_memory_still_do(tmp_path: pathlib.Path) -> None:
    base = torch.arange(1000.0)
    saved = {"a": base, "half": base[500:], "again": base, "bits": base.view(torch.int32)[3:5]}
    archive.write(saved, tmp_path / "state.pth")
    for loaded in (archive.read(tmp_path / "state.pth"), torch.load(tmp_path / "state.pth", weights_only=True)):
        assert_same(saved, loaded)
        loaded["a"].fill_(1.0)
        assert loaded["half"][0] == 1.0 and loaded["again"] is loaded["a"]
        assert loaded["bits"][0] == torch.tensor(1.0).view(torch.int32)


def test_only_the_part_of_a_storage_that_is_seen_is_written(tmp_path: pathlib.Path) -> None:
    size, _ = archive.write({"slice": torch.zeros(1_000_000)[10:20]}, tmp_path / "state.pth")
    assert size < 4000


def test_lists_that_are_one_list_stay_one_and_may_hold_themselves(tmp_path: pathlib.Path) -> None:
    shared: list[Any] = [1]
    shared.append(shared)
    archive.write({"a": shared, "b": shared}, tmp_path / "state.pth")
    loaded = archive.read(tmp_path / "state.pth")
    assert loaded["a"] is loaded["b"] and loaded["a"][1] is loaded["a"]


def test_numpy_numbers_become_plain_ones_and_defaultdicts_dicts(tmp_path: pathlib.Path) -> None:
    saved = {"loss": np.float64(0.5), "n": np.int32(3), "d": defaultdict(list, {np.int64(1): [np.bool_(True)]})}
    archive.write(saved, tmp_path / "state.pth")
    assert_same({"loss": 0.5, "n": 3, "d": {1: [True]}}, torch.load(tmp_path / "state.pth", weights_only=True))


class Tagged(torch.Tensor):
    pass


class Point(NamedTuple):
    x: int
    y: int


REFUSED: dict[str, Any] = {
    "object": object(),
    "function": len,
    "array": np.zeros(3),
    "named tuple": Point(1, 2),
    "frozen set": frozenset({1}),
    "subclass": torch.zeros(2).as_subclass(Tagged),
    "sparse": torch.eye(3).to_sparse(),
    "meta": torch.empty(3, device="meta"),
    "set of a tensor": {torch.zeros(1)},
    "key": {object(): 1},
    "date": np.datetime64("2020-01-01"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_is_an_error_that_names_the_place(name: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InvalidDataTypeException, match=r"state\['callbacks'\]\['mine'\]\[1\]"):
        archive.write({"callbacks": {"mine": [0, REFUSED[name]]}}, tmp_path / "state.pth")
    assert not (tmp_path / "state.pth").exists()


def test_a_sharded_tensor_is_refused_with_the_way_to_store_it(tmp_path: pathlib.Path) -> None:
    class DTensor(torch.Tensor):
        pass

    with pytest.raises(InvalidDataTypeException, match="full_tensor"):
        archive.write([torch.zeros(2).as_subclass(DTensor)], tmp_path / "state.pth")


def test_reading_fills_the_tensors_of_a_live_state(tmp_path: pathlib.Path) -> None:
    linear, other_linear = torch.nn.Linear(300, 300), torch.nn.Linear(300, 300)
    model = torch.nn.Sequential(linear, torch.nn.BatchNorm1d(300))
    saved = {"models": [model.state_dict()], "extra": torch.randn(3), "shared": [torch.randn(6)] * 2}
    _, digest = archive.write(saved, tmp_path / "state.pth")
    norm = torch.nn.BatchNorm1d(300)
    other = torch.nn.Sequential(other_linear, norm)
    of_another_shape = torch.zeros(4)
    into = {"models": [other.state_dict()], "extra": of_another_shape, "shared": [torch.zeros(6), torch.zeros(6)]}
    loaded = archive.read(tmp_path / "state.pth", verify_digest=digest, into=into)
    assert_same(saved, loaded)
    assert loaded["models"][0]["0.weight"].data_ptr() == other_linear.weight.data_ptr()
    assert torch.equal(other_linear.weight, linear.weight) and other_linear.weight.requires_grad
    assert torch.equal(of_another_shape, torch.zeros(4))
    other.load_state_dict(loaded["models"][0])
    loaded["models"][0]["1.running_mean"].add_(1)
    assert norm.running_mean is not None and norm.running_mean.mean() == 1


def test_a_state_read_outlives_its_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state.pth"
    saved = {"a": torch.randn(100_000), "b": torch.randn(3)}
    archive.write(saved, path)
    loaded = archive.read(path)
    with open(path, "r+b") as file:
        file.truncate(10)
    path.unlink()
    assert_same(saved, loaded)
    loaded["a"].add_(1)


def test_files_of_torch_are_read_and_many_small_tensors_too(tmp_path: pathlib.Path) -> None:
    saved = {f"tensor {n}": torch.full((n % 7,), float(n)) for n in range(3000)}
    torch.save(saved, tmp_path / "theirs.pth")
    _, digest = archive.write(saved, tmp_path / "ours.pth")
    assert_same(saved, archive.read(tmp_path / "theirs.pth"))
    assert_same(saved, archive.read(tmp_path / "ours.pth", verify_digest=digest))
    assert_same(saved, torch.load(tmp_path / "ours.pth", weights_only=True))


def test_sizes_beyond_32_bits_take_the_zip64_forms(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits are lowered, so that a small file has the fields that otherwise need one of 4 GiB."""
    saved = {"a": torch.randn(5000), "b": torch.randn(10), "c": torch.randn(6000)}
    _, digest = archive.write(saved, tmp_path / "plain.pth")
    monkeypatch.setattr(archive, "_UINT16_MAX", 5)
    archive.write(saved, tmp_path / "many.pth")
    monkeypatch.undo()
    assert_same(saved, torch.load(tmp_path / "many.pth", weights_only=True))
    assert_same(saved, archive.read(tmp_path / "many.pth"))
    monkeypatch.setattr(archive, "_UINT32_MAX", 12_000)
    _, digest = archive.write(saved, tmp_path / "large.pth")
    assert_same(saved, archive.read(tmp_path / "large.pth", verify_digest=digest))


def damaged_is_refused(path: pathlib.Path, digest: str, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(InvalidCheckpointException):
        archive.read(path, verify_digest=digest)


def test_one_wrong_bit_anywhere_is_refused(tmp_path: pathlib.Path) -> None:
    saved = {"a": torch.randn(40), "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}], "od": OrderedDict(x=torch.ones(2))}
    path = tmp_path / "state.pth"
    size, digest = archive.write(saved, path)
    whole = path.read_bytes()
    chosen = random.Random(1)
    for at in {chosen.randrange(size) for _ in range(1500)}:
        damaged_is_refused(path, digest, whole[:at] + bytes([whole[at] ^ (1 << chosen.randrange(8))]) + whole[at + 1 :])


def test_a_file_cut_short_is_refused_even_without_a_digest(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state.pth"
    size, _ = archive.write({"a": torch.randn(400), "b": [1, 2]}, path)
    whole = path.read_bytes()
    for length in [*range(0, size, 37), size - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidCheckpointException):
            archive.read(path)


def test_a_damaged_large_file_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state.pth"
    size, digest = archive.write({"a": torch.zeros(5_000_000)}, path)
    with open(path, "r+b") as file:
        file.seek(size // 2)
        file.write(b"\x01")
    with pytest.raises(InvalidCheckpointException, match="hash"):
        archive.read(path, verify_digest=digest)


@pytest.mark.parametrize("contents", [b"", b"PK\x03\x04", b"x" * 100, b"PK\x05\x06" + b"\xff" * 18])
def test_a_file_that_is_no_archive_is_refused(contents: bytes, tmp_path: pathlib.Path) -> None:
    (tmp_path / "state.pth").write_bytes(contents)
    with pytest.raises(InvalidCheckpointException, match=r"state\.pth"):
        archive.read(tmp_path / "state.pth")


def test_a_compressed_record_is_refused(tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", b"\0" * 1_000_000)
    with pytest.raises(InvalidCheckpointException, match="compressed"):
        archive.read(tmp_path / "bomb.pth")


def test_a_full_disk_leaves_no_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", no_space)
    with pytest.raises(OSError, match="No space"):
        archive.write(state(), tmp_path / "state.pth")
    assert not (tmp_path / "state.pth").exists()


def test_short_writes_are_continued(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, views, at: whole(fd, [bytes(views[0][:100_000])], at))
    saved = state()
    size, digest = archive.write(saved, tmp_path / "state.pth")
    assert (size, digest) == digest_file(tmp_path / "state.pth")


def test_several_threads_may_read_and_write_at_once(tmp_path: pathlib.Path) -> None:
    saved = {"a": torch.randn(1_000_000)}
    failures: list[BaseException] = []

    def work(n: int) -> None:
        try:
            _, digest = archive.write(saved, tmp_path / f"{n}.pth")
            assert_same(saved, archive.read(tmp_path / f"{n}.pth", verify_digest=digest))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
