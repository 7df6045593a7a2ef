"""Checkpoints over the API: looked at, noted, deleted, and their files handed out; nothing else is."""

from __future__ import annotations

import os
import pathlib

import pytest

from tests.unit.master.api.scenes import Run
from tests.unit.master.api.serving import Master

FILES = {"w.bin": bytes(range(256)) * 10, "code/train.py": b"print()", "a b/ü#?.txt": b"x", "empty": b""}
CANARY = "canary-outside-of-every-checkpoint"


def test_one_is_shown_with_what_made_it(master: Master) -> None:
    run = Run(master, hparams={"lr": 0.5}, config={"data": {"secrets": {"k": CANARY}}})
    run.metrics(3, loss=0.25)
    uuid = run.checkpoint(3, FILES)
    found = master.get(f"/checkpoints/{uuid}")
    assert (found["uuid"], found["state"], found["steps_completed"]) == (uuid, "COMPLETED", 3)
    assert found["resources"] == {path: len(content) for path, content in FILES.items()}
    assert found["hparams"] == {"lr": 0.5} and found["validation_metrics"] == {"loss": 0.25}
    assert found["experiment_config"]["data"]["secrets"] == {"k": "********"} and CANARY not in str(found)
    assert master.get(f"/checkpoints/{uuid[:8]}")["uuid"] == uuid
    assert master.ask("GET", "/checkpoints/00000000-nothing").status_code == 404


def test_metadata_is_set_and_removed(master: Master) -> None:
    uuid = Run(master).checkpoint(1, {"w": b"x"})
    found = master.make("PATCH", f"/checkpoints/{uuid}/metadata", set={"a": {"b": 1}, "c": 2})
    assert found["metadata"] == {"steps_completed": 1, "a": {"b": 1}, "c": 2}
    found = master.make("PATCH", f"/checkpoints/{uuid}/metadata", set={"a": 3}, remove=["c", "none"])
    assert found["metadata"] == {"steps_completed": 1, "a": 3}
    other = master.user("other")
    assert master.ask("PATCH", f"/checkpoints/{uuid}/metadata", other, json={"set": {}}).status_code == 403


def test_files_come_whole_and_in_parts(master: Master, tmp_path: pathlib.Path) -> None:
    run = Run(master)
    for uuid in (run.checkpoint(1, FILES), run.checkpoint(2, FILES, tmp_path / "elsewhere")):
        listed = master.get(f"/checkpoints/{uuid}/files")
        assert {path: listed[path] for path in FILES} == {path: len(content) for path, content in FILES.items()}
        assert {*listed} - {*FILES} == {"manifest.json"}
        for path, content in FILES.items():
            answer = master.ask("GET", f"/checkpoints/{uuid}/files/{path.replace('#', '%23').replace('?', '%3F')}")
            assert answer.status_code == 200 and answer.content == content, path
            assert answer.headers["content-disposition"].startswith("attachment")
            assert answer.headers["content-length"] == str(len(content))
    w = FILES["w.bin"]
    for wanted, status, part in (
        ("bytes=0-9", 206, w[:10]),
        ("bytes=2550-", 206, w[2550:]),
        ("bytes=-5", 206, w[-5:]),
        ("bytes=0-999999", 206, w),
        ("bytes=2560-", 416, b""),
        ("bytes=5-4", 416, b""),
        ("bytes=-0", 416, b""),
        ("bytes=a-b", 200, w),
        ("items=0-9", 200, w),
        ("bytes=0-1,3-4", 200, w),
    ):
        answer = master.ask("GET", f"/checkpoints/{uuid}/files/w.bin", headers={"Range": wanted})
        assert (answer.status_code, answer.content) == (status, part), wanted
    answer = master.ask("GET", f"/checkpoints/{uuid}/files/w.bin", headers={"Range": "bytes=10-19"})
    assert answer.headers["content-range"] == f"bytes 10-19/{len(w)}"


def test_only_what_the_manifest_lists_is_handed_out_and_no_link_is_followed(
    master: Master, tmp_path: pathlib.Path
) -> None:
    """Threat X6: whoever can write into a checkpoint's folder cannot make the master read another file."""
    secret = tmp_path / "secret"
    secret.write_text(CANARY)
    uuid = Run(master).checkpoint(1, {"w": b"x" * len(CANARY), "sub/f": b"y"})
    folder = master.settings.checkpoints_dir / uuid
    (folder / "unlisted").write_text(CANARY)
    (folder / "link").symlink_to(secret)
    os.unlink(folder / "w")
    (folder / "w").symlink_to(secret)
    (folder / "sub/f").unlink()
    (folder / "sub").rmdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/f").write_text(CANARY)
    (folder / "sub").symlink_to(tmp_path / "other")
    for path in ("unlisted", "link", "w", "sub/f", "sub", "", "manifest.json/x"):
        answer = master.ask("GET", f"/checkpoints/{uuid}/files/{path}")
        assert answer.status_code == 404 and CANARY not in answer.text, path


def test_a_storage_that_is_no_checkpoint_is_not_read(master: Master, tmp_path: pathlib.Path) -> None:
    """Threat X6: a run may say where its checkpoint is; without a sealed manifest there, nothing is handed out."""
    place = tmp_path / "private"
    (place / "home").mkdir(parents=True)
    (place / "home" / "secret").write_text(CANARY)
    (place / "home" / "manifest.json").write_text('{"version":1,"files":{"secret":{"size":34,"digest":""}}}')
    run = Run(master)
    run.report(
        {
            "kind": "checkpoint",
            "uuid": "home",
            "steps_completed": 1,
            "resources": {"secret": len(CANARY)},
            "storage": {"type": "directory", "container_path": str(place)},
            "time": 1.0,
        }
    )
    for path in ("/files", "/files/secret", "/files/manifest.json"):
        answer = master.ask("GET", f"/checkpoints/home{path}")
        assert CANARY not in answer.text
        assert answer.status_code == 404 or path.endswith("manifest.json")


def test_deleting_answers_for_each(master: Master) -> None:
    run = Run(master)
    first, latest = run.checkpoint(1, {"w": b"x"}), run.checkpoint(2, {"w": b"x"})
    done = {
        one["id"]: one["error"] for one in master.make("POST", "/checkpoints/delete", uuids=[first, latest, "none"])
    }
    assert done[first] is None and "none" in done["none"]
    assert done[latest] is not None, "an unfinished trial goes on from it"
    assert master.get(f"/checkpoints/{first}")["state"] == "DELETED"
    assert master.ask("GET", f"/checkpoints/{first}/files/w").status_code == 404
    assert master.get(f"/checkpoints/{latest}")["state"] == "COMPLETED"


@pytest.mark.parametrize("method", ["PATCH", "POST"])
def test_what_is_somebody_elses_stays(master: Master, method: str) -> None:
    uuid = Run(master).checkpoint(1, {"w": b"x"})
    other = master.user("other")
    if method == "PATCH":
        assert master.ask("PATCH", f"/checkpoints/{uuid}/metadata", other, json={"remove": ["a"]}).status_code == 403
    else:
        done = master.make("POST", "/checkpoints/delete", other, uuids=[uuid])
        assert "belongs to somebody else" in done[0]["error"]
