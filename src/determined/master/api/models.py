"""The model registry."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query

from determined.master.api.access import Caller, Db
from determined.master.api.identity import Identity
from determined.master.api.policy import Router, policy
from determined.master.lifecycle import models as lifecycle
from determined.master.records import Model, ModelVersion
from determined.master.store import models
from determined.master.store.database import Tx
from determined.wire.requests import CreateModel, EditModel, EditVersion, RegisterVersion
from determined.wire.views import ModelVersionView, ModelView

router = Router()

Name = Annotated[str, Path(min_length=1, max_length=200, description="The model's name, or its id.")]
Version = Annotated[int, Path(ge=1, le=2**31 - 1, description="The version's number.")]
SomeId = Annotated[int | None, Query(ge=1, le=2**63 - 1)]


@router.get("/models", dependencies=[policy("read")])
async def list_models(
    db: Db,
    name: Annotated[str | None, Query(description="Whose name contains this.")] = None,
    description: Annotated[str | None, Query(description="Whose description contains this.")] = None,
    label: Annotated[list[str] | None, Query(description="That have all of these labels.")] = None,
    workspace_id: Annotated[SomeId, Query(description="Of this workspace.")] = None,
    user_id: Annotated[SomeId, Query(description="Of this user.")] = None,
    archived: Annotated[bool | None, Query(description="Only archived ones, or none of them; absent: all.")] = None,
) -> list[ModelView]:
    """Registered models, by name."""
    return await db.read(_list, name, description, label or [], workspace_id, user_id, archived)


@router.post("/models", dependencies=[policy("write")], status_code=201)
async def create_model(asked: CreateModel, caller: Caller, db: Db) -> ModelView:
    """A new model."""
    return await db.write(_create, asked, caller.user_id)


@router.get("/models/{model}", dependencies=[policy("read")])
async def get_model(model: Name, db: Db) -> ModelView:
    """One model."""
    return await db.read(_get, model)


@router.patch("/models/{model}", dependencies=[policy("write")])
async def edit_model(model: Name, asked: EditModel, caller: Caller, db: Db) -> ModelView:
    """Change a model, or move it to another workspace."""
    return await db.write(_edit, model, asked.model_dump(exclude_none=True), caller)


@router.delete("/models/{model}", dependencies=[policy("write")], status_code=204)
async def delete_model(model: Name, caller: Caller, db: Db) -> None:
    """Remove a model with its versions. Their checkpoints stay."""
    await db.write(_delete, model, caller)


@router.post("/models/{model}/archive", dependencies=[policy("write")])
async def archive_model(model: Name, caller: Caller, db: Db) -> ModelView:
    """Put a model away: it cannot be changed."""
    return await db.write(_archive, model, True, caller)


@router.post("/models/{model}/unarchive", dependencies=[policy("write")])
async def unarchive_model(model: Name, caller: Caller, db: Db) -> ModelView:
    """Bring a model back."""
    return await db.write(_archive, model, False, caller)


@router.get("/models/{model}/versions", dependencies=[policy("read")])
async def list_versions(model: Name, db: Db) -> list[ModelVersionView]:
    """The versions of a model, newest first."""
    return await db.read(_versions, model)


@router.post("/models/{model}/versions", dependencies=[policy("write")], status_code=201)
async def register_version(model: Name, asked: RegisterVersion, caller: Caller, db: Db) -> ModelVersionView:
    """A checkpoint becomes the next version of a model."""
    return await db.write(_register, model, asked, caller)


@router.get("/models/{model}/versions/{version}", dependencies=[policy("read")])
async def get_version(model: Name, version: Version, db: Db) -> ModelVersionView:
    """One version."""
    return await db.read(_get_version, model, version)


@router.patch("/models/{model}/versions/{version}", dependencies=[policy("write")])
async def edit_version(model: Name, version: Version, asked: EditVersion, caller: Caller, db: Db) -> ModelVersionView:
    """Change what is said about a version."""
    return await db.write(_edit_version, model, version, asked.model_dump(exclude_none=True), caller)


@router.delete("/models/{model}/versions/{version}", dependencies=[policy("write")], status_code=204)
async def delete_version(model: Name, version: Version, caller: Caller, db: Db) -> None:
    """Remove a version. Its checkpoint stays, its number is not given again."""
    await db.write(_delete_version, model, version, caller)


def show(model: Model, version_count: int) -> ModelView:
    """A model as the API shows one."""
    return ModelView(
        id=model.id,
        name=model.name,
        description=model.description,
        notes=model.notes,
        labels=model.labels,
        metadata=model.metadata,
        archived=model.archived,
        workspace_id=model.workspace_id,
        user_id=model.user_id,
        version_count=version_count,
        created_at=model.created_at,
        updated_at=model.updated_at,
    )


def show_version(model: Model, version: ModelVersion) -> ModelVersionView:
    """A version as the API shows one."""
    return ModelVersionView(
        model_id=model.id,
        model_name=model.name,
        version=version.version,
        checkpoint_uuid=version.checkpoint_uuid,
        name=version.name,
        comment=version.comment,
        notes=version.notes,
        labels=version.labels,
        metadata=version.metadata,
        created_at=version.created_at,
    )


def _list(
    tx: Tx,
    name: str | None,
    description: str | None,
    labels: list[str],
    workspace_id: int | None,
    user_id: int | None,
    archived: bool | None,
) -> list[ModelView]:
    counts = models.count_versions(tx)
    found = models.everything(tx, workspace_id=workspace_id, user_id=user_id, archived=archived)
    return [
        show(model, counts.get(model.id, 0))
        for model in found
        if (name or "").casefold() in model.name.casefold()
        and (description or "").casefold() in model.description.casefold()
        and set(labels) <= set(model.labels)
    ]


def _show(tx: Tx, model: Model) -> ModelView:
    return show(model, models.count_versions(tx).get(model.id, 0))


def _own(tx: Tx, name: str, caller: Identity) -> Model:
    """The model, which the caller may change."""
    model = lifecycle.resolve(tx, name)
    caller.require_owner(model.user_id, f"model {model.name}")
    return model


def _get(tx: Tx, name: str) -> ModelView:
    return _show(tx, lifecycle.resolve(tx, name))


def _create(tx: Tx, asked: CreateModel, user_id: int | None) -> ModelView:
    model = lifecycle.create(
        tx, asked.name, asked.description, asked.labels, asked.metadata, asked.workspace_id, user_id
    )
    return show(model, 0)


def _edit(tx: Tx, name: str, fields: dict[str, Any], caller: Identity) -> ModelView:
    return _show(tx, lifecycle.edit(tx, _own(tx, name, caller).id, fields))


def _delete(tx: Tx, name: str, caller: Identity) -> None:
    lifecycle.delete(tx, _own(tx, name, caller).id)


def _archive(tx: Tx, name: str, archived: bool, caller: Identity) -> ModelView:
    return _show(tx, lifecycle.archive(tx, _own(tx, name, caller).id, archived))


def _versions(tx: Tx, name: str) -> list[ModelVersionView]:
    model = lifecycle.resolve(tx, name)
    return [show_version(model, version) for version in models.versions(tx, model.id)]


def _register(tx: Tx, name: str, asked: RegisterVersion, caller: Identity) -> ModelVersionView:
    model = _own(tx, name, caller)
    values = asked.model_dump(exclude={"checkpoint_uuid"})
    version = lifecycle.register(tx, model.id, asked.checkpoint_uuid, caller.user_id, **values)
    return show_version(model, version)


def _get_version(tx: Tx, name: str, version: int) -> ModelVersionView:
    model = lifecycle.resolve(tx, name)
    return show_version(model, lifecycle.require_version(tx, model.id, version))


def _edit_version(tx: Tx, name: str, version: int, fields: dict[str, Any], caller: Identity) -> ModelVersionView:
    model = _own(tx, name, caller)
    return show_version(model, lifecycle.edit_version(tx, model.id, version, fields))


def _delete_version(tx: Tx, name: str, version: int, caller: Identity) -> None:
    lifecycle.delete_version(tx, _own(tx, name, caller).id, version)
