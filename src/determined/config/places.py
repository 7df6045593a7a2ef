"""Reading YAML so that every value remembers the line it was written on, and nothing but plain data comes out.

Numbers and booleans follow YAML 1.2: ``1e-3`` is a number, ``on`` is text. Tags, duplicate keys and documents that
grow when aliases are expanded are refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import yaml

from determined.config.problems import Place, Places, Problem

MAX_BYTES = 1 << 20
MAX_NODES = 50_000
MAX_DEPTH = 50
MAX_ALIASES = 500

_MERGE = "tag:yaml.org,2002:merge"
_NULL = "tag:yaml.org,2002:null"
_BOOL = "tag:yaml.org,2002:bool"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_LARGEST = 2**63 - 1

Path = tuple[Any, ...]


class Written(NamedTuple):
    """What a source says: plain data, the place of each value, and what is wrong with it as text."""

    data: Any
    places: Places
    problems: tuple[Problem, ...]


def read_yaml(content: str | bytes, file: str | None = None) -> Written:
    """Read one YAML document; never raises for what the text contains."""
    if len(content) > MAX_BYTES:
        says = f"is too large for a config: more than {MAX_BYTES} bytes"
        return _unreadable(says, Place(file))
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        return _unreadable("is not UTF-8 text", Place(file, line))
    try:
        loader = _Loader(text.removeprefix("\ufeff"))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return _unreadable(
            f"contains a character that is not allowed in YAML (U+{ord(text[error.position]):04X})", Place(file, line)
        )
    try:
        node = loader.get_single_node()
    except _TooMuch as error:
        return _unreadable(str(error), Place(file, error.line))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context or "cannot be understood"
        if what == "second occurrence":
            what = f"{error.context} (anchors need names of their own)"
        return _unreadable(f"is not valid YAML: {what}{_hint(what)}", Place(file, mark.line + 1 if mark else None))
    except yaml.YAMLError as error:
        return _unreadable(f"is not valid YAML: {error}", Place(file))
    finally:
        loader.dispose()
    reading = _Reading(file)
    reading.problems += [
        Problem((f"tag {tag}",), "is not allowed; write the plain value", Place(file, line))
        for tag, line in loader.tags
    ]
    try:
        data = None if node is None else reading.value(node, (), 0)
    except _TooMuch as error:
        return _unreadable(str(error), Place(file, error.line))
    return Written(data, reading.places, tuple(reading.problems))


def read_json(text: str, file: str | None = None) -> Written | None:
    """Read one JSON document (without places); None if it is not JSON."""
    if len(text) > MAX_BYTES:
        return None
    twice: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        twice.extend(key for key in found if sum(key == other for other, _ in pairs) > 1)
        return found

    try:
        data = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        return None
    written = read_plain(data, file)
    problems = [Problem((), f"key {key!r} stands there more than once", Place(file)) for key in twice]
    return written._replace(problems=(*problems, *written.problems))


def read_plain(data: Any, file: str | None = None) -> Written:
    """Take maps and lists that a program made; tuples become lists, anything but plain data is refused."""
    problems: list[Problem] = []
    by_path: dict[Path, Place] = {}
    left = MAX_NODES

    def plain(value: Any, path: Path) -> Any:
        nonlocal left
        left -= 1
        if len(path) > MAX_DEPTH or left < 0:
            raise _TooMuch("is nested too deeply or too large for a config", None)
        by_path[path] = Place(file)
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    problems.append(Problem((*path, key), f"has a key that is not text ({key!r})", Place(file)))
            return {str(key): plain(inner, (*path, str(key))) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(inner, (*path, number)) for number, inner in enumerate(value)]
        wrong = _wrong_scalar(value)
        if wrong:
            problems.append(Problem(path, wrong, Place(file)))
            return None
        return value

    try:
        return Written(plain(data, ()), Places(by_path, Place(file)), tuple(problems))
    except _TooMuch as error:
        return _unreadable(str(error), Place(file))


class _TooMuch(Exception):
    """A limit is exceeded; reading stops at once."""

    def __init__(self, says: str, line: int | None) -> None:
        super().__init__(says)
        self.line = line


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2's scalars and with limits; it composes nodes and constructs nothing."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.tags: list[tuple[str, int]] = []
        self._nodes = self._aliases = self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = cast(yaml.NodeEvent, self.peek_event())  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1 if event.start_mark else 1
        self._nodes += 1
        self._aliases += isinstance(event, yaml.AliasEvent)
        if self._nodes > MAX_NODES:
            raise _TooMuch(f"has too many values for a config (more than {MAX_NODES})", line)
        if self._aliases > MAX_ALIASES:
            raise _TooMuch(f"has too many aliases (more than {MAX_ALIASES})", line)
        if self._depth >= MAX_DEPTH:
            raise _TooMuch(f"is nested too deeply (more than {MAX_DEPTH} levels)", line)
        tag = getattr(event, "tag", None)
        if tag is not None:
            self.tags.append((tag.replace("tag:yaml.org,2002:", "!!"), line))
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


for _tag, _pattern, _first in (
    (_BOOL, r"true|True|TRUE|false|False|FALSE", "tTfF"),
    (_INT, r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        _FLOAT,
        r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    (_MERGE, r"<<", "<"),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), list(_first))
_Loader.add_implicit_resolver(_NULL, re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""])


class _Reading:
    """One pass over composed nodes: expands aliases within the limits and notes places and problems."""

    def __init__(self, file: str | None) -> None:
        self.file = file
        self.places = Places({}, Place(file))
        self.problems: list[Problem] = []
        self._nodes = 0
        self._open: set[int] = set()

    def value(self, node: yaml.Node, path: Path, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _TooMuch(f"has too many values once its aliases are expanded (more than {MAX_NODES})", _line(node))
        if depth > MAX_DEPTH:
            raise _TooMuch(f"is nested too deeply (more than {MAX_DEPTH} levels)", _line(node))
        if id(node) in self._open:
            raise _TooMuch("has an alias that contains itself", _line(node))
        self.places.by_path.setdefault(path, Place(self.file, _line(node)))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*path, number), depth + 1) for number, item in enumerate(node.value)]
            return self._mapping(cast(yaml.MappingNode, node), path, depth)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is None:
                continue
            if key_node.tag == _MERGE:
                merged.append(value_node)
                continue
            here = (*path, key)
            if key in found:
                first = self.places.by_path[here].line
                self._problem(here, f"stands there twice (first in line {first})", key_node)
                continue
            self.places.by_path[here] = Place(self.file, _line(key_node))
            found[key] = self.value(value_node, here, depth + 1)
        if len(merged) > 1:
            self._problem(path, "has << more than once; write one << with a list", node)
        for source in merged[:1]:
            self._merge(source, found, path, depth)
        return found

    def _merge(self, source: yaml.Node, found: dict[str, Any], path: Path, depth: int) -> None:
        sources = source.value if isinstance(source, yaml.SequenceNode) else [source]
        for one in sources:
            if not isinstance(one, yaml.MappingNode):
                self._problem(path, "has << with something that is not a map", source)
                return
            # What is merged in must not claim the places of the keys that stand here themselves.
            inner = _Reading(self.file)
            inner._nodes, inner._open = self._nodes, self._open
            merged = inner.value(one, path, depth + 1)
            self._nodes = inner._nodes
            self.problems += inner.problems
            for key, value in merged.items():
                if key not in found:
                    found[key] = value
                    for inner_path, place in inner.places.by_path.items():
                        if inner_path[: len(path) + 1] == (*path, key):
                            self.places.by_path[inner_path] = place

    def _key(self, node: yaml.Node, path: Path) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._problem(path, "has a key that is a list or a map; keys are text", node)
            return None
        if node.tag in (_NULL, _BOOL, _INT, _FLOAT) and node.style is None:
            self._problem((*path, node.value), "is a key that is not text; put it in quotes", node)
            return None
        return str(node.value)

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text = node.value
        value: Any = text
        if node.tag == _NULL:
            return None
        if node.tag == _BOOL:
            return text.lower() == "true"
        if node.tag == _INT:
            if len(text) > 30:
                self._problem(path, "is too large a number", node)
                return None
            digits = text.replace("_", "")
            value = int(digits, 0) if digits[:2] in ("0o", "0x") else int(digits)
        elif node.tag == _FLOAT:
            word = text.lower().lstrip("+-")
            value = math.inf if word in (".inf", ".nan") else float(text.replace("_", ""))
        wrong = _wrong_scalar(value)
        if wrong:
            self._problem(path, wrong, node)
            return None
        return value

    def _problem(self, path: Path, says: str, node: yaml.Node) -> None:
        self.problems.append(Problem(path, says, Place(self.file, _line(node))))


def _wrong_scalar(value: Any) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        # Lone surrogates cannot be written to a file or sent to a master.
        try:
            value.encode()
        except UnicodeEncodeError:
            return "contains half a character (a lone surrogate)"
        return None
    if isinstance(value, int):
        return None if -_LARGEST - 1 <= value <= _LARGEST else "is too large a number"
    if isinstance(value, float):
        return None if math.isfinite(value) else "must be a finite number: infinity and NaN cannot be stored"
    return f"must be plain data, not {type(value).__name__}"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _hint(what: str) -> str:
    if "\\t" in what or "'\\t'" in what:
        return " (indent with spaces, not tabs)"
    if "expected a single document" in what or "another document" in what:
        return " (a config is a single document: remove the second ---)"
    return ""


def _unreadable(says: str, place: Place) -> Written:
    return Written(None, Places({}, place), (Problem((), says, place),))
