"""The way up: every line reaches the master once and in order, however bad the way is."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from determined.client.transport import Session
from determined.core import uplink
from determined.core.sinks import Row
from determined.wire import reports
from tests.unit.core.reports_master import ReportsMaster


@contextlib.contextmanager
def shipping(master: ReportsMaster, folder: pathlib.Path, **options: Any) -> Iterator[uplink.Shipper]:
    spools = {"chief": folder / "chief.spool", "node": folder / "node.spool"}
    shipper = uplink.Shipper(Session(master.url, "secret"), "trial-1.2", 2, spools, watch_seconds=0.005, **options)
    shipper.start()
    try:
        yield shipper
    finally:
        shipper.close()


def numbered(first: int, last: int) -> list[dict[str, Any]]:
    return [{"kind": "status", "status": str(number)} for number in range(first, last)]


def statuses(lines: list[dict[str, Any]]) -> list[str]:
    return [line["status"] for line in lines]


# --- the spool


def test_a_spool_counts_its_lines_and_cuts_off_a_torn_one(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "chief.spool"
    spool = uplink.Spool(path)
    spool.append(*numbered(0, 3), durable=True)
    spool.close()
    with open(path, "ab") as file:
        file.write(b'{"kind":"status","sta')
    assert uplink.count_lines(path) == 3
    again = uplink.Spool(path)
    again.append(*numbered(3, 4))
    again.close()
    assert statuses([json.loads(line) for line in path.read_text().splitlines()]) == ["0", "1", "2", "3"]
    assert uplink.count_lines(path) == 4
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_spool_that_is_not_there_has_no_lines(tmp_path: pathlib.Path) -> None:
    assert uplink.count_lines(tmp_path / "none") == 0


def test_what_the_sink_writes_is_what_the_master_reads(tmp_path: pathlib.Path) -> None:
    spool = uplink.Spool(tmp_path / "chief.spool")
    sink = uplink.SpoolSink(spool)
    sink.report([Row("training", 7, {"loss": math.nan, "ü": math.inf, "by": {"a": 1}}, [{"loss": 1.0}], 12.5)])
    sink.close()
    line = spool.path.read_bytes()
    body = b'{"run_epoch":1,"source":"chief","first":0,"reports":[' + line.rstrip() + b"]}"
    (report,) = reports.ReportBatch.model_validate_json(body).reports
    assert isinstance(report, reports.MetricsReport)
    assert (report.group, report.steps_completed, report.time) == ("training", 7, 12.5)
    assert math.isnan(report.metrics["loss"]) and report.metrics["ü"] == math.inf and report.metrics["by"] == {"a": 1}


def test_many_threads_write_whole_lines(tmp_path: pathlib.Path) -> None:
    spool = uplink.Spool(tmp_path / "chief.spool")

    def write(thread: int) -> None:
        for number in range(200):
            spool.append({"kind": "status", "status": f"{thread}-{number}"})

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spool.close()
    written = statuses([json.loads(line) for line in spool.path.read_text().splitlines()])
    for writer in range(4):
        assert [text for text in written if text.startswith(f"{writer}-")] == [f"{writer}-{n}" for n in range(200)]


# --- the shipper


def test_lines_arrive_as_they_are_written(tmp_path: pathlib.Path) -> None:
    with ReportsMaster() as master, shipping(master, tmp_path) as shipper:
        spool = uplink.Spool(tmp_path / "chief.spool")
        for number in range(5):
            spool.append(*numbered(number, number + 1))
            master.wait(lambda wanted=number + 1: len(master.lines["chief"]) == wanted)  # type: ignore[misc]
        node = uplink.Spool(tmp_path / "node.spool")
        node.append({"kind": "usage", "time": 1.0, "usage": {"cpu": 0.5}})
        assert shipper.drain(10)
        assert statuses(master.lines["chief"]) == ["0", "1", "2", "3", "4"]
        assert master.lines["node"][0]["usage"] == {"cpu": 0.5}
        assert shipper.acknowledged() == {"chief": 5, "node": 1}
        assert master.requests[-1]["path"] == "/api/v1/allocations/trial-1.2/reports"
        assert master.requests[-1]["token"] == "Bearer secret" and master.requests[-1]["run_epoch"] == 2


def test_a_torn_line_waits_until_it_is_whole(tmp_path: pathlib.Path) -> None:
    with ReportsMaster() as master, shipping(master, tmp_path) as shipper:
        with open(tmp_path / "chief.spool", "ab", buffering=0) as file:
            file.write(b'{"kind":"status","status":"whole"}\n{"kind":"stat')
            master.wait(lambda: len(master.lines["chief"]) == 1)
            assert shipper.drain(1)
            file.write(b'us","status":"later"}\n')
            master.wait(lambda: len(master.lines["chief"]) == 2)
    assert statuses(master.lines["chief"]) == ["whole", "later"]


@pytest.mark.parametrize("seed", range(6))
def test_every_line_once_and_in_order_on_a_bad_way(tmp_path: pathlib.Path, seed: int) -> None:
    dice = random.Random(seed)
    troubles = [None, None, 500, 503, 502, "lost", "lost"]

    def trouble(number: int) -> Any:
        return dice.choice(troubles) if number < 40 else None

    with ReportsMaster(trouble) as master, shipping(master, tmp_path) as shipper:
        spool = uplink.Spool(tmp_path / "chief.spool")
        node = uplink.Spool(tmp_path / "node.spool")
        at = 0
        while at < 3000:
            count = dice.choice([1, 7, 400, 1300])
            spool.append(*numbered(at, at + count))
            node.append(*numbered(at, at + 1))
            at += count
            threading.Event().wait(dice.random() * 0.02)
        assert shipper.drain(30)
        assert statuses(master.lines["chief"]) == [str(number) for number in range(at)]
        assert all(len(request["reports"]) <= uplink.MOST_LINES for request in master.requests)


def test_a_master_that_comes_late_gets_everything(tmp_path: pathlib.Path) -> None:
    uplink.Spool(tmp_path / "chief.spool").append(*numbered(0, 50))
    away = threading.Event()
    with ReportsMaster(lambda number: None if away.is_set() else 503) as master, shipping(master, tmp_path) as shipper:
        assert not shipper.drain(0.3)
        away.set()
        assert shipper.drain(10)
        assert statuses(master.lines["chief"]) == [str(number) for number in range(50)]


def test_nobody_listens_at_all(tmp_path: pathlib.Path) -> None:
    with ReportsMaster() as master:
        url = master.url
    spool = uplink.Spool(tmp_path / "chief.spool")
    spool.append(*numbered(0, 5))
    shipper = uplink.Shipper(Session(url, "t"), "trial-1.1", 1, {"chief": spool.path}).start()
    assert not shipper.drain(0.3)
    shipper.close()
    assert shipper.acknowledged() == {"chief": 0}


def test_a_new_shipper_of_the_same_spool_repeats_nothing(tmp_path: pathlib.Path) -> None:
    spool = uplink.Spool(tmp_path / "chief.spool")
    with ReportsMaster() as master:
        spool.append(*numbered(0, 2500))
        with shipping(master, tmp_path) as first:
            assert first.drain(10)
        spool.append(*numbered(2500, 2600))
        with shipping(master, tmp_path) as second:
            assert second.drain(10)
        assert statuses(master.lines["chief"]) == [str(number) for number in range(2600)]


def test_a_line_larger_than_a_batch(tmp_path: pathlib.Path) -> None:
    spool = uplink.Spool(tmp_path / "chief.spool")
    spool.append({"kind": "metadata", "metadata": {"text": "x" * (3 * uplink.MOST_BYTES)}}, *numbered(0, 2))
    with ReportsMaster() as master, shipping(master, tmp_path) as shipper:
        assert shipper.drain(20)
        assert [line["kind"] for line in master.lines["chief"]] == ["metadata", "status", "status"]


def test_heartbeats_when_there_is_nothing_to_say(tmp_path: pathlib.Path) -> None:
    with ReportsMaster() as master, shipping(master, tmp_path, heartbeat_seconds=0.05):
        master.wait(lambda: len(master.requests) >= 4)
        assert all(request["reports"] == [] for request in master.requests)


def test_a_stop_order_is_given_once(tmp_path: pathlib.Path) -> None:
    orders: list[reports.StopOrder] = []
    asked = threading.Event()

    def on_stop(order: reports.StopOrder) -> None:
        orders.append(order)
        asked.set()

    with ReportsMaster() as master:
        master.stop = {"reason": "preempted", "grace_seconds": 30.0}
        with shipping(master, tmp_path, on_stop=on_stop, heartbeat_seconds=0.02):
            assert asked.wait(10)
            many = len(master.requests) + 4
            master.wait(lambda: len(master.requests) >= many)
    assert orders == [reports.StopOrder(reason=reports.StopReason.PREEMPTED, grace_seconds=30.0)]


@pytest.mark.parametrize(
    ("status", "code"), [(409, "stale_run_epoch"), (401, "unauthenticated")], ids=["replaced", "signed out"]
)
def test_an_allocation_that_is_over_is_told_so_once(tmp_path: pathlib.Path, status: int, code: str) -> None:
    why: list[str] = []
    fenced = threading.Event()

    def on_fenced(message: str) -> None:
        why.append(message)
        fenced.set()

    uplink.Spool(tmp_path / "chief.spool").append(*numbered(0, 3))
    with ReportsMaster(lambda number: status) as master:
        master.problem = {"code": code, "message": "a later attempt has taken its place"}
        with shipping(master, tmp_path, on_fenced=on_fenced, cluster_id="here") as shipper:
            assert fenced.wait(10)
            assert shipper.is_fenced and not shipper.drain(5)
        # Asked twice: the first answer may have been the last of a stranger's.
        assert why == ["a later attempt has taken its place"] and len(master.requests) == 2


@pytest.mark.parametrize(
    ("status", "code"), [(409, "stale_run_epoch"), (401, "unauthenticated"), (400, "bad_request"), (422, "bad_request")]
)
def test_a_stranger_at_the_masters_address_decides_nothing(tmp_path: pathlib.Path, status: int, code: str) -> None:
    uplink.Spool(tmp_path / "chief.spool").append(*numbered(0, 3))
    fenced: list[str] = []
    problems: list[str] = []
    with ReportsMaster(lambda number: status if number < 3 else None) as master:
        master.problem, master.cluster_id = {"code": code, "message": "who are you?"}, "elsewhere"
        options = {"on_fenced": fenced.append, "on_problem": problems.append, "cluster_id": "here"}
        with shipping(master, tmp_path, **options) as shipper:
            master.wait(lambda: len(master.lines["chief"]) == 3)
            assert not shipper.is_fenced
        assert statuses(master.lines["chief"]) == ["0", "1", "2"]
    assert fenced == problems == []


def test_a_line_that_cannot_be_taken_does_not_hold_up_the_others(tmp_path: pathlib.Path) -> None:
    problems: list[str] = []
    uplink.Spool(tmp_path / "chief.spool").append(*numbered(0, 40))
    with ReportsMaster() as master:
        master.poison = '"23"'
        with shipping(master, tmp_path, on_problem=problems.append) as shipper:
            assert shipper.drain(20)
        arrived = statuses(master.lines["chief"])
    assert arrived[:23] + arrived[24:] == [str(number) for number in range(40) if number != 23]
    assert "it makes no sense" in arrived[23]
    assert len(problems) == 1 and "report 23" in problems[0]


def test_a_master_that_never_answers_holds_up_nobody(tmp_path: pathlib.Path) -> None:
    uplink.Spool(tmp_path / "chief.spool").append(*numbered(0, 3))
    with ReportsMaster(lambda number: "hang") as master, shipping(master, tmp_path) as shipper:
        master.wait(lambda: True)
        assert not shipper.drain(0.2)
