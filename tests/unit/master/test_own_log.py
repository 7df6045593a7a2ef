"""The master's own log stays small, whatever goes wrong."""

from __future__ import annotations

import io
import logging
import pathlib
import stat
import subprocess
import sys

from determined.master.own_log import LimitedFile, Repeats


def test_what_goes_wrong_again_and_again_is_said_once_a_minute() -> None:
    now = [0.0]
    stream, other = io.StringIO(), io.StringIO()
    log = logging.Logger("engine")
    for each in (stream, other):
        handler = logging.StreamHandler(each)
        handler.addFilter(Repeats(lambda: now[0]))
        log.addHandler(handler)
    for second in range(0, 122, 2):
        now[0] = float(second)
        try:
            raise ValueError("no such column")
        except ValueError:
            log.exception("a round of pool %s went wrong", "default")
        log.info("%d s", second)
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if "went wrong" in line] == [
        "a round of pool default went wrong",
        "a round of pool default went wrong (29 times more since the last time)",
        "a round of pool default went wrong (29 times more since the last time)",
    ]
    assert sum(line == "ValueError: no such column" for line in lines) == 3
    assert sum(line.endswith(" s") for line in lines) == 61
    assert other.getvalue() == stream.getvalue()


def test_different_problems_are_all_said() -> None:
    stream = io.StringIO()
    log = logging.Logger("engine")
    log.addHandler(logging.StreamHandler(stream))
    log.handlers[0].addFilter(Repeats(lambda: 0.0))
    for number in range(1500):
        log.warning("problem %d", number)
    assert len(stream.getvalue().splitlines()) == 1500


def test_a_full_file_is_put_aside_once(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "master.log"
    handler = LimitedFile(path, most_bytes=1000)
    for number in range(100):
        handler.handle(logging.makeLogRecord({"msg": f"line {number} of the log \ud800"}))
    handler.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["master.log", "master.log.1"]
    assert path.stat().st_size <= 1000 and "line 99 " in path.read_text()


def test_standard_error_goes_along(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "master.log"
    code = (
        "import logging, os, pathlib, sys\n"
        "from determined.master import own_log\n"
        "own_log.MOST_BYTES = 500\n"
        "own_log.LimitedFile.__init__.__defaults__ = (500,)\n"
        "own_log.start(pathlib.Path(sys.argv[1]), 'INFO')\n"
        "for number in range(10): logging.info('line %d %s', number, 'x' * 60)\n"
        "os.write(2, b'a last word\\n')\n"
    )
    with open(path, "ab") as file:
        subprocess.run([sys.executable, "-c", code, str(path)], check=True, stdout=file, stderr=file)
    assert path.read_text().endswith("a last word\n") and (tmp_path / "master.log.1").exists()
    assert path.read_text().count("line 9 ") == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
