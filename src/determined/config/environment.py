"""What a trial or a task finds around it: variables, packages, and fields that only containers need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Union

import pydantic

from determined.config.section import BrokenRule, Flag, FreeMap, Name, NotNegative, Section, Text, Texts, Whole

DEVICES = ("cpu", "cuda", "rocm")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
_CONTAINER = "Container-only; has no effect."


class Variables(Section):
    """Environment variables, as ``NAME=value``, for each kind of device; a plain list is for all of them."""

    cpu: Texts = pydantic.Field((), description="Variables where slots are CPU cores.")
    cuda: Texts = pydantic.Field((), description="Variables where slots are NVIDIA GPUs.")
    rocm: Texts = pydantic.Field((), description="Variables where slots are AMD GPUs.")

    @classmethod
    def prepare(cls, written: Any) -> Any:
        if isinstance(written, (list, tuple)):
            return dict.fromkeys(DEVICES, written)
        if not isinstance(written, (Mapping, Variables)):
            raise ValueError("must be a list of NAME=value entries, or a map with one for each kind of device")
        return written

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        for device in DEVICES:
            variables = written.get(device)
            for number, variable in enumerate(variables if isinstance(variables, (list, tuple)) else ()):
                # Values may be secrets: they are not repeated in the message.
                if isinstance(variable, str) and not _VARIABLE.match(variable):
                    yield BrokenRule((device, number), "must be written NAME=value")
                elif isinstance(variable, str) and "\0" in variable:
                    yield BrokenRule((device, number), "must not contain a NUL character")

    def of(self, device: str) -> dict[str, str]:
        """The variables for one kind of device, by name; the last one of a name counts."""
        pairs = (variable.partition("=") for variable in getattr(self, device))
        return {name: value for name, _, value in pairs}


class Images(Section):
    """Container images for each kind of device."""

    cpu: Name | None = pydantic.Field(None, description=_CONTAINER)
    cuda: Name | None = pydantic.Field(None, description=_CONTAINER)
    rocm: Name | None = pydantic.Field(None, description=_CONTAINER)

    @classmethod
    def prepare(cls, written: Any) -> Any:
        if isinstance(written, str):
            return dict.fromkeys(DEVICES, written)
        if not isinstance(written, (Mapping, Images)):
            raise ValueError("must be text, or a map with one text for each kind of device")
        return written


class ProxyPort(Section):
    """A port of the task that the master passes on."""

    proxy_port: Annotated[Whole, pydantic.Field(ge=1, le=65535)] = pydantic.Field(description="The port.")
    proxy_tcp: Flag = pydantic.Field(False, description="Whether it is plain TCP rather than HTTP.")
    unauthenticated: Flag = pydantic.Field(False, description="Whether it may be reached without logging in.")


class Environment(Section):
    """What the code finds around it."""

    environment_variables: Variables = pydantic.Field(
        Variables(), description="`NAME=value` entries: a list, or one list for each of `cpu`, `cuda`, `rocm`."
    )
    requirements: Name | None = pydantic.Field(
        None,
        description="A requirements file in the submitted code. A virtual environment is built from it once and kept"
        " for every later run of the same file. Absent: the submitter's own Python environment.",
    )
    proxy_ports: tuple[ProxyPort, ...] = pydantic.Field((), description="Ports for a master to pass on; has no effect.")
    ports: dict[str, Annotated[Whole, pydantic.Field(ge=1, le=65535)]] = pydantic.Field({}, description=_CONTAINER)
    image: Images = pydantic.Field(Images(), description=_CONTAINER)
    force_pull_image: Flag = pydantic.Field(False, description=_CONTAINER)
    registry_auth: FreeMap | None = pydantic.Field(None, description=_CONTAINER, repr=False)
    add_capabilities: Texts = pydantic.Field((), description=_CONTAINER)
    drop_capabilities: Texts = pydantic.Field((), description=_CONTAINER)
    pod_spec: FreeMap | None = pydantic.Field(None, description="Kubernetes-only; has no effect.")


class BindMount(Section):
    """A folder of the machine, mounted into containers."""

    host_path: Name = pydantic.Field(description="Absolute path on the machine.")
    container_path: Name = pydantic.Field(description='Path in the container; not ".".')
    read_only: Flag = pydantic.Field(False, description="Whether it cannot be written.")
    propagation: Text = pydantic.Field("rprivate", description="Mount propagation.")

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        host_path = written.get("host_path")
        if isinstance(host_path, str) and host_path and not host_path.startswith("/"):
            yield BrokenRule(("host_path",), f"must be an absolute path, not {host_path!r}")
        if written.get("container_path") == ".":
            yield BrokenRule(("container_path",), 'must not be "."')


class LogPolicy(Section):
    """What to do when a line of a trial's log matches a pattern."""

    name: Name | None = pydantic.Field(None, description="The label the trial gets.")
    pattern: Name | None = pydantic.Field(
        None, description="Regular expression; absent: the built-in policy of that name is switched off."
    )
    action: Literal["cancel_retries", "exclude_node"] | None = pydantic.Field(
        None,
        description="`cancel_retries`: a failed trial is not started again. `exclude_node`: not on the same machine.",
    )

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        if "name" not in written and "pattern" not in written:
            yield BrokenRule((), "needs a name, a pattern, or both")
        pattern = written.get("pattern")
        if isinstance(pattern, str):
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                yield BrokenRule(("pattern",), f"is not a regular expression: {error}")


class Slurm(Section):
    """How a gang is asked for on a Slurm pool."""

    slots_per_node: NotNegative | None = pydantic.Field(None, description="Slots to ask for on each machine.")
    gpu_type: Name | None = pydantic.Field(None, description="Kind of GPU to ask for.")
    sbatch_args: Texts = pydantic.Field((), description="Further arguments of `sbatch`.")


Entrypoint = Annotated[
    Union[
        Annotated[Name, pydantic.Tag("#text")],
        Annotated[Annotated[Texts, pydantic.Field(min_length=1)], pydantic.Tag("#list")],
    ],
    pydantic.Discriminator(lambda written: "#list" if isinstance(written, (list, tuple)) else "#text"),
]
