"""Laying one config over another: what a cluster or a template gives by default, and what ``--config a.b=c`` sets.

Pure functions over plain maps that were already upgraded to today's fields; neither argument is changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

Path = tuple[str, ...]

LENGTHS: frozenset[Path] = frozenset(
    {
        ("min_validation_period",),
        ("min_checkpoint_period",),
        ("searcher", "max_length"),
        ("searcher", "length_per_round"),
    }
)
# Maps whose fields depend on one of them: only these others survive when it differs.
_KINDS: dict[Path, tuple[str, frozenset[str]]] = {
    ("checkpoint_storage",): ("type", frozenset({"save_experiment_best", "save_trial_best", "save_trial_latest"})),
    ("searcher",): ("name", frozenset({"metric", "smaller_is_better"})),
}


def merge(user: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """``user``'s config with what it leaves open taken from ``default``.

    Maps merge recursively; otherwise the user's value counts, and null is no value. Mounts, devices, environment
    variables, log policies and ports are united by their key. A hyperparameter with a ``type``, and a length, are
    taken whole.
    """
    return _merge_maps(user, default, ())


def put(config: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """``config`` with ``value`` at ``path``, maps made on the way; raises ValueError where there is no way."""
    changed = copy.deepcopy(dict(config))
    here = changed
    for depth, part in enumerate(path[:-1]):
        start = path[: depth + 1]
        inner = here.get(part)
        if inner is None or start in LENGTHS:
            # A length has exactly one unit: setting another one replaces it.
            inner = here[part] = {}
        if not isinstance(inner, dict):
            raise ValueError(f"{'.'.join(start)} is not a map, so that {'.'.join(path)} cannot be set")
        here = inner
    here[path[-1]] = copy.deepcopy(value)
    return changed


def _merge_maps(user: Mapping[str, Any], default: Mapping[str, Any], path: Path) -> dict[str, Any]:
    kind, common = _KINDS.get(path, (None, frozenset[str]()))
    if kind and user.get(kind) is not None and default.get(kind) is not None and user[kind] != default[kind]:
        default = {name: value for name, value in default.items() if name in common}
    merged = dict(copy.deepcopy(dict(user)))
    for name, value in default.items():
        if _is_set_by(user, name, path):
            merged[name] = _merge_values(user[name], value, (*path, name))
        else:
            merged[name] = copy.deepcopy(value)
    return merged


def _is_set_by(user: Mapping[str, Any], name: str, path: Path) -> bool:
    # Null is a value where anything goes.
    return name in user and (user[name] is not None or path[:1] in (("data",), ("hyperparameters",)))


def _merge_values(user: Any, default: Any, path: Path) -> Any:
    if path in _UNITED:
        return _UNITED[path](user, default)
    is_whole = path in LENGTHS or (path[0] == "hyperparameters" and (_has_type(user) or _has_type(default)))
    if isinstance(user, Mapping) and isinstance(default, Mapping) and not is_whole:
        return _merge_maps(user, default, path)
    return copy.deepcopy(user)


def _has_type(value: Any) -> bool:
    return isinstance(value, Mapping) and "type" in value


def _unite_by(*keys: str) -> Callable[[Any, Any], Any]:
    def key_of(entry: Any) -> Any:
        if isinstance(entry, Mapping):
            return next((entry[key] for key in keys if entry.get(key) is not None), entry)
        return entry

    return lambda user, default: _unite(user, default, key_of)


def _unite(user: Any, default: Any, key_of: Callable[[Any], Any]) -> Any:
    if not isinstance(user, list) or not isinstance(default, list):
        return copy.deepcopy(user)
    keys = [key_of(entry) for entry in user]
    return copy.deepcopy(user + [entry for entry in default if key_of(entry) not in keys])


def _unite_variables(user: Any, default: Any) -> Any:
    user_by_device, default_by_device = _by_device(user), _by_device(default)
    if user_by_device is None or default_by_device is None:
        return copy.deepcopy(user)
    if isinstance(user, list) and isinstance(default, list):
        return _unite(user, default, _variable_name)
    united = dict(user_by_device)
    for device, variables in default_by_device.items():
        own = united.get(device)
        united[device] = copy.deepcopy(variables) if own is None else _unite(own, variables, _variable_name)
    return united


def _by_device(variables: Any) -> dict[str, Any] | None:
    if isinstance(variables, list):
        return {device: list(variables) for device in ("cpu", "cuda", "rocm")}
    return dict(variables) if isinstance(variables, Mapping) else None


def _variable_name(variable: Any) -> Any:
    return variable.partition("=")[0] if isinstance(variable, str) else variable


_UNITED: dict[Path, Callable[[Any, Any], Any]] = {
    ("bind_mounts",): _unite_by("container_path"),
    ("resources", "devices"): _unite_by("container_path"),
    ("log_policies",): _unite_by("name", "pattern"),
    ("environment", "proxy_ports"): _unite_by("proxy_port"),
    ("environment", "environment_variables"): _unite_variables,
}
