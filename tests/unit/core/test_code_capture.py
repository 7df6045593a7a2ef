"""The copy of a run's code holds the code: not the runs, not the data, nothing from elsewhere."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

from determined.client.ignore import IgnoreRules
from determined.core.code_capture import CodeCapture, list_code
from determined.core.run_folder import RunFolder
from determined.testing.storage import contents, write


def listed(folder: pathlib.Path, **more: object) -> set[str]:
    return set(list_code(folder, rules=IgnoreRules.read(folder), **more).files)  # type: ignore[arg-type]


def test_what_is_never_code(tmp_path: pathlib.Path) -> None:
    write(
        tmp_path,
        {
            "train.py": b"",
            "lib/a.py": b"",
            "lib/__pycache__/a.pyc": b"",
            "old.pyc": b"",
            ".git/config": b"",
            "node_modules/x/index.js": b"",
            "env/pyvenv.cfg": b"",
            "env/lib/torch.py": b"",
            "runs/a-1/checkpoints/c/w": b"",
        },
    )
    assert listed(tmp_path, never=[tmp_path / "runs"]) == {"train.py", "lib/a.py"}


@pytest.mark.parametrize(
    ("rules", "path", "is_folder", "ignored"),
    [
        ("*.csv", "a/b.csv", False, True),
        ("*.csv\n!keep.csv", "a/keep.csv", False, False),
        ("/data", "data", True, True),
        ("/data", "x/data", True, False),
        ("data", "x/data", True, True),
        ("data/", "data", False, False),
        ("data/", "x/data", True, True),
        ("a/*.txt", "a/b.txt", False, True),
        ("a/*.txt", "a/b/c.txt", False, False),
        ("a/**/c", "a/c", False, True),
        ("a/**/c", "a/x/y/c", False, True),
        ("**/logs", "x/logs", True, True),
        ("logs/**", "logs/x/y", False, True),
        ("logs/**", "logs", True, False),
        ("file?.py", "file1.py", False, True),
        ("file[0-9].py", "filex.py", False, False),
        ("file[!0-9].py", "filex.py", False, True),
        ("# comment", "# comment", False, False),
        (r"\#file", "#file", False, True),
        (r"\!file", "!file", False, True),
        ("trailing   ", "trailing", False, True),
        ("a.c", "abc", False, False),
        ("[", "[", False, True),
        ("", "x", False, False),
    ],
)
def test_detignore_reads_as_gitignore(rules: str, path: str, is_folder: bool, ignored: bool) -> None:
    assert IgnoreRules(rules).ignores(path, is_folder) is ignored


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge of this test")
def test_git_agrees(tmp_path: pathlib.Path) -> None:
    rules = "*.log\n!important.log\n/build/\ndocs/**/draft\ntmp*\n!tmp_keep\nx/y\n**/cache/\n"
    tree = ["a.log", "important.log", "sub/a.log", "build/o", "sub/build/o", "docs/draft", "docs/a/b/draft"]
    tree += ["tmp1", "tmp_keep", "x/y", "sub/x/y", "cache/1", "sub/cache/2", "plain.py"]
    write(tmp_path, dict.fromkeys(tree, b""))
    write(tmp_path, {".gitignore": rules.encode(), ".detignore": rules.encode()})
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    shown = subprocess.run([*git, "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True, text=True)
    assert listed(tmp_path) == set(shown.stdout.split())


def test_links_out_of_the_tree_are_not_followed(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "outside", {"secret": b"s"})
    write(tmp_path / "code", {"a.py": b"", "real/b.py": b""})
    (tmp_path / "code" / "leak").symlink_to(tmp_path / "outside" / "secret")
    (tmp_path / "code" / "leaks").symlink_to(tmp_path / "outside")
    (tmp_path / "code" / "loop").symlink_to(tmp_path / "code")
    (tmp_path / "code" / "gone").symlink_to("nowhere")
    (tmp_path / "code" / "inside.py").symlink_to("real/b.py")
    found = list_code(tmp_path / "code")
    assert set(found.files) == {"a.py", "real/b.py", "inside.py"}
    assert "gone, leak, leaks and 1 more" in found.notices[0]


def test_the_largest_files_are_left_out_with_a_notice(tmp_path: pathlib.Path) -> None:
    write(tmp_path, {"a.py": b"1" * 10, "data.bin": b"1" * 1000, "more.bin": b"1" * 900})
    found = list_code(tmp_path, max_bytes=100)
    assert set(found.files) == {"a.py"}
    assert "left out data.bin, more.bin" in found.notices[0] and ".detignore" in found.notices[0]


def test_a_folder_of_too_many_files_is_cut(tmp_path: pathlib.Path) -> None:
    write(tmp_path, {f"{number}.txt": b"" for number in range(20)})
    found = list_code(tmp_path, max_files=5)
    assert len(found.files) <= 6 and "more than 5 files" in found.notices[0]


def capture(run: RunFolder, code: pathlib.Path | None, notices: list[str]) -> CodeCapture:
    return CodeCapture(run, code, [run.path.parent], {"OMP_NUM_THREADS": "1"}, ["python", "train.py"], notices.append)


def test_code_is_kept_once_per_run(tmp_path: pathlib.Path, runs_dir: pathlib.Path) -> None:
    write(tmp_path / "code", {"train.py": b"first", "sub/m.py": b""})
    run, notices = RunFolder.create(runs_dir, "a"), list[str]()
    capture(run, tmp_path / "code", notices).finish()
    (tmp_path / "code" / "train.py").write_bytes(b"second")
    capture(run, tmp_path / "code", notices).finish()
    assert contents(run.code) == {"train.py": b"first", "sub/m.py": b""}
    facts = run.read("environment.json")
    assert facts["variables"] == {"OMP_NUM_THREADS": "1"} and "torch" in facts["packages"]
    assert notices == []


def test_runs_below_the_code_are_not_copied_into_themselves(tmp_path: pathlib.Path) -> None:
    write(tmp_path, {"train.py": b""})
    run = RunFolder.create(tmp_path / "runs", "a")
    write(run.path, {"metrics.jsonl": b""})
    capture(run, tmp_path, []).finish()
    assert contents(run.code) == {"train.py": b""}


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_the_git_state_is_kept(tmp_path: pathlib.Path, runs_dir: pathlib.Path) -> None:
    code = tmp_path / "code"
    write(code, {"train.py": b"a = 1\n"})
    git = ["git", "-C", str(code), "-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    write(code, {"train.py": b"a = 2\n"})
    run = RunFolder.create(runs_dir, "a")
    capture(run, code, []).finish()
    state = run.read("environment.json")["git"]
    assert len(state["commit"]) == 40 and state["is_dirty"]
    assert "+a = 2" in (run.path / "code.diff").read_text()


def test_a_cancelled_capture_leaves_no_code(tmp_path: pathlib.Path, runs_dir: pathlib.Path) -> None:
    write(tmp_path / "code", {f"{number}.py": b"x" for number in range(200)})
    run = RunFolder.create(runs_dir, "a")
    capture(run, tmp_path / "code", []).cancel()
    assert not (run.path / "environment.json").exists()
