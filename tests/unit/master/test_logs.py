"""Logs are read by place, filter and pattern; what is found is what a look at every line would find, only sooner."""

from __future__ import annotations

import pathlib
import random
import time
from collections.abc import Iterator

import pytest

from determined import errors
from determined.master import logs
from determined.master.logs import LogFilter
from determined.wire import log_format
from determined.wire.views import LogLine
from determined.worker.log_file import LogFile

WORDS = ["loss=0.25", "Épochs", 'a "quoted" word', "back\\slash", "tab\there", "ERROR: no", "[INFO] yes", "", "x" * 300]


def write(folder: pathlib.Path, epoch: int, count: int, seed: int = 0) -> None:
    draw = random.Random(seed)
    log = LogFile(folder / f"trial-1.{epoch}.jsonl", 0)
    for number in range(count):
        line = f"{draw.choice(WORDS)} {number}".encode()
        log.write([line], rank=draw.choice([None, 0, 1]), stdtype=draw.choice(["stdout", "stderr"]))
    log.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("logs") / "trial-1"
    for epoch, count in ((1, 3000), (2, 0), (10, 2000)):
        write(folder, epoch, count, seed=epoch)
    return folder


def everything(folder: pathlib.Path) -> list[LogLine]:
    return logs.read(folder, limit=10**6)


def test_allocations_follow_each_other_and_ids_grow(folder: pathlib.Path) -> None:
    lines = everything(folder)
    assert len(lines) == 5000
    assert [line.id for line in lines] == sorted({line.id for line in lines})
    assert {line.allocation_id for line in lines} == {"trial-1.1", "trial-1.10"}
    assert [line.text.split()[-1] for line in lines[2999:3001]] == ["2999", "0"]


def admits(line: LogLine, filters: LogFilter) -> bool:
    """What the filters mean, said plainly."""
    text = filters.text
    levels = log_format.LEVELS
    return (
        (filters.rank is None or line.rank == filters.rank)
        and (filters.stdtype is None or line.stdtype == filters.stdtype)
        and (
            filters.level is None
            or (line.level is not None and levels.index(line.level) >= levels.index(filters.level))
        )
        and (text is None or (text in line.text if text != text.lower() else text in line.text.lower()))
        and (filters.regex is None or "loss" in line.text)
        and (filters.since is None or line.time >= filters.since)
        and (filters.until is None or line.time <= filters.until)
    )


def filters_to_try() -> Iterator[LogFilter]:
    yield from (LogFilter(), LogFilter(rank=1), LogFilter(stdtype="stderr"), LogFilter(level="INFO"))
    yield from (LogFilter(level="ERROR", rank=0), LogFilter(text="quoted"), LogFilter(text='a "Quoted'))
    yield from (
        LogFilter(text="ÉPOCHS"),
        LogFilter(text="épochs"),
        LogFilter(text="back\\slash"),
        LogFilter(text="tab\t"),
    )
    yield from (LogFilter(text="stdout"), LogFilter(text="Loss", rank=1), LogFilter(regex=r"loss=\d", stdtype="stdout"))


