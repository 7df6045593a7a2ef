"""From a configuration file and a folder of code to an experiment on the master."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from determined import errors
from determined.cli import render, session

if TYPE_CHECKING:
    from determined.client.context import Packed
    from determined.client.master import Master
    from determined.config import ExperimentConfig
    from determined.wire.views import ExperimentView

STDIN = pathlib.Path("-")


class Submission(NamedTuple):
    """What is to be sent, as it was said on the command line."""

    config: pathlib.Path
    folder: pathlib.Path | None = None
    includes: tuple[pathlib.Path, ...] = ()
    overrides: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """What messages call the configuration."""
        return "stdin" if self.config == STDIN else str(self.config)

    @property
    def name_hint(self) -> str | None:
        """What to call an experiment whose configuration has no name."""
        folder = self.folder if self.folder is not None else self.config.parent if self.config != STDIN else None
        return folder.resolve().name or None if folder is not None else None


def read(path: pathlib.Path) -> str:
    """The text of a configuration file, or what comes on stdin."""
    if path == STDIN:
        return sys.stdin.read()
    try:
        return path.read_text()
    except FileNotFoundError:
        beside = sorted(str(each) for each in path.parent.glob("*.yaml"))[:5] if path.parent.is_dir() else []
        hint = f"; there are {', '.join(beside)}" if beside else ""
        raise errors.InvalidConfigurationException(f"there is no file {path}{hint}") from None
    except IsADirectoryError:
        raise errors.InvalidConfigurationException(
            f"{path} is a folder; name the configuration first and then the folder: det e create const.yaml {path}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise errors.InvalidConfigurationException(f"{path} cannot be read as text: {error}") from None


def checked(wanted: Submission, text: str | None = None, defaults: Mapping[str, Any] | None = None) -> ExperimentConfig:
    """The configuration; raises InvalidConfigurationException with every mistake, before anything is sent."""
    from determined import config

    return config.load(
        read(wanted.config) if text is None else text,
        overrides=wanted.overrides,
        defaults=defaults,
        name_hint=wanted.name_hint,
        file=wanted.file,
        to_run=True,
    )


def create(
    master: Master,
    wanted: Submission,
    text: str,
    *,
    template: str | None = None,
    project_id: int | None = None,
    paused: bool = False,
    test: bool = False,
) -> ExperimentView:
    """Check, pack, send and create; tells what is sent."""
    from determined.wire import requests

    found = checked(wanted, text, master.template(template).config if template else None)
    for notice in found.notices:
        session.tell(f"note: {notice}")
    sha256 = send_code(master, wanted.folder, wanted.includes)
    made = master.create_experiment(
        requests.CreateExperiment(
            config=text,
            file=wanted.file,
            overrides=list(wanted.overrides),
            name_hint=wanted.name_hint,
            template=template,
            context_sha256=sha256,
            python=sys.executable,
            project_id=project_id,
            paused=paused,
            test=test,
        )
    )
    for notice in made.notices:
        if notice not in found.notices:
            session.tell(f"note: {notice}")
    assert made.experiment is not None
    return made.experiment


def fork(master: Master, old: ExperimentView, overrides: Sequence[str], paused: bool) -> ExperimentView:
    """A new experiment that asks for what an old one asked for, with the same code."""
    from determined.config.masking import MASK
    from determined.wire import requests

    known = master.experiment_config(old.id)
    if MASK in known["written"]:
        raise errors.Refused(
            f"the configuration of experiment {old.id} holds secrets, which nobody is shown again; "
            "create the new one from its file: det experiment create"
        )
    made = master.create_experiment(
        requests.CreateExperiment(
            config=known["written"],
            file=f"the config of experiment {old.id}",
            overrides=list(overrides),
            name_hint=old.name,
            context_sha256=known["context_sha256"],
            python=sys.executable,
            project_id=old.project_id,
            paused=paused,
            parent_id=old.id,
        )
    )
    assert made.experiment is not None
    return made.experiment


def send_code(master: Master, folder: pathlib.Path | None, includes: Sequence[pathlib.Path] = ()) -> str | None:
    """Pack a folder and hand it over, unless the master has it already; None when there is nothing to send."""
    from determined.client import context

    if folder is None and not includes:
        return None
    packed = context.pack(folder, includes)
    try:
        if master.has_context(packed.sha256):
            session.tell(f"{_what(packed, folder)}; the master has them already")
        else:
            session.tell(f"sending {_what(packed, folder)}")
            master.upload_context(packed.sha256, packed.content)
    except KeyboardInterrupt:
        session.tell("interrupted while sending; nothing was created")
        raise typer.Exit(3) from None
    for notice in packed.notices:
        session.tell(f"note: {notice}")
    return packed.sha256


def as_overrides(path: pathlib.Path) -> list[str]:
    """The fields of a YAML file as ``a.b=c``, for calls that take changes only."""
    import json

    from determined.config import places

    data = places.read_yaml(read(path)).data
    if not isinstance(data, Mapping):
        raise errors.InvalidConfigurationException(f"{path} must be a map of the fields to change")

    def leaves(part: Mapping[str, Any], before: str) -> list[str]:
        found = []
        for name, value in part.items():
            if isinstance(value, Mapping) and value and "type" not in value:
                found += leaves(value, f"{before}{name}.")
            else:
                found.append(f"{before}{name}={json.dumps(value)}")
        return found

    return leaves(data, "")


def download_code(master: Master, view: ExperimentView, target: pathlib.Path) -> int:
    """Write the code of an experiment into a folder that is empty or not there yet; returns the number of files."""
    sha256 = master.experiment_config(view.id)["context_sha256"]
    if sha256 is None:
        raise errors.NotFound(f"experiment {view.id} was submitted without code")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise errors.Refused(f"{target} is not empty; name another place with -o")
    import io
    import tarfile

    count = 0
    with tarfile.open(fileobj=io.BytesIO(master.context(sha256)), mode="r:gz") as archive:
        target.mkdir(parents=True, exist_ok=True)
        for member in archive:
            parts = pathlib.PurePosixPath(member.name).parts
            if member.name.startswith("/") or ".." in parts or not (member.isfile() or member.isdir()):
                raise errors.BadRequest(f"the code holds {member.name!r}, which would lie outside {target}")
            place = target.joinpath(*parts)
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            assert content is not None
            place.write_bytes(content.read())
            place.chmod(0o755 if member.mode & 0o100 else 0o644)
            count += 1
    return count


def _what(packed: Packed, folder: pathlib.Path | None) -> str:
    count = len(packed.files)
    where = f" of {folder}" if folder is not None else ""
    return f"{count} file{'s' if count != 1 else ''}{where} ({render.size(packed.size)})"
