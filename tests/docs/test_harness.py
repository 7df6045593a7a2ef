"""The harness that follows pages notices when one is wrong."""

from __future__ import annotations

import pathlib

import pytest

from tests.docs.pages import Page, PageError, blocks


def page(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def follow(folder: pathlib.Path, *lines: str) -> None:
    Page(page(*lines), "page.md", folder).follow()


def test_a_file_is_written_and_run_and_its_output_compared(tmp_path: pathlib.Path) -> None:
    follow(
        tmp_path,
        "<!-- file: deep/hello.py -->",
        "",
        "```python",
        "for number in range(3):",
        "    print('step', number, 'loss', number / 7)",
        "```",
        "Run it:",
        "<!-- run -->",
        "```console",
        "$ python deep/hello.py",
        "step 0 ...",
        "```",
        "<!-- shows -->",
        "```",
        "step 0",
        "step 2 loss ...",
        "```",
    )
    assert (tmp_path / "deep" / "hello.py").read_text().startswith("for number")


def test_python_runs_without_a_file(tmp_path: pathlib.Path) -> None:
    follow(tmp_path, "<!-- run -->", "```python", "print('here')", "```", "<!-- shows -->", "```text", "here", "```")


def test_lines_must_come_in_their_order(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PageError, match="no line with 'one'"):
        follow(
            tmp_path, "<!-- run -->", "```sh", "echo one; echo two", "```", "<!-- shows -->", "```", "two", "one", "```"
        )


def test_a_command_that_fails_is_an_error_with_its_output(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PageError, match=r"page.md, line 2: it ended with exit code 4[^$]*oh no"):
        follow(tmp_path, "<!-- run -->", "```sh", "echo oh no; exit 4", "```")


def test_a_failure_can_be_what_the_page_shows(tmp_path: pathlib.Path) -> None:
    follow(tmp_path, "<!-- run: exits 4 -->", "```sh", "exit 4", "```")
    with pytest.raises(PageError, match="exit code 0"):
        follow(tmp_path, "<!-- run: exits 4 -->", "```sh", "true", "```")


@pytest.mark.parametrize("language", ["python", "sh"])
def test_a_block_that_nobody_checks_must_say_so(language: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(PageError, match="has no marker"):
        follow(tmp_path, f"```{language}", "a = 1", "```")
    follow(tmp_path, "<!-- fragment -->", f"```{language}", "a = 1", "```")


def test_a_marker_does_not_reach_over_text(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PageError, match="has no marker"):
        follow(tmp_path, "<!-- fragment -->", "Some words.", "```python", "a = 1", "```")


def test_a_fragment_is_still_python(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PageError, match="not valid Python"):
        follow(tmp_path, "<!-- fragment -->", "```python", "def train_batch(self)", "```")


def test_setup_runs_unseen(tmp_path: pathlib.Path) -> None:
    follow(tmp_path, "<!-- setup:", "echo hidden > there.txt", "-->", "<!-- run -->", "```sh", "cat there.txt", "```")


def test_files_stay_in_the_folder_of_the_page(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PageError, match="below the page's own folder"):
        follow(tmp_path, "<!-- file: ../elsewhere.py -->", "```python", "a = 1", "```")


def test_a_block_inside_a_longer_fence_is_text() -> None:
    found = list(blocks(page("````markdown", "<!-- run -->", "```sh", "exit 1", "```", "````")))
    assert [block.language for block in found] == ["markdown"]


def test_a_block_in_a_list_loses_its_indent() -> None:
    found = list(blocks(page("- First:", "", "  ```python", "  if a:", "      b()", "  ```")))
    assert found[0].text == "if a:\n    b()\n"
