"""Figure X-a: five hundred ways to lead a path elsewhere, on everything that looks like one. None gets out."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import itertools
import json
import pathlib
import urllib.parse
from collections.abc import Iterator

import pytest

from determined import errors
from determined.client.context import pack
from determined.client.download import download
from determined.client.enums import DownloadMode
from determined.client.master import Master as Client
from determined.client.transport import Session
from determined.wire.views import CheckpointView
from tests.unit.client.server import Asked, Reply, Server
from tests.unit.master.api.scenes import Run
from tests.unit.master.api.serving import Master

CANARY = "canary-of-the-file-outside-5813"
UPS = [
    *("../", "..%2f", "%2e%2e/", "%2e%2e%2f", ".%2e/", "%2e./", "..%5c", "%2e%2e%5c", "..\\", "%252e%252e%252f"),
    *(
        "..%252f",
        "%25252e%25252e%25252f",
        "..%c0%af",
        "%c0%ae%c0%ae/",
        "%c0%ae%c0%ae%c0%af",
        "..%e0%80%af",
        "..%f0%80%80%af",
    ),
    *(
        "%e0%80%ae%e0%80%ae/",
        "..%ef%bc%8f",
        "%ef%bc%8e%ef%bc%8e/",
        "....//",
        "....%2f%2f",
        "..;/",
        "..%3b/",
        ";/../",
        "/./../",
    ),
    *(
        "..%00/",
        "..%0d%0a/",
        "..%09/",
        "..%20/",
        "%u002e%u002e/",
        "..%u2215",
        "..%E2%88%95",
        "..%E2%81%84",
        "x/../../",
        "x%2f..%2f..%2f",
    ),
]
DEPTHS = (1, 2, 3, 6, 12)
ENDS = ("canary", "canary%00", "canary%00.txt")
WHOLE = [
    *(
        "/etc/passwd",
        "//etc/passwd",
        "%2fetc%2fpasswd",
        "%252fetc%252fpasswd",
        "///{canary}",
        "{canary}",
        "%2f{canary}",
    ),
    *(
        "file:///etc/passwd",
        "file:%2f%2f{canary}",
        "C:%5cWindows%5cwin.ini",
        "C:/Windows/win.ini",
        "%5c%5chost%5cshare%5cx",
    ),
    *(
        "%00",
        "%00/etc/passwd",
        ".",
        "..",
        "...",
        "%2e",
        "%2e%2e",
        "~",
        "~root",
        "$HOME",
        "${{HOME}}",
        "%24(id)",
        "`id`",
        "|id",
    ),
    *(
        "proc/self/environ",
        "/proc/self/environ",
        "/proc/self/cwd/canary",
        "/dev/stdin",
        "/dev/fd/3",
        "CON",
        "nul",
        "*",
        "?x",
        "[a]",
    ),
]


def payloads(canary: pathlib.Path) -> list[str]:
    ups = [up * depth + end for up, depth, end in itertools.product(UPS, DEPTHS, ENDS)]
    return [*ups, *(one.replace("{canary}", str(canary).lstrip("/")) for one in WHOLE)]


def tree(folder: pathlib.Path) -> str:
    """All that is below a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)} {path.lstat().st_mode}".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


