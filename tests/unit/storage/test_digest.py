"""The digest of a file is the same however its bytes arrive."""

from __future__ import annotations

import pathlib

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from determined.storage import digest
from determined.storage.digest import CHUNK_BYTES, ChunkedDigest, digest_bytes, digest_file


def by_definition(data: bytes) -> str:
    chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    return "xxh3:" + xxhash.xxh3_128(b"".join(xxhash.xxh3_128(chunk).digest() for chunk in chunks)).hexdigest()


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 7])
def test_it_is_the_hash_of_the_hashes_of_chunks(size: int, tmp_path: pathlib.Path) -> None:
    data = bytes(at * 7 % 251 for at in range(1000)) * (size // 1000 + 1)
    data = data[:size]
    (tmp_path / "file").write_bytes(data)
    assert digest_bytes(data) == by_definition(data)
    assert digest_file(tmp_path / "file") == (size, by_definition(data))


@given(st.lists(st.integers(0, CHUNK_BYTES + 100), max_size=6))
def test_pieces_of_any_length_give_the_same(lengths: list[int]) -> None:
    data = bytes(range(256)) * (sum(lengths) // 256 + 1)
    growing, at = ChunkedDigest(), 0
    for length in lengths:
        growing.update(data[at : at + length])
        at += length
    assert (growing.size, growing.text()) == (at, by_definition(data[:at]))


def test_a_digest_may_be_asked_for_before_the_end() -> None:
    growing = ChunkedDigest()
    growing.update(b"ab")
    assert growing.text() == by_definition(b"ab")
    growing.update(memoryview(b"cd"))
    assert growing.text() == by_definition(b"abcd")


def test_a_copy_is_hashed_on_the_way(tmp_path: pathlib.Path) -> None:
    data = b"x" * (CHUNK_BYTES * 2 + 5)
    (tmp_path / "from").write_bytes(data)
    assert digest.copy_file(tmp_path / "from", tmp_path / "to") == (len(data), by_definition(data))
    assert (tmp_path / "to").read_bytes() == data


def test_a_link_is_not_hashed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(OSError):
        digest_file(tmp_path / "link")
