"""The pages about the master's routes and settings are made of them, are current, and leave nothing unsaid."""

from __future__ import annotations

import importlib.util
import pathlib
import types
from typing import Any

import pydantic
import pytest

from determined.master import app, settings
from tests.docs import pages

REFERENCE = pages.ROOT / "docs" / "reference"
SPEC: dict[str, Any] = app.create_app(settings.Settings(dir=pathlib.Path("unused"))).openapi()
ROUTES = {
    f"{method.upper()} {path}": described
    for path, methods in SPEC["paths"].items()
    for method, described in methods.items()
}


def load_generator(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, REFERENCE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["generate_client", "generate_routes", "generate_settings"])
def test_the_page_is_current(name: str) -> None:
    generator = load_generator(name)
    assert generator.PAGE.read_text() == generator.page(), f"run: python docs/reference/{name}.py"


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_says_what_it_does_and_what_it_takes(route: str) -> None:
    described = ROUTES[route]
    assert described.get("description"), "its function needs a docstring"
    taken = [one for one in described.get("parameters", ()) if one["in"] in ("path", "query")]
    assert [one["name"] for one in taken if not one.get("description")] == []


def test_whatever_is_sent_and_answered_says_what_it_is() -> None:
    silent = [name for name, one in SPEC["components"]["schemas"].items() if not one.get("description")]
    # The framework's own, and pages of things, which the page explains once.
    assert [name for name in silent if "ValidationError" not in name and not name.startswith("Page_")] == []


@pytest.mark.parametrize("model", [settings.Settings, settings.PoolSettings], ids=lambda model: str(model.__name__))
def test_every_setting_is_described(model: type[pydantic.BaseModel]) -> None:
    assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_the_settings_shown_are_valid(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "master.yaml"
    file.write_text((REFERENCE / "master-settings.md").read_text().split("```yaml\n")[1].split("```")[0])
    found = settings.load(file=file, environ={})
    assert found.port == 9090 and found.pool("evaluation").slots == 1
