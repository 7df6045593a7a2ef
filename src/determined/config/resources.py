"""What a trial or a task runs on."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pydantic

from determined.config.section import Flag, Name, NotNegative, Number, Section, Text, Whole

_SIZES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def _as_bytes(written: Any) -> Any:
    if not isinstance(written, str):
        return written
    match = re.fullmatch(r"(\d{1,15})\s*([kmgt]?)(?:i?b)?", written.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f'must be a number of bytes, or a size such as "4G", not {written!r}')
    return int(match[1]) * _SIZES[match[2].lower()]


Bytes = Annotated[Whole, pydantic.Field(ge=0), pydantic.BeforeValidator(_as_bytes)]
Priority = Annotated[Whole, pydantic.Field(ge=1, le=99)]
Weight = Annotated[Number, pydantic.Field(gt=0)]

_WEIGHT = pydantic.Field(1.0, description="Share of the slots under the fair-share scheduler.")
_PRIORITY = pydantic.Field(None, description="1 is served first, 99 last; absent: the pool's default.")
_POOL = pydantic.Field("", description="The pool to run in; empty: the default one.")
_SHM = pydantic.Field(None, description='Container-only (bytes, or a size such as "4G"); has no effect.')
_DEVICES = pydantic.Field((), description="Container-only; has no effect.")


class Device(Section):
    """A device of the machine, as container configs name it."""

    host_path: Name = pydantic.Field(description="Path of the device.")
    container_path: Name = pydantic.Field(description="Path inside a container.")
    mode: Text = pydantic.Field("mrw", description="Access.")


class Resources(Section):
    """What each trial runs on, and when its turn comes."""

    slots_per_trial: NotNegative = pydantic.Field(
        1, description="Slots (GPUs, else shares of the CPU cores) each trial runs on, all at once; 0: a little CPU."
    )
    max_slots: NotNegative | None = pydantic.Field(
        None, description="Most slots the trials of the experiment use together; absent: no limit."
    )
    weight: Weight = _WEIGHT
    priority: Priority | None = _PRIORITY
    resource_pool: Text = _POOL
    is_single_node: Flag | None = pydantic.Field(None, description="True: all slots of a trial must be on one machine.")
    slots: NotNegative | None = pydantic.Field(
        None, description="The number of slots of a job or task; has no effect for an experiment."
    )
    shm_size: Bytes | None = _SHM
    native_parallel: Flag = pydantic.Field(False, description="Has no effect.")
    devices: tuple[Device, ...] = _DEVICES


class TaskResources(Section):
    """What a job or task runs on, and when its turn comes."""

    slots: NotNegative = pydantic.Field(1, description="Slots it runs on, all at once; 0: a little CPU.")
    max_slots: NotNegative | None = pydantic.Field(None, description="Has no effect for a task.")
    weight: Weight = _WEIGHT
    priority: Priority | None = _PRIORITY
    resource_pool: Text = _POOL
    is_single_node: Flag | None = pydantic.Field(None, description="True: all slots must be on one machine.")
    shm_size: Bytes | None = _SHM
    devices: tuple[Device, ...] = _DEVICES
