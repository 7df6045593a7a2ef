"""The reference page is made from the models, is current, and describes every field."""

from __future__ import annotations

import pathlib

import pytest

from determined.config import reference

REPOSITORY = pathlib.Path(__file__).parents[3]


def test_the_page_is_current() -> None:
    written = (REPOSITORY / reference.PAGE).read_text(encoding="utf-8")
    assert written == reference.page(), "run `python -m determined.config.reference`"


@pytest.mark.parametrize("model", reference.models(), ids=lambda model: str(model.__name__))
def test_every_field_is_described(model: type) -> None:
    assert model.__doc__
    for name, field in model.model_fields.items():  # type: ignore[attr-defined]
        assert field.description, f"{model.__name__}.{name} has no description"


def test_the_page_can_be_written_elsewhere(tmp_path: pathlib.Path) -> None:
    reference.main([str(tmp_path / "sub" / "page.md")])
    assert (tmp_path / "sub" / "page.md").read_text(encoding="utf-8") == reference.page()


def test_the_example_on_the_page_is_valid() -> None:
    from determined import config

    text = reference.page().split("```yaml\n")[1].split("```")[0]
    assert config.load(text).notices == ()
