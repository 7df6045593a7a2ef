"""The documentation does what it says: every page is followed as a reader would follow it."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests import masters
from tests.docs import pages

ALL = pages.paths()


def name_of(path: pathlib.Path) -> str:
    return path.relative_to(pages.ROOT).as_posix()


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_page_does_what_it_says(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with masters.stopped_afterwards(tmp_path / "master"):
        pages.Page(path.read_text(), name_of(path), tmp_path).follow()


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_page_links_to_files_that_exist(path: pathlib.Path) -> None:
    assert pages.broken_links(path) == []


def test_every_page_can_be_found_from_the_index() -> None:
    docs = pages.ROOT / "docs"
    index = (docs / "README.md").read_text()
    missing = [page for page in docs.rglob("*.md") if f"({page.relative_to(docs).as_posix()})" not in index]
    assert [page.name for page in missing if page != docs / "README.md"] == []


def test_every_promise_names_a_test_that_is_there() -> None:
    page = pages.ROOT / "docs" / "explanation" / "guarantees.md"
    promises, _, _ = page.read_text().partition("## What is not promised")
    named = re.findall(r"\[(test_\w+)\]\(([^)]+)\)", promises)
    missing = [name for name, file in named if f"def {name}(" not in (page.parent / file).read_text()]
    assert missing == []
    listed = [line for line in re.split(r"\n(?=- |\n)", promises) if line.startswith("- ")]
    assert [line for line in listed if "](../../tests/" not in line] == []
    assert len(named) > 40
