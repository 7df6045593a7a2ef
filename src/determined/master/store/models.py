"""Registered models and their versions."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from determined.master.records import Model, ModelVersion
from determined.master.store import rows, settings
from determined.master.store.database import Tx
from determined.master.store.tables import model_versions, models


def insert(
    tx: Tx,
    name: str,
    description: str,
    labels: list[str],
    metadata: dict[str, Any],
    workspace_id: int | None,
    user_id: int | None,
) -> Model:
    """A new model."""
    values = {
        "name": name,
        "description": description,
        "notes": "",
        "labels": labels,
        "metadata": metadata,
        "archived": False,
        "workspace_id": workspace_id,
        "user_id": user_id,
        "created_at": tx.now,
        "updated_at": tx.now,
    }
    found = rows.one(Model, tx.execute(sa.insert(models).values(values).returning(models)))
    assert found is not None
    return found


def get(tx: Tx, model_id: int) -> Model | None:
    """A model by id."""
    return rows.one(Model, tx.execute(sa.select(models).where(models.c.id == model_id)))


def find(tx: Tx, name: str) -> Model | None:
    """A model by name."""
    return rows.one(Model, tx.execute(sa.select(models).where(models.c.name == name)))


def everything(
    tx: Tx, *, workspace_id: int | None = None, user_id: int | None = None, archived: bool | None = None
) -> list[Model]:
    """Models, by name."""
    query = sa.select(models).order_by(models.c.name)
    for column, value in (
        (models.c.workspace_id, workspace_id),
        (models.c.user_id, user_id),
        (models.c.archived, archived),
    ):
        if value is not None:
            query = query.where(column == value)
    return rows.several(Model, tx.execute(query))


def update(tx: Tx, model_id: int, **values: Any) -> Model:
    """Change columns of a model."""
    tx.execute(sa.update(models).where(models.c.id == model_id).values({**values, "updated_at": tx.now}))
    found = get(tx, model_id)
    assert found is not None
    return found


def delete(tx: Tx, model_id: int) -> None:
    """Remove a model with all its versions; their checkpoints stay."""
    tx.execute(sa.delete(model_versions).where(model_versions.c.model_id == model_id))
    tx.execute(sa.delete(models).where(models.c.id == model_id))


def count_versions(tx: Tx) -> dict[int, int]:
    """How many versions each model has; those without any are absent."""
    query = sa.select(model_versions.c.model_id, sa.func.count()).group_by(model_versions.c.model_id)
    return {row[0]: row[1] for row in tx.execute(query)}


# Versions.


def insert_version(tx: Tx, model_id: int, user_id: int | None, **values: Any) -> ModelVersion:
    """The next version of a model. The number of one that was deleted is not given again."""
    newest = tx.execute(
        sa.select(sa.func.max(model_versions.c.version)).where(model_versions.c.model_id == model_id)
    ).scalar_one()
    version = max(newest or 0, settings.get(tx, _deleted(model_id), 0)) + 1
    row = {"model_id": model_id, "version": version, "user_id": user_id, "created_at": tx.now, "notes": "", **values}
    found = rows.one(ModelVersion, tx.execute(sa.insert(model_versions).values(row).returning(model_versions)))
    assert found is not None
    return found


def get_version(tx: Tx, model_id: int, version: int) -> ModelVersion | None:
    """One version of a model."""
    return rows.one(ModelVersion, tx.execute(sa.select(model_versions).where(*_is(model_id, version))))


def versions(tx: Tx, model_id: int) -> list[ModelVersion]:
    """The versions of a model, newest first."""
    chosen = model_versions.c.model_id == model_id
    query = sa.select(model_versions).where(chosen).order_by(model_versions.c.version.desc())
    return rows.several(ModelVersion, tx.execute(query))


def update_version(tx: Tx, model_id: int, version: int, **values: Any) -> ModelVersion:
    """Change columns of a version."""
    if values:
        tx.execute(sa.update(model_versions).where(*_is(model_id, version)).values(values))
    found = get_version(tx, model_id, version)
    assert found is not None
    return found


def delete_version(tx: Tx, model_id: int, version: int) -> None:
    """Remove a version; its checkpoint stays."""
    tx.execute(sa.delete(model_versions).where(*_is(model_id, version)))
    settings.put(tx, _deleted(model_id), max(version, settings.get(tx, _deleted(model_id), 0)))


def _is(model_id: int, version: int) -> tuple[sa.ColumnElement[bool], ...]:
    return (model_versions.c.model_id == model_id, model_versions.c.version == version)


def _deleted(model_id: int) -> str:
    return f"highest_deleted_version_of_model_{model_id}"
