"""The model registry: names for checkpoints that are worth keeping. A registered checkpoint is not collected."""

from __future__ import annotations

import json
from typing import Any

from determined import errors
from determined.master.lifecycle import projects
from determined.master.records import CheckpointState, Model, ModelVersion
from determined.master.store import checkpoints, models
from determined.master.store.database import Tx

_LONGEST_NAME = 200
_MOST_METADATA = 2**20


def create(
    tx: Tx,
    name: str,
    description: str,
    labels: list[str],
    metadata: dict[str, Any],
    workspace_id: int | None,
    user_id: int | None,
) -> Model:
    """A new model."""
    _check_name(name)
    _check_metadata(metadata)
    if models.find(tx, name) is not None:
        raise errors.Refused(f"there is a model {name} already")
    if workspace_id is not None:
        _require_open_workspace(tx, workspace_id)
    model = models.insert(tx, name, description, labels, metadata, workspace_id, user_id)
    tx.changed("model", model.id)
    return model


def edit(tx: Tx, model_id: int, fields: dict[str, Any]) -> Model:
    """Change a model: name, description, notes, labels, metadata, or the workspace it is in."""
    model = require_open(tx, model_id)
    if "name" in fields and fields["name"] != model.name:
        _check_name(fields["name"])
        if models.find(tx, fields["name"]) is not None:
            raise errors.Refused(f"there is a model {fields['name']} already")
    if "metadata" in fields:
        _check_metadata(fields["metadata"])
    if fields.get("workspace_id") is not None:
        _require_open_workspace(tx, fields["workspace_id"])
    changed = models.update(tx, model_id, **fields)
    tx.changed("model", model_id)
    return changed


def archive(tx: Tx, model_id: int, archived: bool) -> Model:
    """Put a model away, or bring it back."""
    model = require(tx, model_id)
    if model.archived == archived:
        return model
    tx.changed("model", model_id, archived=archived)
    return models.update(tx, model_id, archived=archived)


def delete(tx: Tx, model_id: int) -> None:
    """Remove a model and its versions; the checkpoints stay, and may be collected from now on."""
    require(tx, model_id)
    models.delete(tx, model_id)
    tx.changed("model", model_id, deleted=True)


def register(tx: Tx, model_id: int, checkpoint_uuid: str, user_id: int | None, **values: Any) -> ModelVersion:
    """A checkpoint becomes the next version of a model."""
    model = require_open(tx, model_id)
    _check_metadata(values.get("metadata", {}))
    checkpoint = checkpoints.get(tx, checkpoint_uuid)
    if checkpoint is None:
        raise errors.CheckpointNotFound(f"there is no checkpoint {checkpoint_uuid}")
    if checkpoint.state is not CheckpointState.COMPLETED:
        raise errors.CheckpointStateException(
            f"checkpoint {checkpoint_uuid} is {checkpoint.state.value}; only a completed one can be registered"
        )
    version = models.insert_version(tx, model.id, user_id, checkpoint_uuid=checkpoint_uuid, **values)
    models.update(tx, model.id)
    tx.changed("model", model.id)
    return version


def edit_version(tx: Tx, model_id: int, version: int, fields: dict[str, Any]) -> ModelVersion:
    """Change what is said about a version; which checkpoint it is never changes."""
    require_open(tx, model_id)
    require_version(tx, model_id, version)
    _check_metadata(fields.get("metadata", {}))
    changed = models.update_version(tx, model_id, version, **fields)
    tx.changed("model", model_id)
    return changed


def delete_version(tx: Tx, model_id: int, version: int) -> None:
    """Remove a version; its number is not given again."""
    require_open(tx, model_id)
    require_version(tx, model_id, version)
    models.delete_version(tx, model_id, version)
    tx.changed("model", model_id)


def resolve(tx: Tx, name_or_id: str) -> Model:
    """The model that people mean; raises NotFound."""
    found = models.find(tx, name_or_id)
    if found is None and name_or_id.isascii() and name_or_id.isdigit() and len(name_or_id) < 19:
        found = models.get(tx, int(name_or_id))
    if found is None:
        raise errors.NotFound(f"there is no model {name_or_id}")
    return found


def require(tx: Tx, model_id: int) -> Model:
    """The model; raises NotFound."""
    model = models.get(tx, model_id)
    if model is None:
        raise errors.NotFound(f"there is no model {model_id}")
    return model


def require_open(tx: Tx, model_id: int) -> Model:
    """The model, if it is not archived; raises NotFound or Refused."""
    model = require(tx, model_id)
    if model.archived:
        raise errors.Refused(f"model {model.name} is archived and cannot be changed; unarchive it first")
    return model


def require_version(tx: Tx, model_id: int, version: int) -> ModelVersion:
    """The version; raises NotFound."""
    found = models.get_version(tx, model_id, version)
    if found is None:
        raise errors.NotFound(f"there is no version {version} of model {model_id}")
    return found


def _check_name(name: str) -> None:
    # A number would be taken for an id, and a slash for the end of the name in an address.
    if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable() or name.isdigit() or "/" in name:
        raise errors.BadRequest(
            f"the name of a model has 1 to {_LONGEST_NAME} printable characters, no / and is no number"
        )
    if name in (".", "..") or name != name.strip():
        raise errors.BadRequest("the name of a model neither begins nor ends with a space, and is not . or ..")


def _check_metadata(metadata: dict[str, Any]) -> None:
    if len(json.dumps(metadata)) > _MOST_METADATA:
        raise errors.BadRequest(f"metadata has more than {_MOST_METADATA // 2**20} MiB; keep it in the checkpoint")


def _require_open_workspace(tx: Tx, workspace_id: int) -> None:
    workspace = projects.require_workspace(tx, workspace_id)
    if workspace.archived:
        raise errors.Refused(f"workspace {workspace.name} is archived and takes no models; unarchive it first")
