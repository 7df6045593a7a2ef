"""Importing the package costs nothing until a config is read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from determined import config


def test_pydantic_and_yaml_wait_until_a_config_is_read() -> None:
    script = """
import sys
import determined.config, determined.config.units
assert not {"pydantic", "yaml"} & set(sys.modules)
determined.config.load({})
assert {"pydantic", "yaml"} <= set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        config.nothing  # noqa: B018
    assert set(config.__all__) <= set(dir(config))
