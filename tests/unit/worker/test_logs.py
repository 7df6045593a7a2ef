"""Lines are cut the same however the bytes arrive, and the last thing a rank said is found again."""

from __future__ import annotations

import os
import pathlib
import re
import select

import hypothesis
from hypothesis import strategies

from determined.worker.logs import Lines, Outlet, Tail


@hypothesis.given(strategies.lists(strategies.binary(max_size=6).map(lambda data: re.sub(rb"[^\r\n]", b"x", data))))
def test_lines_do_not_depend_on_how_the_bytes_arrive(pieces: list[bytes]) -> None:
    lines = Lines()
    found = [line for piece in pieces for line in lines.feed(piece)] + lines.finish()
    expected = re.split(rb"\r\n|\n|\r", b"".join(pieces))
    assert found == (expected if expected[-1] else expected[:-1])


def test_a_carriage_return_ends_a_line_at_once() -> None:
    lines = Lines()
    assert lines.feed(b"10%\r") == [b"10%"]
    assert lines.feed(b"\nnext\r\n") == [b"next"]


def test_a_line_without_end_does_not_pile_up() -> None:
    lines = Lines()
    assert [len(line) for line in lines.feed(bytes(3 << 20))] == [3 << 20]
    assert lines.finish() == []


def tail_of(*lines: str) -> Tail:
    tail = Tail()
    for line in lines:
        tail.add(line.encode())
    return tail


CHAIN = [
    "Traceback (most recent call last):",
    "KeyError: 'a'",
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    "Traceback (most recent call last):",
    "ValueError: b",
]


def test_the_tail_is_the_last_traceback_with_its_causes() -> None:
    earlier = ["Traceback (most recent call last):", "OSError: handled", "going on"]
    assert tail_of(*earlier, *CHAIN).text() == "\n".join(CHAIN)


def test_torchs_own_prefix_hides_no_traceback() -> None:
    tail = tail_of("warning", *(f"[rank1]: {line}" for line in CHAIN))
    assert tail.text() == "\n".join(CHAIN)
    assert tail.traceback_at is not None


def test_without_a_traceback_the_tail_is_the_last_lines() -> None:
    tail = tail_of(*(f"line {number}" for number in range(100)))
    assert tail.text().splitlines() == [f"line {number}" for number in range(80, 100)]
    assert tail.traceback_at is None


def test_a_slow_reader_costs_no_time_and_loses_nothing() -> None:
    read, write = os.pipe()
    outlet = Outlet(write)
    data = bytes(range(256)) * 4096
    outlet.write(data)  # A pipe holds 64 KiB: were this to block, the test would hang.
    outlet.write(b"end")
    assert outlet.has_pending and outlet.is_full is (len(data) - 65536 + 3 > Outlet.FULL)
    found = b""
    while len(found) < len(data) + 3:
        found += os.read(read, 1 << 16)
        outlet.flush(0.0)
    assert found == data + b"end"
    os.close(read)
    os.close(write)


def test_a_reader_that_has_gone_is_forgotten(tmp_path: pathlib.Path) -> None:
    read, write = os.pipe()
    os.close(read)
    outlet = Outlet(write)
    outlet.write(b"x" * select.PIPE_BUF * 3)
    assert not outlet.has_pending
    os.close(write)
    with open(tmp_path / "file", "wb", buffering=0) as file:
        Outlet(file.fileno()).write(b"y" * 100_000)
    assert (tmp_path / "file").stat().st_size == 100_000
