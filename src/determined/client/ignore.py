"""What a ``.detignore`` file leaves out: its rules are those of ``.gitignore``."""

from __future__ import annotations

import pathlib
import re
from typing import NamedTuple


class IgnoreRules:
    """The rules of a ``.detignore`` file, which are those of ``.gitignore``."""

    def __init__(self, text: str = "") -> None:
        self._rules = [rule for rule in map(_parse_rule, text.splitlines()) if rule is not None]

    @classmethod
    def read(cls, folder: pathlib.Path) -> IgnoreRules:
        try:
            return cls((folder / ".detignore").read_text(errors="replace"))
        except (FileNotFoundError, IsADirectoryError):
            return cls()

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Whether the last rule that speaks of a relative path excludes it. Its parents are not looked at."""
        for rule in reversed(self._rules):
            if (is_folder or not rule.folders_only) and rule.pattern.fullmatch(path):
                return not rule.is_exception
        return False


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    is_exception: bool
    folders_only: bool


def _parse_rule(line: str) -> _Rule | None:
    line = re.sub(r"(?<!\\) +$", "", line.rstrip("\r\n"))
    if not line or line.startswith("#"):
        return None
    is_exception = line.startswith("!")
    line = line[is_exception:]
    folders_only = line.endswith("/")
    line = line.rstrip("/")
    if not line:
        return None
    # A slash anywhere but at the end ties a rule to the top.
    is_anchored = "/" in line
    line = line.removeprefix("/")
    try:
        pattern = re.compile(("" if is_anchored else "(?:.*/)?") + _translate(line), re.DOTALL)
    except re.error:
        return None
    return _Rule(pattern, is_exception, folders_only)


def _translate(glob: str) -> str:
    out = ""
    at = 0
    while at < len(glob):
        rest = glob[at:]
        if rest == "/**":
            return out + "/.*"
        if rest.startswith("/**/"):
            out, at = out + "/(?:.*/)?", at + 4
        elif at == 0 and rest.startswith("**/"):
            out, at = "(?:.*/)?", 3
        elif rest.startswith("**"):
            out, at = out + ".*" if rest == "**" and at == 0 else out + "[^/]*", at + 2
        elif rest[0] == "*":
            out, at = out + "[^/]*", at + 1
        elif rest[0] == "?":
            out, at = out + "[^/]", at + 1
        elif rest[0] == "[" and "]" in rest[2:]:
            end = rest.index("]", 2)
            inside = rest[1:end]
            negated = inside[0] in "!^"
            inside = inside[negated:].replace("\\", r"\\").replace("[", r"\[")
            out, at = out + f"(?!/)[{'^' if negated else ''}{inside}]", at + end + 1
        elif rest[0] == "\\" and len(rest) > 1:
            out, at = out + re.escape(rest[1]), at + 2
        else:
            out, at = out + re.escape(rest[0]), at + 1
    return out
