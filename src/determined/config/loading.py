"""From YAML, defaults and overrides to a config, or to every mistake at once with its line."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, Union

import pydantic

from determined.config import hparams, legacy, merge, overrides, places, problems
from determined.config.experiment import BUILT_IN_LOG_POLICIES, Document, ExperimentConfig
from determined.config.problems import Path, Place, Places, Problem
from determined.config.task import TaskConfig

Source = Union[str, bytes, "os.PathLike[str]", Mapping[str, Any], Document]
Config = TypeVar("Config", bound=Document)

DEFAULTS = "the cluster's defaults"


@dataclass(frozen=True)
class Checked(Generic[Config]):
    """The outcome of a check: a config, or why there is none."""

    what: str
    config: Config | None
    problems: tuple[Problem, ...] = ()
    places: Places = field(default_factory=lambda: Places({}))

    def unwrap(self) -> Config:
        """The config; raises ``InvalidConfigurationException`` with every mistake if there is none."""
        if self.config is None:
            raise problems.as_exception(self.problems, self.what)
        return self.config


def load(
    source: Source,
    *,
    overrides: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    name_hint: str | None = None,
    file: str | None = None,
    to_run: bool = False,
) -> ExperimentConfig:
    """The experiment config that ``source`` describes: a path, YAML or JSON text, or plain maps.

    Bytes are always text, never a path: for whoever was sent them.
    ``overrides`` are laid over it (``a.b=c``), ``defaults`` under it. ``name_hint`` names an experiment that has
    neither name nor description; ``file`` is what messages call a source that is no file; ``to_run`` demands what
    is needed to start it. Raises ``InvalidConfigurationException`` that lists every mistake, each with its line.
    """
    return check(source, overrides=overrides, defaults=defaults, name_hint=name_hint, file=file, to_run=to_run).unwrap()


def check(
    source: Source,
    *,
    overrides: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    name_hint: str | None = None,
    file: str | None = None,
    to_run: bool = False,
) -> Checked[ExperimentConfig]:
    """Like ``load``, but mistakes are returned, one by one, instead of raised."""
    layers = _lay(source, overrides, defaults, file)
    if not layers.unreadable:
        _unite_log_policies(layers)
        _name(layers, name_hint or _folder_name(source))
    return _check(layers, ExperimentConfig, legacy.EXPERIMENT_WITHOUT_EFFECT, to_run)


def load_task(
    source: Source,
    *,
    overrides: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    file: str | None = None,
    to_run: bool = False,
) -> TaskConfig:
    """The task config that ``source`` describes; as ``load``."""
    return check_task(source, overrides=overrides, defaults=defaults, file=file, to_run=to_run).unwrap()


def check_task(
    source: Source,
    *,
    overrides: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    file: str | None = None,
    to_run: bool = False,
) -> Checked[TaskConfig]:
    """Like ``load_task``, but mistakes are returned, one by one, instead of raised."""
    layers = _lay(source, overrides, defaults, file)
    return _check(layers, TaskConfig, legacy.TASK_WITHOUT_EFFECT, to_run)


@dataclass
class _Layers:
    """A config while its layers are put together."""

    what: str
    config: dict[str, Any] = field(default_factory=dict)
    written: dict[str, Any] = field(default_factory=dict)
    places: Places = field(default_factory=lambda: Places({}))
    notices: list[tuple[legacy.Notice, Place]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unreadable: bool = False


def _lay(source: Source, changes: Sequence[str], defaults: Mapping[str, Any] | None, file: str | None) -> _Layers:
    """The user's config, the overrides over it and the defaults under it, all in today's spelling."""
    written, what = _read(source, file)
    layers = _Layers(what, problems=list(written.problems))
    if written.data is None and not written.problems:
        layers.problems.append(Problem((), "is empty", Place(written.places.everything.file)))
    elif not isinstance(written.data, dict) and not written.problems:
        says = f"must be a map of fields, not {problems.shown(written.data)}"
        layers.problems.append(Problem((), says, Place(written.places.everything.file)))
    if not isinstance(written.data, dict):
        layers.unreadable = True
        return layers
    upgraded = _upgrade(layers, written, None)
    layers.config = upgraded.config
    _override(layers, changes, legacy.step_size(written.data))
    layers.written = layers.config
    if defaults:
        below = places.read_plain(defaults, DEFAULTS)
        layers.problems += below.problems
        under = legacy.modernise(below.data or {})
        layers.problems += [problem._replace(place=Place(DEFAULTS)) for problem in under.problems]
        layers.config = merge.merge(layers.config, under.config)
        for path, place in below.places.by_path.items():
            layers.places.by_path.setdefault(path, place)
        layers.places.moved.update(under.moved)
    return layers


def _upgrade(layers: _Layers, written: places.Written, steps: int | None) -> legacy.Upgraded:
    upgraded = legacy.modernise(written.data, steps)
    found = Places(written.places.by_path, written.places.everything, dict(upgraded.moved))
    layers.problems += [problem._replace(place=found.of(problem.path)) for problem in upgraded.problems]
    layers.notices += [(notice, found.of(notice.path)) for notice in upgraded.notices]
    layers.places = found.over(layers.places)
    return upgraded


def _override(layers: _Layers, changes: Sequence[str], steps: int) -> None:
    for change in changes:
        try:
            path, value = overrides.parse(change)
            single = merge.put({}, path, value)
        except ValueError as error:
            layers.problems.append(overrides.problem(change, str(error)))
            continue
        place = Place(overrides.label(change))
        at = {path[:length]: place for length in range(1, len(path) + 1)}
        upgraded = _upgrade(layers, places.Written(single, Places({path: place}, Place()), ()), steps)
        try:
            for new_path, new_value in _leaves(upgraded.config, len(path)):
                if change.startswith("volumes="):
                    new_value = [*(layers.config.get("bind_mounts") or ()), *new_value]
                layers.config = merge.put(layers.config, new_path, new_value)
                layers.places.by_path[new_path] = place
        except ValueError as error:
            layers.problems.append(overrides.problem(change, f"cannot be set: {error}"))
        # Where the override made maps that were not there, it is their place too.
        for start, made in at.items():
            layers.places.by_path.setdefault(start, made)


def _leaves(config: Mapping[str, Any], depth: int, path: Path = ()) -> Iterable[tuple[Path, Any]]:
    """What one override sets after it was upgraded: the values at the depth that was written."""
    for name, value in config.items():
        here = (*path, name)
        if depth > 1 and isinstance(value, Mapping) and here not in merge.LENGTHS:
            yield from _leaves(value, depth - 1, here)
        elif depth > 1 and isinstance(value, Mapping) and len(value) == 1:
            yield from (((*here, unit), inner) for unit, inner in value.items())
        else:
            yield here, value


def _unite_log_policies(layers: _Layers) -> None:
    """The built-in policies apply unless one of the same name takes their place."""
    written = layers.config.get("log_policies")
    if isinstance(written, list):
        built_in = [policy.model_dump(mode="json") for policy in BUILT_IN_LOG_POLICIES]
        layers.config = merge.merge(layers.config, {"log_policies": built_in})


def _name(layers: _Layers, hint: str | None) -> None:
    upgraded = legacy.Upgraded(layers.config)
    legacy.name_from_description(upgraded)
    layers.notices += [(notice, layers.places.of(notice.path)) for notice in upgraded.notices]
    layers.places.moved.update(upgraded.moved)
    if layers.config.get("name") is None and hint:
        layers.config["name"] = hint


def _check(
    layers: _Layers, model: type[Config], without_effect: Iterable[legacy.Ineffective], to_run: bool
) -> Checked[Config]:
    if layers.unreadable:
        return Checked(layers.what, None, tuple(layers.problems))
    config: Config | None = None
    try:
        config = model.model_validate(layers.config)
    except pydantic.ValidationError as error:
        # A value that is wrong as text was read as null, which would be a second mistake at the same path.
        said = {problem.path for problem in layers.problems}
        found = problems.explain(error, layers.config, places=layers.places)
        layers.problems += [problem for problem in found if problem.path not in said]
    if to_run and layers.config.get("entrypoint") is None:
        layers.problems.append(
            Problem(("entrypoint",), "is required to run: what to start", layers.places.of(("entrypoint",)))
        )
    if layers.problems or config is None:
        return Checked(layers.what, None, tuple(layers.problems))
    for notice in legacy.without_effect(layers.written, without_effect):
        layers.notices.append((notice, layers.places.of(notice.path)))
    for path, says in hparams.forgotten_types(layers.config.get("hyperparameters")):
        full = ("hyperparameters", *path)
        layers.notices.append((legacy.Notice(full, says.partition(" ")[2]), layers.places.of(full)))
    notices = [str(Problem(notice.path, notice.says, place)) for notice, place in layers.notices]
    return Checked(layers.what, config.with_notices(dict.fromkeys(notices)), places=layers.places)


def _read(source: Source, file: str | None) -> tuple[places.Written, str]:
    """What a source says, and what messages call it."""
    if isinstance(source, Document):
        source = source.as_dict()
    if isinstance(source, Mapping):
        return places.read_plain(source, file), file or "the config"
    if isinstance(source, bytes):
        written = None
        if source.lstrip().startswith(b"{"):
            with contextlib.suppress(UnicodeDecodeError):
                written = places.read_json(source.decode(), file)
        return written or places.read_yaml(source, file), file or "the config"
    if isinstance(source, str) and _is_text(source):
        written = places.read_json(source, file) if source.lstrip().startswith("{") else None
        return written or places.read_yaml(source, file), file or "the config"
    shown = file or os.fspath(source)
    try:
        with open(source, "rb") as opened:
            content = opened.read(places.MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        says = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {_reason(error)}"
        return places.Written(None, Places({}, Place(shown)), (Problem((shown,), says),)), shown
    if pathlib.PurePath(shown).suffix == ".json":
        try:
            written = places.read_json(content.decode("utf-8-sig"), shown)
        except UnicodeDecodeError:
            written = None
        if written is not None:
            return written, shown
    return places.read_yaml(content, shown), shown


def _is_text(source: str) -> bool:
    stripped = source.strip()
    if "\n" in source or stripped.startswith("{") or not stripped:
        return True
    return (": " in stripped or stripped.endswith(":")) and not os.path.exists(source)


def _folder_name(source: Source) -> str | None:
    """What to call an experiment that says nothing itself: after the folder its file lies in."""
    if isinstance(source, (bytes, Mapping, Document)) or (isinstance(source, str) and _is_text(source)):
        return None
    return pathlib.Path(source).resolve().parent.name


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
