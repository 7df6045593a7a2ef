"""Makes docs/reference/api-routes.md of the master's own routes: `python docs/reference/generate_routes.py`."""

from __future__ import annotations

import inspect
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

from determined.master import app, settings
from determined.master.api import errors as problems
from determined.master.api import policy

PAGE = pathlib.Path(__file__).parent / "api-routes.md"

_INTRODUCTION = f"""\
# The master's HTTP API

Made of the routes themselves. `det`, the Python SDK and the nodes use these and no others.

- Everything is below `{policy.API}` and speaks JSON. NaN and infinities are the texts `"NaN"`, `"Infinity"` and
  `"-Infinity"`; whoever says `nan=constants` in the header `Accept` gets them as Python's `json` writes them.
- Who you are: `Authorization: Bearer TOKEN`. A browser has a cookie instead, which counts only for requests that come
  from the master's own pages.
- *reader*, *writer*: an active user whose token has that scope. What belongs to somebody is changed by them and by
  administrators. *administrator*: one whose token has the scope `admin`. *allocation*: the token that a running trial
  or task has, good for that one attempt.
- A call that changes something may carry an `Idempotency-Key`: sent again under the same key, it is answered from
  memory and done once. Where that is not so, it is said.
- An error is `{{"code": …, "message": …, "details": […]}}`: {{codes}}.
- Times are seconds since 1970. A list with `next` is walked by handing it back as `after`.

## Contents
"""

_WHO = {
    "anyone": "anyone",
    "read": "readers",
    "write": "writers",
    "admin": "administrators",
    "allocation": "the allocation itself",
}
_ALLOCATIONS = {"none": "", "own": " and the allocation itself", "any": " and allocations"}
_TITLES = {
    "auth": "Signing in",
    "changes": "The stream of changes",
    "contexts": "Code",
    "jobs": "The queue",
    "logs": "Logs",
    "pools": "Pools and machines",
    "runs": "Runs made elsewhere",
    "search": "Previews of searches",
    "server": "The master itself",
}
_ORDER = ["server", "auth", "users", "tokens", "experiments", "trials", "logs", "checkpoints", "search", "contexts"]


def introduction() -> str:
    by_status: dict[int, list[str]] = {}
    for code, status in problems.STATUSES.items():
        by_status.setdefault(status, []).append(f"`{code}`")
    codes = "; ".join(f"{status} {', '.join(by_status[status])}" for status in sorted(by_status))
    return _INTRODUCTION.replace("{codes}", codes)


def page() -> str:
    found = app.create_app(settings.Settings(dir=pathlib.Path("unused")))
    spec = found.openapi()
    parts: dict[str, list[str]] = {}
    for route in found.router.routes:
        assert isinstance(route, policy.GuardedRoute), "the app takes no others"
        for method in sorted(route.methods or ()) if route.include_in_schema else ():
            described = spec["paths"][route.path_format][method.lower()]
            name = route.endpoint.__module__.rpartition(".")[2]
            parts.setdefault(name, []).append("\n".join(_route(route, method, described)))
    names = sorted(parts, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))
    contents = [f"- [{_title(name)}](#{_anchor(_title(name))})" for name in names]
    sections = [f"## {_title(name)}\n\n" + "\n".join(parts[name]) for name in names]
    return "\n".join(
        [
            introduction(),
            *contents,
            "- [What is sent and answered](#what-is-sent-and-answered)",
            "",
            *sections,
            *_models(spec),
        ]
    )


def _title(module: str) -> str:
    return _TITLES.get(module, module.capitalize())


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _route(route: policy.GuardedRoute, method: str, described: dict[str, Any]) -> Iterator[str]:
    declared = policy.declared_policy(route)
    assert declared is not None, "the app refuses routes without one"
    yield f"### `{method} {route.path_format.removeprefix(policy.API)}`\n"
    yield inspect.cleandoc(described["description"]) + "\n"
    words = [f"For {_WHO[declared.who]}{_ALLOCATIONS[declared.allocations]}."]
    if body := _content(described.get("requestBody")):
        words.append(f"Takes {body}.")
    if answer := _answer(described):
        words.append(f"Answers {answer}.")
    if method != "GET" and not declared.replays:
        words.append("Takes no idempotency key.")
    yield " ".join(words) + "\n"
    if parameters := [one for one in described.get("parameters", ()) if one["in"] in ("path", "query")]:
        yield "| parameter | | type | default |\n| --- | --- | --- | --- |"
        for one in parameters:
            yield f"| `{one['name']}` | {_cell(one['description'])} | {_cell(_type(one['schema']))} | {_default(one)} |"
        yield ""


def _default(parameter: dict[str, Any]) -> str:
    if parameter["in"] == "path":
        return "in the path"
    if parameter.get("required"):
        return "required"
    value = parameter["schema"].get("default")
    return "" if value in (None, [], "") else f"`{value}`".lower() if isinstance(value, bool) else f"`{value}`"


def _answer(described: dict[str, Any]) -> str:
    for status, response in sorted(described["responses"].items()):
        if status.startswith("2"):
            content = _content(response)
            return f"{status}, {content}" if content else f"{status}"
    return ""


def _content(holder: dict[str, Any] | None) -> str:
    for media_type, content in ((holder or {}).get("content") or {}).items():
        shape = _type(content.get("schema") or {})
        return shape if media_type == "application/json" else f"`{media_type}`"
    return ""


def _type(schema: dict[str, Any]) -> str:
    """A JSON schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _link(name)
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(one) for one in schema[key]))
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_type(schema.get('items') or {})}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"map of {_type(inner)}" if isinstance(inner, dict) and inner else "map"
    return str(kind or "anything")


def _link(name: str) -> str:
    of = re.fullmatch(r"Page_(\w+)_", name)
    return f"a page of {_link(of[1])}" if of else f"[{name}](#{name.lower()})"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _models(spec: dict[str, Any]) -> Iterator[str]:
    yield "## What is sent and answered\n"
    yield "A page has `items`, `total` (of all that match), `offset`, and `next` where more follow.\n"
    for name, schema in sorted(spec["components"]["schemas"].items()):
        if name.startswith("Page_") or name in ("HTTPValidationError", "ValidationError"):
            continue
        yield f"### {name}\n"
        yield inspect.cleandoc(schema.get("description", "")) + "\n"
        if "enum" in schema:
            yield f"One of {', '.join(f'`{value}`' for value in schema['enum'])}.\n"
        if schema.get("properties"):
            yield "| field | type | default |\n| --- | --- | --- |"
            for field, shape in schema["properties"].items():
                required = field in schema.get("required", ())
                yield f"| `{field}` | {_cell(_type(shape))} | {'required' if required else _value(shape)} |"
            yield ""


def _value(shape: dict[str, Any]) -> str:
    value = shape.get("default")
    return "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value!r}`".replace("'", '"')


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    target.write_text(page())
