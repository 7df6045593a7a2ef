"""From the settings of pools to the pools."""

from __future__ import annotations

import importlib

from determined import errors
from determined.master.pools.base import Pool
from determined.master.settings import Settings, task_environ


def build_pools(settings: Settings) -> dict[str, Pool]:
    """The pools that the settings name; each kind is imported when it is used."""
    return {name: _build(name, settings) for name in settings.pools}


def _build(name: str, settings: Settings) -> Pool:
    chosen = settings.pool(name)
    if chosen.kind == "local":
        from determined.master.pools.local import LocalPool

        return LocalPool(
            settings.state_dir, name=name, slots=chosen.slots, environ=task_environ(), warm=settings.warm_start
        )
    module_name, colon, class_name = chosen.kind.partition(":")
    if not colon:
        raise errors.InvalidConfigurationException(
            f"kind of pool {name} cannot be {chosen.kind!r}; it is local, or a class of yours as module:Class"
        )
    try:
        make = getattr(importlib.import_module(module_name), class_name)
        pool: Pool = make(name, settings, **chosen.options)
    except (ImportError, AttributeError, TypeError) as error:
        raise errors.InvalidConfigurationException(f"pool {name} ({chosen.kind}) cannot be made: {error}") from None
    return pool