@pytest.mark.parametrize("filters", list(filters_to_try()), ids=str)
def test_filters_pages_and_tails_give_what_a_look_at_every_line_gives(folder: pathlib.Path, filters: LogFilter) -> None:
    expected = [line for line in everything(folder) if admits(line, filters)]
    assert logs.read(folder, filters=filters, limit=10**6) == expected
    assert logs.read(folder, filters=filters, limit=7, tail=True) == expected[-7:]
    if not expected:
        return
    middle = expected[len(expected) // 2].id
    at = len(expected) // 2
    assert logs.read(folder, filters=filters, limit=5, after=middle) == expected[at + 1 : at + 6]
    assert logs.read(folder, filters=filters, limit=5, before=middle) == expected[max(at - 5, 0) : at]
    assert logs.read(folder, filters=filters, limit=9, after=expected[0].id, before=middle) == expected[1:at][:9]


def test_times_by_index_with_and_without_one(folder: pathlib.Path) -> None:
    lines = everything(folder)
    filters = LogFilter(since=lines[2500].time, until=lines[3500].time)
    expected = [line for line in lines if admits(line, filters)]
    assert logs.read(folder, filters=filters, limit=10**6) == expected
    index = log_format.index_of(folder / "trial-1.1.jsonl")
    before = [entry[:2] for entry in log_format.ENTRY.iter_unpack(index.read_bytes())]
    index.unlink()
    assert logs.read(folder, filters=filters, limit=10**6) == expected
    assert [entry[:2] for entry in log_format.ENTRY.iter_unpack(index.read_bytes())] == before


def test_half_a_line_is_not_read_and_a_damaged_one_is_passed_over(tmp_path: pathlib.Path) -> None:
    write(tmp_path, 1, 3)
    with open(tmp_path / "trial-1.1.jsonl", "ab") as file:
        file.write(b'{"t":1,"r":\n{"t":1,"r":0')
    for tail in (False, True):
        assert [line.text[-1] for line in logs.read(tmp_path, tail=tail)] == ["0", "1", "2"]
    assert logs.read(tmp_path / "nothing") == []
    assert logs.size(tmp_path) > 0
    logs.delete(tmp_path)
    assert logs.size(tmp_path) == 0


def test_very_long_lines_are_found_both_ways(tmp_path: pathlib.Path) -> None:
    log = LogFile(tmp_path / "job-1.1.jsonl", 0)
    log.write([b"first", b"y" * (3 << 20), b"last"], rank=0, stdtype="stdout")
    log.close()
    for tail in (False, True):
        assert [len(line.text) for line in logs.read(tmp_path, tail=tail)] == [5, 3 << 20, 4]
    assert [line.text for line in logs.read(tmp_path, tail=True, limit=1)] == ["last"]


EVIL = [
    r"(a+)+$",
    r"(a|a)*$",
    r"(a|aa)+$",
    r"([a-z]+)*\d$",
    r"(.*)*x$",
    r"(a?){30}a{30}b",
    r"a*a*a*a*a*a*b",
    r"(\w+\s?)+!$",
]


@pytest.mark.parametrize("pattern", EVIL)
def test_a_pattern_that_would_never_end_is_ended(tmp_path: pathlib.Path, pattern: str) -> None:
    log = LogFile(tmp_path / "job-1.1.jsonl", 0)
    log.write([b"a" * (1 << 20)], rank=0, stdtype="stdout")
    log.close()
    began = time.monotonic()
    try:
        assert logs.read(tmp_path, filters=LogFilter(regex=pattern)) is not None
    except errors.BadRequest as error:
        assert "takes too long" in str(error) or "not a regular expression" in str(error)
    assert time.monotonic() - began < 5.0


def test_what_is_no_filter_is_told(folder: pathlib.Path) -> None:
    for filters, words in [
        (LogFilter(regex="("), "not a regular expression"),
        (LogFilter(regex="x" * 501), "longer than 500"),
        (LogFilter(level="LOUD"), "not a level"),
    ]:
        with pytest.raises(errors.BadRequest, match=words):
            logs.read(folder, filters=filters)


@pytest.mark.slow
def test_a_million_lines_are_searched_at_once(tmp_path: pathlib.Path) -> None:
    log = LogFile(tmp_path / "job-1.1.jsonl", 0)
    for start in range(0, 1_000_000, 1000):
        lines = [b"epoch %d: loss=0.125 accuracy=0.75" % number for number in range(start, start + 1000)]
        log.write(lines, rank=start // 1000 % 4, stdtype="stdout")
    log.close()
    cases = {
        "tail": ({"tail": True, "limit": 100}, LogFilter()),
        "text": ({"limit": 100}, LogFilter(text="epoch 999999:")),
        "rank, backwards": ({"tail": True, "limit": 100}, LogFilter(rank=9)),
        "pattern": ({"tail": True, "limit": 10}, LogFilter(regex=r"epoch 99999\d")),
    }
    for name, (options, filters) in cases.items():
        began = time.process_time()
        found = logs.read(tmp_path, filters=filters, **options)  # type: ignore[arg-type]
        assert time.process_time() - began < 1.5, name
        assert len(found) == {"tail": 100, "text": 1, "rank, backwards": 0, "pattern": 10}[name]
