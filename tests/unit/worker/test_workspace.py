"""Whatever is in an archive of code: nothing is written outside of its folder, and nothing but files and folders in it.

The first test shows that the standard library's own protection does not hold where it is known not to.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pathlib
import random
import shutil
import stat
import sys
import tarfile
from collections.abc import Callable, Iterator

import pytest

from determined.wire import archive
from determined.wire.archive import BadArchive, Limits
from determined.wire.node_spec import ContextSpec
from determined.worker import workspace

CONTENT = b"written by the archive\n"
# The releases in which the filters of the standard library were mended (CVE-2025-4517).
MENDED = {(3, 10): 18, (3, 11): 13, (3, 12): 11, (3, 13): 4}

Make = Callable[[tarfile.TarFile], None]


def build(make: Make, format: int = tarfile.PAX_FORMAT) -> bytes:
    """A gzipped archive."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=format) as file:
        make(file)
    return gzip.compress(raw.getvalue(), 1)


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = CONTENT) -> Make:
    def add(file: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        has_content = kind not in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE)
        info.size = len(content) if has_content else 0
        file.addfile(info, io.BytesIO(content) if has_content else None)

    return add


def together(*makers: Make) -> Make:
    def add(file: tarfile.TarFile) -> None:
        for make in makers:
            make(file)

    return add


def long_chain(target: str) -> Make:
    """Links whose resolved path is longer than a path may be, so that who resolves it stops half-way (M13)."""
    folder, steps, path, makers = "d" * 247, "abcdefghijklmnop", "", []
    for step in steps:
        makers += [entry(os.path.join(path, folder), tarfile.DIRTYPE)]
        makers += [entry(os.path.join(path, step), tarfile.SYMTYPE, folder)]
        path = os.path.join(path, folder)
    too_long = os.path.join("/".join(steps), "l" * 254)
    makers += [entry(too_long, tarfile.SYMTYPE, "../" * len(steps))]
    makers += [entry("escape", tarfile.SYMTYPE, f"{too_long}/../{target}"), entry("escape/canary")]
    return together(*makers)


NAMES = [
    *("../canary", "../../canary", "a/../../canary", "./../canary", "a//../../canary", "a/b/../../../canary", ".."),
    *("/canary", "//canary", "/../canary", "/etc/passwd", "..//canary", "../outside/canary", "a/./../../canary"),
    *("..\\canary", "a\\..\\..\\canary", "C:\\canary", "\\\\host\\canary", "..\\/canary", "\\canary", "\\..\\canary"),
    *(
        "a/" * 70 + "x",
        "x" * 256,
        "y" * 2000,
        "../" * 40 + "canary",
        "sub/../..",
        "./..",
        "a/..",
        "../",
        "/",
        "a/../..",
    ),
    *("\N{FULLWIDTH FULL STOP}./../canary", "a\n/../../canary", "..\r/../canary", ". ./../canary", "~/../../canary"),
]
KINDS = [bytes([code]) for code in b"123467ABDEFGHIJKMNOPQRSTUVWXYZ"]
LINKS = [
    "../outside",
    "../outside/canary",
    "..",
    "/",
    "/etc",
    ".",
    "a",
    "../../..",
    "./../outside",
    "outside",
    "",
    "x" * 90,
]


def hostile() -> Iterator[tuple[str, bytes]]:
    """More than three hundred archives that mean no good, or are broken."""
    formats = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
    for label, format in formats.items():
        for at, name in enumerate(NAMES):
            for kind in (tarfile.REGTYPE, tarfile.DIRTYPE):
                try:
                    yield f"name-{label}-{at}-{kind!r}", build(entry(name, kind), format)
                except ValueError:
                    continue  # This format has no room for it.
        for at, link in enumerate(LINKS):
            for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                first = entry("way", kind, link)
                yield f"link-{label}-{at}-{kind!r}", build(first, format)
                yield f"through-{label}-{at}-{kind!r}", build(together(first, entry("way/canary")), format)
                yield f"over-{label}-{at}-{kind!r}", build(together(first, entry("way")), format)
    for kind in KINDS:
        yield f"kind-{kind!r}", build(entry("thing", kind))
    yield "long-chain", build(long_chain("outside"))
    yield "file-then-folder", build(together(entry("a"), entry("a/b")))
    yield "twice", build(together(entry("a"), entry("a")))
    yield "folder-then-file", build(together(entry("a/b"), entry("a")))
    yield from damaged()


def damaged() -> Iterator[tuple[str, bytes]]:
    good = gzip.decompress(build(together(entry("a/b.py"), entry("c" * 150), entry("d", content=bytes(3000)))))
    draw = random.Random(7)
    for at in range(60):
        cut = draw.randrange(1, len(good))
        yield f"cut-{at}", gzip.compress(good[:cut], 1)
        broken = bytearray(good)
        for _ in range(draw.randrange(1, 6)):
            broken[draw.randrange(len(broken))] ^= 1 << draw.randrange(8)
        yield f"flipped-{at}", gzip.compress(bytes(broken), 1)
    packed = gzip.compress(good)
    for at in range(20):
        yield f"half-{at}", packed[: draw.randrange(len(packed))]
    yield "no-archive", b"PK\3\4 this is a zip"
    yield "noise", gzip.compress(draw.randbytes(4096))
    for label, field in {"huge": b"\x80" + b"\xff" * 11, "word": b"12345678xyz\0", "minus": b"-0000000001\0"}.items():
        header = bytearray(good[:512])
        header[124:136] = field
        header[148:156] = b"%06o\0 " % (sum(header[:148]) + 256 + sum(header[156:]))
        yield f"size-{label}", gzip.compress(bytes(header) + bytes(1024))
    for at, text in enumerate(
        (b"99999999 path=a\n", b"12 path\n", b"x path=a\n", b"30 size=999999999999999999999\n", b"\xff" * 9)
    ):
        yield f"extended-{at}", gzip.compress(extended(text))


