"""Figure X-m: nothing in our sources is known to be dangerous without a reason, and every dependency is pinned.

Whether a pinned version has a known hole is a question to the network, which tests do not have; with it: `pip-audit -r
constraints.txt`.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys

import pytest

from tests.unit.test_package import ROOT, SOURCES

# Rules that say nothing about code like this.
OFF_TOPIC = {
    "B101": "an assert is for the reader and the type checker; nothing is decided by one",
    "B105": "empty strings, and the beginning that all tokens share, are no passwords",
    "B106": "the same",
    "B311": "random draws hyperparameters and pauses; what must not be guessed comes from secrets or os.urandom",
    "B403": "B301 tells where pickle reads",
    "B404": "starting processes is what it is for; B602, B604 and B605 tell where a shell would be one of them",
    "B603": "the same: arguments are lists of words",
    "B606": "the same",
    "B607": "git is meant to be the user's own",
}
# The places that stay, by rule and file, and why.
REASONS = {
    ("B102", "worker/warm.py"): "a forked rank runs the script that it was told to run, as python itself would",
    ("B108", "core/connect.py"): "/tmp is named as a folder that is no project; nothing is written there",
    ("B301", "core/link.py"): "only between ranks of one gang that have proved to each other that they know its secret",
    ("B604", "cli/completion.py"): "an argument of this name says which shell is to complete",
    ("B608", "master/store/database.py"): "names of our own tables and columns; values are bound",
    ("B614", "pytorch/legacy_checkpoint.py"): "asked for by weights_only=False, as in torch",
}


@pytest.mark.slow
def test_nothing_dangerous_is_without_a_reason() -> None:
    command = [sys.executable, "-m", "bandit", "--recursive", "--quiet", "--format", "json", str(ROOT / "src")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = json.loads(done.stdout)
    assert found["errors"] == [] and len(found["metrics"]) > len(SOURCES), done.stderr
    issues = [issue for issue in found["results"] if issue["test_id"] not in OFF_TOPIC]
    places = {(each["test_id"], each["filename"].partition("src/determined/")[2]): each for each in issues}
    new = {at: f"line {each['line_number']}: {each['issue_text']}" for at, each in places.items() if at not in REASONS}
    assert new == {}
    assert REASONS.keys() - places.keys() == set(), "a reason that is needed no more"


def test_no_finding_is_silenced_in_the_sources() -> None:
    assert [path.name for path in SOURCES if "nosec" in path.read_text()] == []


def test_everything_that_is_installed_is_pinned() -> None:
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pinned = {_canonical(name): version for name, version in pins}
    # What comes with every environment, and we ourselves.
    given = {"resolute", "pip", "setuptools", "wheel"}
    installed = {_canonical(each.metadata["Name"]): each.version for each in importlib.metadata.distributions()}
    loose = {
        name: version
        for name, version in installed.items()
        if name not in given and pinned.get(name) != version.partition("+")[0]
    }
    assert loose == {}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
