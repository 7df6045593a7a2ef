"""Reads a page of documentation and does what its markers say. docs/README.md tells writers how to use them."""

from __future__ import annotations

import ast
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]
SECONDS_PER_RUN = 240

MARKER = re.compile(r"^\s*<!--\s*(?P<verb>file|run|shows|fragment|setup)\b\s*:?\s*(?P<rest>.*?)\s*-->\s*$", re.DOTALL)
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")

PYTHON = ("python", "py")
SHELL = ("bash", "console", "sh", "shell")
MUST_BE_MARKED = (*PYTHON, *SHELL)


class PageError(Exception):
    """A page promises something that does not happen; the message names the page, the line and what was seen."""


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block, or a marker that needs none, with the marker before it split into a verb and the rest."""

    line: int
    language: str
    text: str
    verb: str | None
    rest: str = ""


def paths() -> list[pathlib.Path]:
    """Every page that is held to its word."""
    docs = ROOT / "docs"
    found = [ROOT / "README.md", *docs.rglob("*.md")]
    return sorted(path for path in found if docs / "decisions" not in path.parents)


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page in order. A marker counts for the block that follows it with only blank lines between."""
    lines = page.splitlines()
    marker: re.Match[str] | None = None
    number = 0
    while number < len(lines):
        line = lines[number]
        if fence := FENCE.match(line):
            start = number
            body, number = _inside(lines, number, fence)
            verb, rest = (marker["verb"], marker["rest"]) if marker else (None, "")
            language = fence["info"].strip().split(" ")[0].lower()
            yield Block(start + 1, language, body, verb, rest)
            marker = None
        elif line.lstrip().startswith("<!--"):
            start = number
            while "-->" not in lines[number] and number + 1 < len(lines):
                number += 1
            marker = MARKER.match("\n".join(lines[start : number + 1]))
            if marker and marker["verb"] == "setup":
                yield Block(start + 1, "sh", marker["rest"] + "\n", "setup")
                marker = None
        elif line.strip():
            marker = None
        number += 1


def _inside(lines: list[str], start: int, fence: re.Match[str]) -> tuple[str, int]:
    """The text between two fences, and the number of the line that closes it."""
    indent = len(fence["indent"])
    closing = re.compile(rf"^ *{re.escape(fence['fence'][0])}{{{len(fence['fence'])},}}\s*$")
    body: list[str] = []
    for number in range(start + 1, len(lines)):
        if closing.match(lines[number]):
            return "".join(line + "\n" for line in body), number
        line = lines[number]
        body.append(line[indent:] if not line[:indent].strip() else line)
    raise PageError(f"line {start + 1}: the block that starts here is never closed")


class Page:
    """A page being followed like a reader would: files written, commands run, output compared."""

    def __init__(self, text: str, name: str, folder: pathlib.Path) -> None:
        self.text = text
        self.name = name
        self.folder = folder
        self.output: str | None = None

    def follow(self) -> None:
        """Do everything the page says, in order; raise PageError where it does not come true."""
        for block in blocks(self.text):
            if block.verb is None:
                self._require_no_marker_needed(block)
            elif block.verb == "file":
                self._write(block)
            elif block.verb in ("run", "setup"):
                self._run(block)
            elif block.verb == "shows":
                self._compare(block)
            elif block.language in PYTHON:
                self._require_valid_python(block)

    def _require_no_marker_needed(self, block: Block) -> None:
        if block.language in MUST_BE_MARKED:
            raise self._error(
                block, "this block has no marker; put <!-- file: NAME -->, <!-- run --> or <!-- fragment --> before it"
            )

    def _write(self, block: Block) -> None:
        path = (self.folder / block.rest).resolve()
        if not block.rest or not path.is_relative_to(self.folder.resolve()):
            raise self._error(block, "<!-- file: NAME --> takes the name of a file below the page's own folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
        if path.suffix == ".py":
            self._require_valid_python(block)

    def _run(self, block: Block) -> None:
        if block.language in PYTHON:
            command = [sys.executable, "-c", block.text]
        elif block.language in SHELL:
            command = ["bash", "-euo", "pipefail", "-c", _commands(block)]
        else:
            raise self._error(block, f"<!-- run --> takes a shell or a python block, not {block.language or 'text'}")
        wanted = re.fullmatch(r"(?:exits (\d+))?", block.rest if block.verb == "run" else "")
        if wanted is None:
            raise self._error(block, f"<!-- run --> takes nothing or 'exits N', not {block.rest!r}")
        self.output, exit_code = self._result(command, block)
        if exit_code != int(wanted[1] or 0):
            raise self._error(block, f"it ended with exit code {exit_code} and this output:\n{self.output[-6000:]}")

    def _result(self, command: list[str], block: Block) -> tuple[str, int]:
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=SECONDS_PER_RUN)
        except subprocess.TimeoutExpired:
            # The whole session, not only the shell: what it started would hold the pipe open, and the cores.
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            message = f"it was still running after {SECONDS_PER_RUN} s:\n{output[-6000:]}"
            raise self._error(block, message) from None
        return output, process.returncode

    def _environment(self) -> dict[str, str]:
        """The reader's shell: our Python first on the path, runs kept below the page's folder, plain output."""
        here = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        ours = {"PATH": here, "REPO": str(ROOT), "DET_RUNS_DIR": str(self.folder / "runs"), "NO_COLOR": "1"}
        ours["DET_MASTER_DIR"] = str(self.folder / "master")
        ours["XDG_CONFIG_HOME"] = str(self.folder / "config")
        plain = {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
        return {**os.environ, **ours, **plain}

    def _compare(self, block: Block) -> None:
        """Each line must be part of a line of the output, in this order; ``...`` stands for anything."""
        if self.output is None:
            raise self._error(block, "<!-- shows --> needs a <!-- run --> before it")
        seen = iter(self.output.splitlines())
        for wanted in filter(None, (line.strip() for line in block.text.splitlines())):
            pattern = re.compile(".*".join(re.escape(part.strip()) for part in wanted.split("...")))
            if not any(pattern.search(line) for line in seen):
                raise self._error(block, f"the output has no line with {wanted!r} here; it was:\n{self.output[-6000:]}")

    def _require_valid_python(self, block: Block) -> None:
        try:
            ast.parse(textwrap.dedent(block.text))
        except SyntaxError as error:
            raise self._error(block, f"this is not valid Python: {error.msg} (its line {error.lineno})") from None

    def _error(self, block: Block, message: str) -> PageError:
        return PageError(f"{self.name}, line {block.line}: {message}")


def _commands(block: Block) -> str:
    """What a reader would type: the lines after ``$`` where there are prompts, else all of it."""
    lines = block.text.splitlines()
    if not any(line.startswith("$ ") for line in lines):
        return block.text
    return "\n".join(line[2:] for line in lines if line.startswith("$ "))


def broken_links(page: pathlib.Path) -> list[str]:
    """Links of a page to files of this repository that are not there."""
    prose = re.sub(r"^ *(`{3,}|~{3,}).*?^ *\1`*\s*$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    targets = [match["target"].split("#")[0] for match in LINK.finditer(prose)]
    local = [target for target in targets if target and not re.match(r"[a-z]+:", target)]
    return [target for target in local if not (page.parent / target).exists()]
