"""The reference page of the config, made from its models: ``python -m determined.config.reference [FILE]``."""

from __future__ import annotations

import inspect
import json
import pathlib
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, Union

import annotated_types
import pydantic
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from determined.config import hparams, searcher, storage
from determined.config.experiment import ExperimentConfig
from determined.config.length import Length
from determined.config.task import TaskConfig

PAGE = pathlib.PurePath("docs/reference/experiment-config.md")

_INTRODUCTION = """\
# Configuration files

<!-- Made by `python -m determined.config.reference`; do not edit. -->

An experiment is described by a YAML file. Unknown fields are refused, with a guess at what was meant; every mistake is
reported at once, with its line. A field that is `null` counts as absent, except inside `data` and `hyperparameters`.
Numbers and booleans are those of YAML 1.2 (`1e-3` is a number, `on` is text); keys are text, given once; tags are
refused; anchors, aliases and `<<` work.

```yaml
name: digits
entrypoint: python3 train.py
hyperparameters:
  global_batch_size: 64
  learning_rate: {type: log, base: 10, minval: -4, maxval: -1}
searcher:
  name: random
  metric: validation_error
  max_trials: 16
  max_length: {epochs: 20}
```

`--config a.b=c` (any number of times) lays a value over the file: it is split at the first `=`, the value is read as
YAML, `a,b` is a list, and the dots of the key lead through maps. A cluster's defaults lie under the file: maps merge,
otherwise the file's value counts; mounts, devices, environment variables, log policies and ports are united by their
key; a hyperparameter with a `type`, and a length, are taken whole.

Old spellings are understood, each with a notice: `max_steps` and whole-number periods (counted in steps of
`batches_per_step` batches, by default 100), `entrypoint_script`, a `description` without a `name`, `adaptive_simple`.

In the tables, *required* means that there is no default.
"""


def page() -> str:
    """The whole page as Markdown."""
    parts = [_INTRODUCTION, "## Experiment\n", *_model(ExperimentConfig)]
    parts += ["## Lengths\n", *_model(Length)]
    parts += ["## Hyperparameters\n", _hyperparameters()]
    for kind in (hparams.Const, *hparams.RANGES):
        parts += [f"### type: {kind.model_fields['type'].default}\n", *_model(kind)]
    parts += ["## Searcher\n"]
    for method in _methods():
        parts += [f"### name: {_tag(method, 'name')}\n", *_model(method)]
    parts += ["## Checkpoint storage\n"]
    for place in _storages():
        parts += [f"### type: {_tag(place, 'type')}\n", *_model(place)]
    parts += ["## Jobs and other tasks\n", *_model(TaskConfig)]
    parts += ["## Parts\n", "Maps that fields above contain.\n"]
    for part in _parts():
        parts += [f"### {part.__name__}\n", *_model(part)]
    return "\n".join(parts).rstrip() + "\n"


def models() -> list[type[pydantic.BaseModel]]:
    """Every model a config consists of."""
    found: dict[type[pydantic.BaseModel], None] = {}

    def visit(model: type[pydantic.BaseModel]) -> None:
        if model in found:
            return
        found[model] = None
        for field in model.model_fields.values():
            for inner in _models_in(field.annotation):
                visit(inner)

    visit(ExperimentConfig)
    visit(TaskConfig)
    return [model for model in found if not issubclass(model, pydantic.RootModel)]


def _parts() -> list[type[pydantic.BaseModel]]:
    shown: set[type[pydantic.BaseModel]] = {ExperimentConfig, TaskConfig, Length, hparams.Const, *hparams.RANGES}
    shown |= {*_methods(), *_storages()}
    return sorted((model for model in models() if model not in shown), key=lambda model: model.__name__)


def _methods() -> list[type[pydantic.BaseModel]]:
    return [*dict.fromkeys(searcher.METHODS.values()), searcher.ImportedSearcher]


