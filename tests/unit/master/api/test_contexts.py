"""Submitted code: taken in whole, verified, and never unpacked or followed out of its archive."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pathlib
import stat
import tarfile

import psutil
import pytest

from determined.master.api.gate import MIB
from tests.unit.master.api.serving import Master

FILES = {"train.py": b"print('hello')\n", "data/labels.txt": "ünïcode\n".encode(), "empty": b""}


def pack(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def special(name: str, kind: bytes, target: str = "", size: int = 0) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, target, size
        tar.addfile(member)
    return packed.getvalue()


def put(master: Master, archive: bytes, sha256: str | None = None) -> int:
    sha256 = sha256 or hashlib.sha256(archive).hexdigest()
    return master.ask("PUT", f"/contexts/{sha256}", content=archive).status_code


def leftovers(master: Master) -> list[str]:
    return sorted(path.name for path in master.settings.contexts_dir.iterdir())


def test_code_goes_in_and_comes_out(master: Master) -> None:
    archive = pack(FILES)
    sha256 = hashlib.sha256(archive).hexdigest()
    assert master.ask("HEAD", f"/contexts/{sha256}").status_code == 404
    assert put(master, archive) == 200 and put(master, archive) == 200
    assert master.ask("HEAD", f"/contexts/{sha256}").headers["content-length"] == str(len(archive))
    answer = master.ask("GET", f"/contexts/{sha256}")
    assert answer.content == archive and answer.headers["content-disposition"].startswith("attachment")
    assert master.get(f"/contexts/{sha256}/files") == {name: len(content) for name, content in FILES.items()}
    text = master.ask("GET", f"/contexts/{sha256}/files/data/labels.txt")
    assert text.text == "ünïcode\n" and text.headers["content-type"] == "text/plain; charset=utf-8"
    assert leftovers(master) == [f"{sha256}.tar.gz"]
    stored = master.settings.contexts_dir / f"{sha256}.tar.gz"
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    stored.unlink()  # what is gone is taken again
    assert put(master, archive) == 200 and stored.exists()


def test_other_bytes_than_the_address_says_are_refused(master: Master) -> None:
    archive = pack(FILES)
    for sent, sha256 in ((archive + b"x", None), (archive[:-9], "0" * 64), (b"", "0" * 64), (archive, "0" * 64)):
        wanted = sha256 or hashlib.sha256(archive).hexdigest()
        assert put(master, sent, wanted) == 400
    for name in ("0" * 63, "0" * 65, "A" * 64, "g" * 64, "../" + "0" * 61):
        assert put(master, archive, name) in (404, 422)
    assert leftovers(master) == []


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "a/../../x", "/etc/passwd", "..", "a/..", "a\\..\\x", "C:\\x", "a\0b/../x"),
        *("a/" * 100 + "x", "x" * 300, "x/" + "y" * 2000),
    ],
)
def test_names_that_lead_elsewhere_are_refused(master: Master, name: str) -> None:
    archive = pack({"fine.py": b"", name: b"canary"})
    if "\0" in name:
        # The standard library cuts the name there; what is left is plain.
        assert put(master, archive) == 200
        return
    assert put(master, archive) == 400
    assert leftovers(master) == []


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CONTTYPE,
        b"S",
        b"Z",
    ],
)
def test_links_and_devices_are_refused(master: Master, kind: bytes) -> None:
    for target in ("/etc/passwd", "../x", "fine.py"):
        assert put(master, special("link", kind, target)) == 400
    assert leftovers(master) == []


def test_the_same_name_twice_is_refused(master: Master) -> None:
    for first, second in (("a", "a"), ("a", "./a"), ("a", "a/b"), ("a/b", "a"), ("a/b", "a//b")):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for name in (first, second):
                tar.addfile(tarfile.TarInfo(name))
        assert put(master, packed.getvalue()) == 400, (first, second)


def test_what_is_no_archive_is_refused(master: Master) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a"))
    whole = gzip.decompress(pack(FILES))
    for content in (
        b"x",
        os.urandom(1000),
        plain.getvalue(),
        gzip.compress(os.urandom(2000)),
        gzip.compress(whole[:520]),
        pack(FILES)[: len(pack(FILES)) // 2],
        gzip.compress(whole.replace(b"train.py", b"trained.", 1)),
        special("huge", tarfile.REGTYPE, size=8**11 - 1),
    ):
        assert put(master, content) == 400
    assert leftovers(master) == []


def test_bombs_cost_little(master: Master) -> None:
    """Threat X9: a thousandfold bomb, a million entries, names without end."""
    block = special("zeros", tarfile.REGTYPE, size=4 << 30)
    header = gzip.decompress(block)[:512]
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", compresslevel=1) as file:
        file.write(header)
        for _ in range(400):
            file.write(bytes(MIB))
    entry = tarfile.TarInfo("a").tobuf(tarfile.USTAR_FORMAT)
    many = gzip.compress(entry * 150_000, compresslevel=1)
    long_name = gzip.compress(tarfile.TarInfo("x" * 5_000_000).tobuf(tarfile.GNU_FORMAT), compresslevel=1)
    deep = io.BytesIO()
    with tarfile.open(fileobj=deep, mode="w:gz", compresslevel=1, format=tarfile.USTAR_FORMAT) as tar:
        for number in range(9_000):
            tar.addfile(tarfile.TarInfo("/".join([f"{number:05}", *["abcd"] * 45])[:250]))
    before = psutil.Process().memory_info().rss
    for archive in (bomb.getvalue(), many, long_name):
        assert put(master, archive) == 400
    assert put(master, deep.getvalue()) in (200, 400)
    assert psutil.Process().memory_info().rss - before <= 64 * MIB


def test_too_much_is_refused_before_it_is_sent(master: Master) -> None:
    path = f"/contexts/{'0' * 64}"
    answer = master.ask("PUT", path, headers={"Content-Length": str(101 * MIB)}, content=b"x")
    assert answer.status_code == 413
    assert leftovers(master) == []


def test_no_name_reads_a_file_outside_the_archive(master: Master, tmp_path: pathlib.Path) -> None:
    (tmp_path / "canary").write_text("canary")
    archive = pack(FILES)
    assert put(master, archive) == 200
    sha256 = hashlib.sha256(archive).hexdigest()
    ups = ["../", "..%2f", "..%5c", "%2e%2e/", "%252e%252e%252f", "..;/", "..%00/", "....//", "%c0%ae%c0%ae/", "/"]
    for up in ups:
        for depth in range(1, 8):
            for target in ("canary", "token", "etc/passwd", "master.db", f"{sha256}.tar.gz"):
                answer = master.ask("GET", f"/contexts/{sha256}/files/{up * depth}{target}")
                assert answer.status_code in (401, 404, 422), (up, depth, target, answer.status_code)
                assert "canary" not in answer.text and "root:" not in answer.text
