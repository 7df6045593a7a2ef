"""TaskConfig: a job, a command, a notebook or a TensorBoard, as pure data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import pydantic

from determined.config.environment import BindMount, Entrypoint, Environment
from determined.config.experiment import Document, both_or_neither
from determined.config.resources import TaskResources
from determined.config.section import BrokenRule, Flag, FreeMap, Name, NotNegative, Text, Texts, is_number

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)", re.ASCII)


def as_seconds(written: str) -> float:
    """Seconds of a duration such as ``20m`` or ``1h30m``; raises ValueError if it is none."""
    if not written or _PART.sub("", written):
        raise ValueError(f'must be a duration such as "20m" or "1h30m", not {written!r}')
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(written))


def _as_duration(written: Any) -> Any:
    if is_number(written) and written >= 0:
        return f"{written}s"
    if isinstance(written, str):
        as_seconds(written)
    return written


class TaskConfig(Document):
    """One task: anything but an experiment that runs on slots."""

    name: Name | None = pydantic.Field(None, description="Name shown in lists; if absent: the description.")
    description: Text | None = pydantic.Field(None, description="A sentence about the task.")
    workspace: Text = pydantic.Field("", description="Workspace; goes with `project`.")
    project: Text = pydantic.Field("", description="Project in the workspace; goes with `workspace`.")
    entrypoint: Entrypoint | None = pydantic.Field(
        None, description="What to run: a command line for the shell, or a list of arguments. Required for a job."
    )
    data: FreeMap = pydantic.Field(
        {}, description="Anything the code wants to know, read as `context.config_data`. `data.secrets` is masked."
    )
    resources: TaskResources = pydantic.Field(TaskResources(), description="What it runs on.")
    environment: Environment = pydantic.Field(Environment(), description="Variables and packages.")
    work_dir: Name | None = pydantic.Field(
        None, description="Folder to start in, from the copy of the submitted code; absent: there."
    )
    idle_timeout: Annotated[Text, pydantic.BeforeValidator(_as_duration)] | None = pydantic.Field(
        None, description='Stop when it was idle for so long, for example "20m"; absent: the master\'s setting.'
    )
    notebook_idle_type: Literal["kernels_or_terminals", "kernel_connections", "activity"] = pydantic.Field(
        "kernels_or_terminals", description="What counts as use of a notebook."
    )
    tensorboard_args: Texts = pydantic.Field((), description="Further arguments of TensorBoard.")
    preemption_timeout: NotNegative | None = pydantic.Field(
        None, description="Seconds it has to leave when it must make room."
    )
    debug: Flag = pydantic.Field(False, description="Log more.")
    bind_mounts: tuple[BindMount, ...] = pydantic.Field((), description="Container-only; has no effect.")
    pbs: FreeMap | None = pydantic.Field(None, description="Accepted; has no effect.")
    slurm: FreeMap | None = pydantic.Field(None, description="Accepted; has no effect.")

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        return both_or_neither(written, "workspace", "project")

    @property
    def idle_timeout_seconds(self) -> float | None:
        """The idle timeout in seconds."""
        return None if self.idle_timeout is None else as_seconds(self.idle_timeout)