def extended(text: bytes) -> bytes:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(text)
    return info.tobuf(tarfile.USTAR_FORMAT) + text.ljust(-(-len(text) // 512) * 512, b"\0") + bytes(1024)


def world(folder: pathlib.Path) -> dict[str, bytes]:
    """Everything outside of the folder that archives are unpacked into."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"<folder>"
        for path in sorted(folder.rglob("*"))
        if "inside" not in path.relative_to(folder).parts[:1]
    }


@pytest.fixture
def outside(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "canary").write_bytes(b"untouched")
    return tmp_path


@pytest.mark.parametrize("filter", ["data", "tar"])
def test_the_filters_of_the_standard_library_do_not_hold(outside: pathlib.Path, filter: str) -> None:
    (outside / "inside").mkdir()
    with tarfile.open(fileobj=io.BytesIO(build(long_chain("outside"))), mode="r:gz") as file:
        try:
            file.extractall(outside / "inside", filter=getattr(tarfile, f"{filter}_filter"))
        except tarfile.TarError:
            pass
        except OSError:
            pass
    has_escaped = (outside / "outside" / "canary").read_bytes() != b"untouched"
    assert has_escaped == (sys.version_info[2] < MENDED.get(sys.version_info[:2], 0))


def test_nothing_escapes(outside: pathlib.Path) -> None:
    before = world(outside)
    tried = refused = 0
    for label, packed in hostile():
        tried += 1
        folder = outside / "inside" / str(tried)
        folder.parent.mkdir(exist_ok=True)
        try:
            workspace.extract(io.BytesIO(packed), folder)
        except BadArchive as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 400, label
        for path in folder.rglob("*"):
            mode = os.lstat(path).st_mode
            assert stat.S_ISREG(mode) or stat.S_ISDIR(mode), label
        shutil.rmtree(folder, ignore_errors=True)
        assert world(outside) == before, label
    assert tried >= 300
    assert refused >= tried * 0.8


def test_a_folder_that_is_there_already_is_not_unpacked_into(outside: pathlib.Path) -> None:
    (outside / "inside").mkdir()
    (outside / "inside" / "way").symlink_to(outside / "outside")
    with pytest.raises(FileExistsError):
        workspace.extract(io.BytesIO(build(entry("way/canary"))), outside / "inside")
    assert (outside / "outside" / "canary").read_bytes() == b"untouched"


def test_a_link_put_in_the_way_meanwhile_is_not_followed(outside: pathlib.Path) -> None:
    class Meddling(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            place = outside / "inside" / "way"
            if (outside / "inside").exists() and not place.is_symlink():
                place.symlink_to(outside / "outside")
            return super().read(size)

    with pytest.raises(BadArchive):
        workspace.extract(Meddling(build(entry("way/canary"))), outside / "inside")
    assert (outside / "outside" / "canary").read_bytes() == b"untouched"


def test_bombs_end_early(tmp_path: pathlib.Path) -> None:
    zeros = gzip.compress(gzip.decompress(build(entry("a", content=bytes(80 << 20)))), 9)
    many = build(together(*(entry(f"f{number}", content=b"") for number in range(1001))))
    for packed, limits, words in [
        (zeros, Limits(), "times its size"),
        (zeros, Limits(total_bytes=1 << 20), "larger than 1 MiB"),
        (many, Limits(entries=1000), "more than 1000 files"),
        (build(entry("d/" * 65 + "x")), Limits(), "64 folders deep"),
        (gzip.compress(extended(b"x" * 20_000)), Limits(), "too long"),
    ]:
        with pytest.raises(BadArchive, match=words):
            workspace.extract(io.BytesIO(packed), tmp_path / words.replace(" ", "-"), limits)
    written = sum(path.stat().st_size for path in (tmp_path / "times-its-size").rglob("*"))
    assert written <= Limits().ratio_free_bytes + (1 << 20)


def test_what_people_send_arrives(tmp_path: pathlib.Path) -> None:
    tree = {"model_def.py": b"x = 1\n", "deep/er/empty": b"", "ünïcode/" + "n" * 180 + ".txt": bytes(70_000)}
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        packed = build(
            together(
                entry("./", tarfile.DIRTYPE), *(entry(f"./{name}", content=content) for name, content in tree.items())
            ),
            format,
        )
        digest = hashlib.sha256(packed).hexdigest()
        (tmp_path / digest).write_bytes(packed)
        folder = tmp_path / f"code-{format}"
        workspace.unpack(ContextSpec(sha256=digest, path=tmp_path / digest), folder)
        found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert found == tree


def test_an_executable_file_stays_one_and_gets_no_other_rights(tmp_path: pathlib.Path) -> None:
    def add(file: tarfile.TarFile) -> None:
        for name, mode in {"run": 0o4777, "data": 0o666}.items():
            info = tarfile.TarInfo(name)
            info.mode = mode
            file.addfile(info, io.BytesIO())

    workspace.extract(io.BytesIO(build(add)), tmp_path / "code")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "code").iterdir()}
    assert modes["run"] & 0o7000 == 0 and modes["run"] & 0o100 and not modes["data"] & 0o100


def test_listing_needs_no_unpacking() -> None:
    packed = build(together(entry("a", tarfile.DIRTYPE), entry("a/b.py")))
    assert [("/".join(each.parts), each.size) for each, _ in archive.entries(io.BytesIO(packed))] == [
        ("a", 0),
        ("a/b.py", len(CONTENT)),
    ]
