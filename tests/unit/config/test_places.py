"""YAML becomes plain data that remembers its lines, and nothing a text contains does more than that."""

from __future__ import annotations

import time
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import strategies

from determined.config import places, problems

SCALARS: dict[str, Any] = {
    "1": 1,
    "-7": -7,
    "+3": 3,
    "012": 12,
    "1_000": 1000,
    "0x1F": 31,
    "0o17": 15,
    "1e-3": 0.001,
    "1E5": 100000.0,
    "1.5e+2": 150.0,
    ".5": 0.5,
    "5.": 5.0,
    "true": True,
    "FALSE": False,
    "null": None,
    "~": None,
    "": None,
    "yes": "yes",
    "off": "off",
    "8080:80": "8080:80",
    "1:30": "1:30",
    "2020-01-01": "2020-01-01",
    "=": "=",
    "1.2.3": "1.2.3",
    "1e": "1e",
    "'5'": "5",
    '"true"': "true",
    "model_def:Trial": "model_def:Trial",
}


@pytest.mark.parametrize("text", SCALARS)
def test_scalars_are_those_of_yaml_1_2(text: str) -> None:
    written = places.read_yaml(f"a: {text}")
    assert not written.problems
    assert written.data == {"a": SCALARS[text]}
    assert type(written.data["a"]) is type(SCALARS[text])


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi")
)
MERGES = "b0: &b0 {k: 1}\n" + "".join(f"b{n}: &b{n} {{<<: [*b{n - 1}, *b{n - 1}]}}\n" for n in range(1, 40))

# What is refused, and a word of the reason.
ATTACKS: dict[str, str] = {
    LAUGHS: "too many values",
    MERGES: "too many values",
    "[" * 100_000: "too deeply",
    "{a: " * 5000: "too deeply",
    "- " * 20_000: "too deeply",
    "? " * 3000: "too deeply",
    "\n".join(" " * depth + "a:" for depth in range(200)): "too deeply",
    "a: &a [&a [1]]": "duplicate anchor",
    "a: [" + "1," * 60_000 + "]": "too many values",
    "#" * (places.MAX_BYTES + 1): "too large",
    "x: &x 1\na: [" + "*x," * 600 + "]": "too many aliases",
    "a: &a [*a]": "contains itself",
    "&a {b: *a}": "contains itself",
    "&a {<<: *a}": "contains itself",
    "a: &a {b: {c: *a}}": "contains itself",
    "a: *nowhere": "undefined alias",
    "a: !!python/object/apply:os.system ['true']": "tag !!python/object/apply:os.system is not allowed",
    "a: !!python/object/new:os.system ['true']": "not allowed",
    "a: !!python/name:os.system": "not allowed",
    "a: !!python/module:os": "not allowed",
    "a: !!python/object:object {}": "not allowed",
    "a: !!python/tuple [1, 2]": "not allowed",
    "a: !!python/bytes aGk=": "not allowed",
    "!!python/object/apply:eval ['1']": "not allowed",
    "? !!python/object/apply:os.getcwd []\n: 1": "not allowed",
    "a: !<tag:yaml.org,2002:python/object/apply:os.system> ['true']": "not allowed",
    "%TAG ! tag:yaml.org,2002:python/\n---\na: !name:os.system": "not allowed",
    "%TAG !! tag:example.com,2000:\n---\na: !!x 1": "not allowed",
    "a: !!str 5": "not allowed",
    "a: !!binary aGk=": "not allowed",
    "a: !!set {x}": "not allowed",
    "a: !!omap [x: 1]": "not allowed",
    "a: !!timestamp 2020-01-01": "not allowed",
    "a: !!float 1": "not allowed",
    "a: !include /etc/passwd": "not allowed",
    "a: !ENV ${HOME}": "not allowed",
    "a: ! 5": "not allowed",
    "!foo {a: 1}": "not allowed",
    "a: 1\nb: 2\na: 3": "stands there twice (first in line 1)",
    "a: {b: 1, b: 1}": "stands there twice",
    '"a": 1\na: 2': "stands there twice",
    "x: &x {a: 1}\ny: {<<: *x, <<: *x}": "more than once",
    "y: {<<: 5}": "not a map",
    "y: {<<: [1, 2]}": "not a map",
    "y: {<<: text}": "not a map",
    "1: x": "not text",
    "true: x": "not text",
    "~: x": "not text",
    "1.5: x": "not text",
    "? [a]\n: b": "a list or a map",
    "? {a: 1}\n: b": "a list or a map",
    "a: .inf": "finite",
    "a: -.INF": "finite",
    "a: .nan": "finite",
    "a: 1e400": "finite",
    "a: " + "9" * 5000: "too large a number",
    "a: 9223372036854775808": "too large a number",
    "a: 0xFFFFFFFFFFFFFFFFF": "too large a number",
    'a: "\\ud800"': "lone surrogate",
    "a: \0": "U+0000",
    "a: \x1b[31m": "U+001B",
    "a:\n\tb: 1": "spaces, not tabs",
    "a: 1\n---\nb: 2": "single document",
    "a: 'x": "not valid YAML",
    "a: [1, 2": "not valid YAML",
    "a: }": "not valid YAML",
    ": " * 500: "not valid YAML",
    "a" * 3000 + ": 1": "not valid YAML",
    "%YAML 2.0\n---\na: 1": "incompatible",
    "a: @x": "not valid YAML",
    "a: `x`": "not valid YAML",
}