def _storages() -> list[type[pydantic.BaseModel]]:
    return [storage.UsualStorage, *storage.KINDS.values(), storage.ImportedStorage]


def _hyperparameters() -> str:
    return (
        "A map from names to: a bare value or list (a constant), a map with a `type` (below), or a map without one,"
        " which nests more hyperparameters.\n"
    )


def _tag(model: type[pydantic.BaseModel], field: str) -> str:
    annotation = model.model_fields[field].annotation
    if typing.get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(annotation))
    return "absent" if annotation is type(None) else "`module:Class`"


def _model(model: type[pydantic.BaseModel]) -> Iterator[str]:
    yield inspect.cleandoc(model.__doc__ or "").replace("``", "`") + "\n"
    yield "| field | type | default | description |"
    yield "| --- | --- | --- | --- |"
    for name, field in model.model_fields.items():
        description = (field.description or "").replace("|", "\\|")
        yield f"| `{name}` | {_type(field.annotation, field.metadata)} | {_default(field)} | {description} |"
    yield ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    default = field.default
    if default is None or default is PydanticUndefined:
        return ""
    if isinstance(default, pydantic.BaseModel):
        if not isinstance(default, Length):
            return ""
        default = default.model_dump(mode="json")
    if isinstance(default, tuple):
        if default and isinstance(default[0], pydantic.BaseModel):
            return ", ".join(getattr(entry, "name", None) or "" for entry in default)
        default = list(default)
    text = default if isinstance(default, str) and default else json.dumps(default).replace('"', "")
    return "`''`" if default == "" else f"`{text}`"


def _type(annotation: Any, metadata: typing.Sequence[Any] = ()) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0], (*metadata, *arguments[1:]))
    if origin in (Union, types.UnionType):
        return _union([argument for argument in arguments if argument is not type(None)], metadata)
    if origin is Literal:
        return " \\| ".join(f"`{choice}`" for choice in arguments)
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "map" if arguments[1] is Any else f"map of {_type(arguments[1])}"
    if annotation is hparams.Hyperparameters:
        return "[hyperparameters](#hyperparameters)"
    if annotation is Length:
        return "[length](#lengths)"
    if inspect.isclass(annotation) and issubclass(annotation, pydantic.BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    words = {int: "whole number", float: "number", bool: "true or false", str: "text", Any: "anything"}
    return words.get(annotation, "nothing") + _bounds(metadata)


def _union(members: list[Any], metadata: typing.Sequence[Any]) -> str:
    if len(members) == 1:
        return _type(members[0], metadata)
    inner = [
        typing.get_args(member)[0] if typing.get_origin(member) is typing.Annotated else member for member in members
    ]
    if searcher.Single in inner:
        return "[searcher](#searcher)"
    if storage.UsualStorage in inner:
        return "[storage](#checkpoint-storage)"
    return " or ".join(_type(member) for member in members)


def _bounds(metadata: typing.Sequence[Any]) -> str:
    bounds: list[str] = []
    for item in _flat(metadata):
        if isinstance(item, annotated_types.Ge):
            bounds.append(f"≥ {item.ge}")
        elif isinstance(item, annotated_types.Gt):
            bounds.append(f"> {item.gt}")
        elif isinstance(item, annotated_types.Le):
            bounds.append(f"≤ {item.le}")
    return f" {', '.join(bounds)}" if bounds else ""


def _flat(metadata: typing.Sequence[Any]) -> Iterator[Any]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from item.metadata
        else:
            yield item


def _models_in(annotation: Any) -> Iterator[type[pydantic.BaseModel]]:
    if (
        inspect.isclass(annotation)
        and typing.get_origin(annotation) is None
        and issubclass(annotation, pydantic.BaseModel)
    ):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)


def main(arguments: list[str]) -> None:
    """Write the page to the file named, or to its place under the current folder."""
    path = pathlib.Path(arguments[0] if arguments else PAGE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
