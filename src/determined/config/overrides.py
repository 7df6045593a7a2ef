"""What ``--config a.b=c`` means."""

from __future__ import annotations

from typing import Any

from determined.config import places
from determined.config.problems import Path, Problem

_LISTS = frozenset({("labels",), ("bind_mounts",), ("environment", "environment_variables"), ("log_policies",)})


def parse(override: str) -> tuple[Path, Any]:
    """The path and the value; raises ValueError with the reason if it cannot be understood."""
    key, equals, text = override.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        raise ValueError("must be written key=value, for example searcher.max_length.epochs=3")
    if path == ("volumes",):
        return ("bind_mounts",), [_volume(volume) for volume in text.split(",")]
    value = _value(text)
    if path in _LISTS and not isinstance(value, list):
        value = [value]
    return path, value


def label(override: str) -> str:
    """How messages call an override; values may be secrets, so that only the key is shown."""
    return f"--config {override.partition('=')[0]}"


def problem(override: str, says: str) -> Problem:
    """A mistake in the override itself."""
    return Problem((label(override),), says)


def _value(text: str) -> Any:
    stripped = text.strip()
    if "," in stripped and not stripped.startswith(("[", "{", '"', "'")):
        return [_scalar(part) for part in stripped.split(",")]
    return _scalar(stripped)


def _scalar(text: str) -> Any:
    written = places.read_yaml(text)
    if written.problems:
        raise ValueError(f"has a value that {written.problems[0].says}")
    return written.data


def _volume(volume: str) -> dict[str, str]:
    host_path, colon, container_path = volume.strip().partition(":")
    if not (host_path and colon and container_path):
        raise ValueError("must name volumes as host_path:container_path")
    return {"host_path": host_path, "container_path": container_path}
