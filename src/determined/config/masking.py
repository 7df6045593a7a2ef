"""What of a config nobody is shown."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

MASK = "********"
_SECRET_NAME = re.compile(r"token|secret|passw|passphrase|credential|key|(^|_)(pass|pwd|auth)($|_)", re.IGNORECASE)


def mask(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as plain maps, its secrets replaced by stars. What holds no secrets is shared, and not to be changed."""
    masked = dict(config)
    for name in ("data", "checkpoint_storage", "environment"):
        if name in masked:
            masked[name] = copy.deepcopy(masked[name])
    data = masked.get("data")
    if isinstance(data, dict) and data.get("secrets") is not None:
        data["secrets"] = _masked(data["secrets"])
    for section, fields in (
        ("checkpoint_storage", ("access_key", "secret_key", "connection_string", "credential")),
        ("environment", ("registry_auth",)),
    ):
        part = masked.get(section)
        for field in fields:
            if isinstance(part, dict) and part.get(field) is not None:
                part[field] = _masked(part[field])
    environment = masked.get("environment")
    variables = environment.get("environment_variables") if isinstance(environment, dict) else None
    if isinstance(variables, dict):
        for device, entries in variables.items():
            variables[device] = [_masked_variable(entry) for entry in entries or ()]
    elif isinstance(environment, dict) and isinstance(variables, (list, tuple)):  # as people write it
        environment["environment_variables"] = [_masked_variable(entry) for entry in variables]
    return masked


def _masked_variable(entry: Any) -> Any:
    name, equals, _ = str(entry).partition("=")
    return f"{name}={MASK}" if equals and _SECRET_NAME.search(name) else entry


def _masked(value: Any) -> Any:
    return {key: _masked(inner) for key, inner in value.items()} if isinstance(value, dict) else MASK
