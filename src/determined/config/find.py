"""Finding the experiment config of a local run: named by hand, by the script's own arguments, or lying beside it."""

from __future__ import annotations

import logging
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Union

from determined.config import places

logger = logging.getLogger("determined.config")

_SUFFIXES = (".yaml", ".yml")
_PREFERRED = "const.yaml"


class Found(NamedTuple):
    """A source for ``config.load`` (a path, or YAML or JSON text), or none; and what to tell the user about it."""

    source: Union[pathlib.Path, str, None]
    notices: tuple[str, ...] = ()


def beside(script_folder: pathlib.Path, argv: Sequence[str], explicit: str | None) -> Union[pathlib.Path, str, None]:
    """The source that ``look`` finds; what there is to tell is logged as a warning."""
    found = look(script_folder, argv, explicit)
    for notice in found.notices:
        logger.warning(notice)
    return found.source


def look(script_folder: pathlib.Path, argv: Sequence[str], explicit: str | None) -> Found:
    """The config of the script that was started as ``argv`` (its own name first).

    ``explicit`` (a path, or the text itself) counts before everything. Then comes ``--config FILE`` of the script, if
    that file looks like an experiment config: the option may be the script's own. Then the one file in
    ``script_folder`` that looks like one and whose entrypoint starts this script; of several, ``const.yaml``.
    """
    if explicit:
        # Not checked here: whoever names a file wants to hear what is wrong with it.
        is_text = explicit.lstrip().startswith("{") or "\n" in explicit
        return Found(explicit if is_text else pathlib.Path(explicit))
    named = _named_by_script(argv[1:])
    if named is not None and looks_like_experiment(_top_level(named)):
        return Found(named)
    script = pathlib.PurePath(argv[0]) if argv else pathlib.PurePath()
    if script.suffix != ".py":
        return Found(None)
    fitting = [path for path in _listing(script_folder) if _starts(_top_level(path), script)]
    if len(fitting) <= 1:
        return Found(fitting[0] if fitting else None)
    for path in fitting:
        if path.name == _PREFERRED:
            return Found(path)
    names = ", ".join(path.name for path in fitting)
    return Found(
        None,
        (
            f"several configs start {script.name} ({names}), so none is used;"
            f" name one with DET_EXPERIMENT_CONFIG={fitting[0].name}",
        ),
    )


def looks_like_experiment(config: Mapping[str, object] | None) -> bool:
    """Whether the top level of a file has what an experiment config has, and hardly anything else does."""
    return config is not None and not {"hyperparameters", "searcher", "entrypoint", "entrypoint_script"}.isdisjoint(
        config
    )


def _named_by_script(arguments: Sequence[str]) -> pathlib.Path | None:
    for number, argument in enumerate(arguments):
        name: str | None = None
        if argument.startswith("--config="):
            name = argument.partition("=")[2]
        elif argument == "--config" and number + 1 < len(arguments):
            name = arguments[number + 1]
        if name and name.endswith(_SUFFIXES):
            return pathlib.Path(name)
    return None


def _listing(folder: pathlib.Path) -> list[pathlib.Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)
    except OSError:
        return []


def _top_level(path: pathlib.Path) -> Mapping[str, object] | None:
    """The file as a map; None if it is anything else: a file nobody named is not worth a complaint."""
    try:
        if not path.is_file() or path.stat().st_size > places.MAX_BYTES:
            return None
        data = places.read_yaml(path.read_bytes()).data
    except OSError:
        return None
    return data if isinstance(data, Mapping) else None


def _starts(config: Mapping[str, object] | None, script: pathlib.PurePath) -> bool:
    if config is None or not looks_like_experiment(config):
        return False
    entrypoint = config.get("entrypoint") or config.get("entrypoint_script")
    words = " ".join(map(str, entrypoint)) if isinstance(entrypoint, list) else str(entrypoint or "")
    name, module = re.escape(script.name), re.escape(script.stem)
    as_file = rf"(?:^|[\s/'\"]){name}(?:$|[\s'\";&|])"
    as_class = rf"(?:^|[\s='\"]){module}:\w"
    as_module = rf"-m\s+{module}(?:$|\s)"
    return re.search(f"{as_file}|{as_class}|{as_module}", words) is not None