@pytest.mark.parametrize("text", ATTACKS, ids=[f"{number}" for number in range(len(ATTACKS))])
def test_an_attack_is_refused_with_its_reason_and_soon(text: str) -> None:
    started = time.monotonic()
    written = places.read_yaml(text, "attack.yaml")
    assert time.monotonic() - started < 20
    assert any(ATTACKS[text] in str(problem) for problem in written.problems), written.problems
    assert all("attack.yaml" in str(problem) for problem in written.problems)


def test_bytes_that_are_not_utf8_name_their_line() -> None:
    (problem,) = places.read_yaml(b"a: 1\nb: \xff\n", "x.yaml").problems
    assert str(problem) == "the config is not UTF-8 text (x.yaml, line 2)"


def test_a_byte_order_mark_is_no_mistake() -> None:
    assert places.read_yaml("\ufeffa: 1".encode()).data == {"a": 1}


def test_every_value_knows_its_line() -> None:
    written = places.read_yaml("a:\n  b: 1\n  c:\n    - x\n    - y: 2\n", "f.yaml")
    lines = {path: place.line for path, place in written.places.by_path.items()}
    assert lines[("a",)] == 1
    assert lines[("a", "b")] == 2
    assert lines[("a", "c", 0)] == 4
    assert lines[("a", "c", 1, "y")] == 5
    assert written.places.of(("a", "c", 7, "z")) == problems.Place("f.yaml", 3)


def test_merged_keys_yield_to_the_map_s_own_and_keep_the_lines_they_were_written_on() -> None:
    written = places.read_yaml("x: &x\n  a: 1\n  b: 1\ny:\n  <<: [*x, {b: 5, c: 3}]\n  a: 2\n")
    assert written.data["y"] == {"a": 2, "b": 1, "c": 3}
    assert written.places.of(("y", "b")).line == 3
    assert written.places.of(("y", "a")).line == 6


def test_all_mistakes_of_the_text_are_found_in_one_pass() -> None:
    written = places.read_yaml("a: 1\na: 2\nb: !!str 3\nc: .nan\n5: 6\n")
    assert len(written.problems) == 4


def test_json_reports_duplicate_keys_and_is_not_mistaken_for_yaml() -> None:
    written = places.read_json('{"a": 1, "a": 2}')
    assert written is not None
    assert "more than once" in str(written.problems[0])
    assert places.read_json("{a: 1}") is None
    assert places.read_json("[" * 100_000) is None
    emoji = places.read_json('{"a": "\\ud83d\\ude00"}')
    assert emoji is not None
    assert emoji.data == {"a": "\U0001f600"}


def test_data_of_a_program_must_be_plain() -> None:
    written = places.read_plain({"a": (1, 2), "b": object(), "c": float("nan"), 5: 1})
    assert written.data["a"] == [1, 2]
    assert [str(problem) for problem in written.problems] == [
        "[5] has a key that is not text (5)",
        "b must be plain data, not object",
        "c must be a finite number: infinity and NaN cannot be stored",
    ]


json_values = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers(-(2**53), 2**53) | strategies.text(max_size=10),
    lambda inner: strategies.lists(inner, max_size=4) | strategies.dictionaries(strategies.text(max_size=6), inner),
    max_leaves=12,
)


@hypothesis.settings(max_examples=30)
@hypothesis.given(strategies.dictionaries(strategies.text(max_size=6), json_values, max_size=5))
def test_what_yaml_writes_is_read_back(data: dict[str, Any]) -> None:
    # Quoted, as YAML 1.1 and 1.2 disagree about plain words.
    text = yaml.safe_dump(data, default_style='"', allow_unicode=True).replace('!!int "', '"').replace('!!bool "', '"')
    hypothesis.assume("!!" not in text and "\ufeff" not in text)
    written = places.read_yaml(text)
    assert not written.problems
    assert _as_text(written.data) == _as_text(data)


@hypothesis.given(strategies.text(alphabet=" \n\t:-[]{},&*!|>'\"%@#ab1~?<.", max_size=60))
def test_no_text_raises(text: str) -> None:
    places.read_yaml(text)


def _as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_text(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_text(inner) for inner in value]
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)
