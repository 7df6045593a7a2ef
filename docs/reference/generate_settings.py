"""Makes docs/reference/master-settings.md of the settings' own model: `python docs/reference/generate_settings.py`."""

from __future__ import annotations

import pathlib
import sys
import types
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pydantic

from determined.master import settings

PAGE = pathlib.Path(__file__).parent / "master-settings.md"

INTRODUCTION = f"""\
# Settings of a master

Made of the settings' own descriptions. None is needed: `det` starts a master that serves this machine.

Each can be written in a YAML file (`det master up --config-file master.yaml`, or `{settings.PREFIX}CONFIG`), or given
as an environment variable, which goes before the file: `{settings.PREFIX}` and the name in capitals, such as
`{settings.PREFIX}PORT=9090`. Flags of `det master up` go before both. All mistakes are told at once, with their
places. `det master config` prints what holds, secrets masked. Tasks see none of these variables.

<!-- file: master.yaml -->
```yaml
cluster_name: the machine under the desk
port: 9090
slots: 2
log_retention_days: 90
pools:
  default:
    scheduler: fair_share
  evaluation:
    slots: 1
```
"""


def page() -> str:
    return "\n".join(
        [
            INTRODUCTION,
            *_table(settings.Settings),
            "## Each of `pools`\n",
            *_table(settings.PoolSettings),
            "`checkpoint_storage` and `experiment_defaults`: see [an experiment's config](experiment-config.md).\n",
        ]
    )


def _table(model: type[pydantic.BaseModel]) -> Iterator[str]:
    yield "| setting | default | |\n| --- | --- | --- |"
    for name, field in model.model_fields.items():
        yield f"| `{name}` | {_default(field)} | {_sentence(field)} |"
    yield ""


def _sentence(field: pydantic.fields.FieldInfo) -> str:
    choices = _choices(field.annotation)
    said = " ".join((field.description or "").split()).replace("|", "\\|")
    missing = [choice for choice in choices if f"`{choice}`" not in said]
    return f"{said} One of {', '.join(f'`{choice}`' for choice in missing)}." if missing else said


def _choices(annotation: Any) -> tuple[str, ...]:
    if get_origin(annotation) is Literal:
        return tuple(map(str, get_args(annotation)))
    if isinstance(annotation, types.UnionType):
        return tuple(choice for one in get_args(annotation) for choice in _choices(one))
    return ()


def _default(field: pydantic.fields.FieldInfo) -> str:
    value = field.default
    if value is None or value == "" or isinstance(value, (pydantic.BaseModel, dict, tuple)):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    target.write_text(page())