class Place:
    """A master with one of everything, and canaries all around its folders."""

    def __init__(self, master: Master, url: str, tmp_path: pathlib.Path) -> None:
        self.master = master
        state = master.settings.state_dir
        folders = [state, *(folder for folder in state.iterdir() if folder.is_dir()), tmp_path, tmp_path.parent]
        self.canary = tmp_path / "canary"
        for folder in folders:
            (folder / "canary").write_text(CANARY)
        self.uuid = Run(master).checkpoint(1, {"w": b"x"})
        code = tmp_path / "code"
        code.mkdir()
        (code / "a.py").write_text("x")
        packed = pack(code)
        self.client = Client(url, session=Session(url, master.owner))
        self.client.upload_context(packed.sha256, packed.content)
        self.sha256 = packed.sha256
        self.connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)

    def ask(self, method: str, target: str) -> tuple[int, bytes]:
        """The answer to exactly this target: nothing tidies it up on the way."""
        connection = self.connection
        connection.putrequest(method, f"/api/v1{target}", skip_accept_encoding=True)
        connection.putheader("Authorization", f"Bearer {self.master.owner}")
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()

    def targets(self) -> list[tuple[str, str]]:
        return [
            ("GET", f"/checkpoints/{self.uuid}/files/{{}}"),
            ("GET", "/checkpoints/{}"),
            ("GET", "/checkpoints/{}/files"),
            ("GET", "/checkpoints/{}/files/canary"),
            ("GET", f"/contexts/{self.sha256}/files/{{}}"),
            ("GET", "/contexts/{}"),
            ("GET", "/contexts/{}/files"),
            ("GET", "/tasks/{}/logs"),
            ("GET", "/trials/{}/logs"),
            ("DELETE", "/tasks/{}"),
            ("DELETE", "/templates/{}"),
            ("GET", "/allocations/{}"),
        ]


@pytest.fixture
def place(listening: tuple[Master, str], tmp_path: pathlib.Path) -> Iterator[Place]:
    made = Place(*listening, tmp_path)
    with contextlib.closing(made.connection), contextlib.closing(made.client):
        yield made


def test_there_are_five_hundred() -> None:
    assert len(set(payloads(pathlib.Path("/x/canary")))) >= 500


@pytest.mark.slow
def test_no_path_leads_out(place: Place) -> None:
    outside = place.canary.parent
    before = {folder: tree(outside / folder) for folder in ("code", "master/checkpoints", "master/contexts")}
    escapes, faults = [], []
    for payload in payloads(place.canary):
        for method, template in place.targets():
            target = template.format(urllib.parse.quote(payload, safe="%/;:$()|*?[]~.,&=+@!'-_"))
            status, content = place.ask(method, target)
            if CANARY.encode() in content or b"root:x:" in content:
                escapes.append(target)
            if status >= 500:
                faults.append((status, target, content[:200]))
    assert escapes == [] and faults == []
    assert {folder: tree(outside / folder) for folder in before} == before
    assert place.canary.read_text() == CANARY


def test_patterns_and_names_in_bodies_lead_nowhere(place: Place) -> None:
    """Threat X7: what is deleted is what is recorded, whatever the patterns say."""
    some = payloads(place.canary)[::7]
    plain = [urllib.parse.unquote(one, errors="replace") for one in some]
    for body in (
        {"uuids": plain[:90]},
        {"uuids": [place.uuid], "globs": plain[:90]},
        {"uuids": ["../" * 4 + "canary", str(place.canary)]},
    ):
        assert place.master.ask("POST", "/checkpoints/delete", json=body).status_code == 200
    for name in plain[:60]:
        answer = place.master.ask("POST", "/experiments", json={"config": "entrypoint: x", "context_sha256": name})
        assert answer.status_code in (404, 422), answer.text
    assert place.canary.read_text() == CANARY
    assert (place.master.settings.checkpoints_dir / "canary").read_text() == CANARY


@pytest.mark.parametrize("name", ["../canary", "/etc/x", "a/../../canary", "a//b", "./a", "a\0b", ".."])
def test_a_master_cannot_write_where_it_likes_on_the_clients_side(tmp_path: pathlib.Path, name: str) -> None:
    def answer(asked: Asked) -> Reply:
        return Reply(body=json.dumps({name: 1}).encode() if asked.path.endswith("/files") else b"x")

    server = Server(answer)
    client = Client(server.url)
    checkpoint = CheckpointView(uuid="c-1", state="COMPLETED", reported_at=1.0)
    try:
        with pytest.raises(errors.InvalidCheckpointException, match="no file of a checkpoint"):
            download(client, checkpoint, tmp_path / "in" / "here", DownloadMode.MASTER)
    finally:
        client.close()
        server.close()
    assert not (tmp_path / "canary").exists()
