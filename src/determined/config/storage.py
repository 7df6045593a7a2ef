"""Where checkpoints are stored, and how many are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Union

import pydantic

from determined.config.searcher import IMPORTED
from determined.config.section import BrokenRule, FreeMap, Name, NotNegative, Section, Text

_PREFIX = pydantic.Field(None, description='Put before every name in the bucket; must not contain "..".')


class StorageSection(Section):
    """What every kind of storage has: how many checkpoints survive."""

    save_experiment_best: NotNegative = pydantic.Field(
        0, description="Keep so many best checkpoints of the whole experiment."
    )
    save_trial_best: NotNegative = pydantic.Field(1, description="Keep so many best checkpoints of each trial.")
    save_trial_latest: NotNegative = pydantic.Field(1, description="Keep so many latest checkpoints of each trial.")

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        for field in ("prefix", "storage_path"):
            value = written.get(field)
            if isinstance(value, str) and ".." in value.replace("\\", "/").split("/"):
                yield BrokenRule((field,), 'must not contain ".."')


class UsualStorage(StorageSection):
    """Wherever checkpoints usually go here: the run folder of a local run, the master's storage otherwise."""

    type: None = pydantic.Field(None, description="Absent: the usual place.")


class SharedFolder(StorageSection):
    """A folder that every machine sees under the same path."""

    type: Literal["shared_fs"] = pydantic.Field("shared_fs", description="`shared_fs`.")
    host_path: Name = pydantic.Field(description="Absolute path of the folder.")
    storage_path: Name | None = pydantic.Field(
        None, description="Folder inside `host_path`: a relative path, or an absolute one that lies in it."
    )
    propagation: Text = pydantic.Field("rprivate", description="Container-only; has no effect.")

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        yield from super().broken_rules(written)
        host_path, storage_path = written.get("host_path"), written.get("storage_path")
        if isinstance(host_path, str) and host_path and not host_path.startswith("/"):
            yield BrokenRule(("host_path",), f"must be an absolute path, not {host_path!r}")
        is_absolute = isinstance(storage_path, str) and storage_path.startswith("/")
        if isinstance(host_path, str) and is_absolute and not _lies_in(storage_path, host_path):
            yield BrokenRule(("storage_path",), f"must lie inside host_path ({host_path})")


class Directory(StorageSection):
    """A folder of this machine."""

    type: Literal["directory"] = pydantic.Field("directory", description="`directory`.")
    container_path: Name = pydantic.Field(description="Absolute path of the folder.")

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        yield from super().broken_rules(written)
        path = written.get("container_path")
        if isinstance(path, str) and path and not path.startswith("/"):
            yield BrokenRule(("container_path",), f"must be an absolute path, not {path!r}")


class S3(StorageSection):
    """Amazon S3, or anything that speaks its protocol."""

    type: Literal["s3"] = pydantic.Field("s3", description="`s3`.")
    bucket: Name = pydantic.Field(description="Name of the bucket.")
    access_key: Text | None = pydantic.Field(
        None, description="Access key; absent: the machine's own credentials.", repr=False
    )
    secret_key: Text | None = pydantic.Field(None, description="Secret key; masked in views.", repr=False)
    endpoint_url: Name | None = pydantic.Field(None, description="Address of a server other than Amazon's.")
    prefix: Name | None = _PREFIX


class Gcs(StorageSection):
    """Google Cloud Storage."""

    type: Literal["gcs"] = pydantic.Field("gcs", description="`gcs`.")
    bucket: Name = pydantic.Field(description="Name of the bucket.")
    prefix: Name | None = _PREFIX


class Azure(StorageSection):
    """Azure Blob Storage."""

    type: Literal["azure"] = pydantic.Field("azure", description="`azure`.")
    container: Name = pydantic.Field(description="Name of the container.")
    connection_string: Text | None = pydantic.Field(None, description="Connection string; masked in views.", repr=False)
    account_url: Name | None = pydantic.Field(None, description="Address of the account, instead of the string.")
    credential: Text | None = pydantic.Field(
        None, description="Credential for `account_url`; masked in views.", repr=False
    )

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        yield from super().broken_rules(written)
        if ("connection_string" in written) == ("account_url" in written):
            yield BrokenRule((), "needs exactly one of connection_string and account_url")
        if "credential" in written and "account_url" not in written:
            yield BrokenRule(("credential",), "goes with account_url, which is absent")


class ImportedStorage(StorageSection):
    """A storage of your own: ``type`` is ``module:Class``."""

    type: Annotated[Text, pydantic.Field(pattern=IMPORTED)] = pydantic.Field(
        description="`module:Class`, a checkpoint storage in an installed package."
    )
    options: FreeMap = pydantic.Field({}, description="Passed to the class as they are.")


KINDS: dict[str, type[StorageSection]] = {
    "shared_fs": SharedFolder,
    "directory": Directory,
    "s3": S3,
    "gcs": Gcs,
    "azure": Azure,
}


def _lies_in(path: Any, folder: str) -> bool:
    return f"{str(path).rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


def _kind(written: Any) -> str | None:
    kind = written.get("type") if isinstance(written, Mapping) else getattr(written, "type", None)
    if kind is None:
        return f"#{UsualStorage.__name__}"
    if not isinstance(kind, str):
        return None
    if kind in KINDS:
        return f"#{KINDS[kind].__name__}"
    return f"#{ImportedStorage.__name__}" if ":" in kind else None


Storage = Annotated[
    Union[
        Annotated[UsualStorage, pydantic.Tag("#UsualStorage")],
        Annotated[SharedFolder, pydantic.Tag("#SharedFolder")],
        Annotated[Directory, pydantic.Tag("#Directory")],
        Annotated[S3, pydantic.Tag("#S3")],
        Annotated[Gcs, pydantic.Tag("#Gcs")],
        Annotated[Azure, pydantic.Tag("#Azure")],
        Annotated[ImportedStorage, pydantic.Tag("#ImportedStorage")],
    ],
    pydantic.Discriminator(
        _kind,
        custom_error_type="unknown_choice",
        custom_error_message="unknown storage",
        custom_error_context={"field": "type", "choices": [*KINDS, "module:Class"]},
    ),
]
