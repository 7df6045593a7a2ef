"""Logs over the API: looked through, and followed until the end."""

from __future__ import annotations

import json
import pathlib
import threading
from typing import Any

import orjson

from determined.client.master import Master as Client
from determined.client.transport import Session
from tests.unit.master.api.scenes import Run
from tests.unit.master.api.serving import Master


def write(path: pathlib.Path, *lines: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        for line in lines:
            full = {"t": 1000.0, "r": 0, "n": 0, "s": "stdout", "l": None, "g": "task", "m": "", **line}
            file.write(orjson.dumps(full) + b"\n")


def log_of(master: Master, run: Run) -> pathlib.Path:
    return master.settings.logs_dir / f"trial-{run.trial_id}" / f"{run.run.allocation.id}.jsonl"


def test_lines_are_found_by_place_and_filter(master: Master) -> None:
    run = Run(master)
    for n in range(2500):
        write(
            log_of(master, run),
            {
                "t": 1000.0 + n,
                "r": n % 4,
                "s": "stderr" if n % 2 else "stdout",
                "l": ["INFO", "ERROR"][n % 10 == 0],
                "m": f"line {n} <b>é🙂\u2028</b>",
            },
        )

    def texts(query: str) -> list[int]:
        return [int(line["text"].split()[1]) for line in master.get(f"/trials/{run.trial_id}/logs?{query}")]

    assert texts("") == [*range(1000)] and texts("limit=0") == []
    assert texts("tail=3") == [2497, 2498, 2499]
    assert texts("rank=1&limit=3") == [1, 5, 9] and texts("rank=1&rank=2&limit=3") == [1, 2, 5]
    assert texts("rank=1&rank=2&tail=3") == [2494, 2497, 2498]
    assert texts("level=ERROR&limit=2") == [0, 10] and texts("stdtype=stderr&limit=2") == [1, 3]
    assert texts("search=line%20249&limit=2") == [249, 2490] and texts("regex=line%20.%20&tail=2") == [8, 9]
    assert texts("since=3498&until=3498.5") == [2498]
    lines = master.get(f"/trials/{run.trial_id}/logs?limit=5")
    assert texts(f"after={lines[4]['id']}&limit=2") == [5, 6] and texts(f"before={lines[4]['id']}&limit=2") == [2, 3]
    assert lines[0]["text"] == "line 0 <b>é🙂\u2028</b>" and lines[0]["allocation_id"] == run.run.allocation.id
    for wrong in ("regex=(", "level=LOUD", "limit=-1", "tail=100000", "rank=x", "after=-1", "since=nan", "since=inf"):
        assert master.ask("GET", f"/trials/{run.trial_id}/logs?{wrong}").status_code in (400, 422), wrong
    assert master.ask("GET", "/trials/99/logs").status_code == 404
    assert master.ask("GET", "/tasks/..%2f..%2fx/logs").status_code == 404


def test_a_log_that_is_followed_ends_with_the_trial(listening: tuple[Master, str]) -> None:
    master, url = listening
    run = Run(master)
    write(log_of(master, run), {"m": "old"}, {"m": "first"})
    client = Client(url, session=Session(url, master.owner))
    got: list[str] = []
    is_there = {text: threading.Event() for text in ("first", "second")}

    def follow() -> None:
        for line in client.follow_trial_logs(run.trial_id, tail=1):
            got.append(line.text)
            if line.text in is_there:
                is_there[line.text].set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert is_there["first"].wait(20)
    write(log_of(master, run), {"m": "second"})
    assert is_there["second"].wait(20)
    write(log_of(master, run), {"m": "last"})
    exit_report = {"run_epoch": 1, "ending": {"outcome": "completed", "exit_code": 0}}
    master.ask("POST", f"/allocations/{run.run.allocation.id}/exit", run.token, json=exit_report)
    thread.join(20)
    client.close()
    assert not thread.is_alive() and got == ["first", "second", "last"]


def test_a_node_elsewhere_appends_to_its_log_once(master: Master) -> None:
    run = Run(master)
    path = f"/allocations/{run.run.allocation.id}/logs"
    first, second = b'{"m":1}\n', b'{"m":2}\n'

    def put(offset: int, content: bytes) -> int:
        answer = master.ask("PUT", f"{path}?offset={offset}", run.token, content=content)
        assert answer.status_code == 200, answer.text
        size: int = answer.json()["size"]
        return size

    assert put(0, first) == 8
    assert put(0, first) == 8, "sent again"
    assert put(4, first[4:] + second) == 16, "some of it is there"
    assert put(99, b"later") == 16, "something is missing before it"
    assert log_of(master, run).read_bytes() == first + second
    assert json.loads(second)["m"] == 2
    assert master.ask("PUT", f"{path}?offset=0", content=b"x").status_code == 403
